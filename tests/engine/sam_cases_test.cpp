// SAM: what users of it ran into, as far as sam_test.cpp does not hold it already.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "kernels/error.h"
#include "tests/support/messages.h"
#include "tests/support/run_ranks.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;

class SamCases : public ::testing::TestWithParam<int64_t> {
 protected:
  static Config with_sam(Config config, double rho) {
    config.zero_stage = GetParam();
    config.sam.enabled = true;
    config.sam.rho = rho;
    return config;
  }
};
INSTANTIATE_TEST_SUITE_P(Stages, SamCases, ::testing::Values(0, 1),
                         [](const auto& info) { return "Stage" + std::to_string(info.param); });

/// AdamW without decay, with SAM, in float64 on the loss ½‖w‖².
struct Reference {
  std::array<double, 2> w = {3, 4}, m = {}, v = {};
  int updates = 0;

  void step(double rho, double lr) {
    ++updates;
    const double norm = std::hypot(w[0], w[1]);
    const double c1 = 1 - std::pow(0.9, updates), c2 = 1 - std::pow(0.999, updates);
    for (size_t i = 0; i < 2; ++i) {
      const double g = w[i] + rho * w[i] / norm;
      m[i] = 0.9 * m[i] + 0.1 * g;
      v[i] = 0.999 * v[i] + 0.001 * g * g;
      w[i] -= lr / c1 * m[i] / (std::sqrt(v[i] / c2) + 1e-8);
    }
  }
};

// pytorch_optimizer #64: who calls it without a closure must learn what to pass.
TEST_P(SamCases, StepWithoutAClosureShowsBothCallsThatHaveOne) {
  train<QuadraticModule>(
      2, with_sam(adamw(0.1), 0.05), make<QuadraticModule>(std::vector<float>{3, 4}),
      [](Engine& engine, QuadraticModule& m, int) {
        const std::string text = message_of<ConfigError>([&] { engine.sam()->step(); });
        expect_parts(text, {"closure", "engine.train_batch(closure)", "SamAdapter::step(closure"});
        EXPECT_EQ(values(m.w), (std::vector<float>{3, 4}));
        EXPECT_EQ(engine.global_steps(), 0);
        // The calls it names work.
        engine.train_batch([&](int64_t) { return m.loss(); });
        engine.sam()->step([&](const PassContext&) { return m.loss(); }, 1);
        EXPECT_EQ(engine.optimizer().applied_steps(), 2);
      });
}

// GSAM #2: a NaN in rank 1's second pass drops the step everywhere, and the next is the first.
TEST_P(SamCases, StepAfterASkippedOneIsTheFirst) {
  Reference reference;
  reference.step(0.5, 0.1);
  train<QuadraticModule>(2, with_sam(adamw(0.1), 0.5),
                         make<QuadraticModule>(std::vector<float>{3, 4}),
                         [&](Engine& engine, QuadraticModule& m, int rank) {
                           engine.train_batch([&](const PassContext& context) {
                             const bool bad = rank == 1 && context.pass == 1;
                             return m.loss({bad ? NAN : 0.0f, 0.0f});
                           });
                           EXPECT_EQ(values(m.w), (std::vector<float>{3, 4}));
                           EXPECT_EQ(engine.skipped_steps(), 1);
                           engine.train_batch([&](int64_t) { return m.loss(); });
                           EXPECT_EQ(engine.skipped_steps(), 1);
                           EXPECT_NEAR(engine.report().outcome.e_norm, 0.5, 1e-6);
                           for (size_t i = 0; i < 2; ++i) {
                             EXPECT_NEAR(values(m.w)[i], reference.w[i], 1e-6);
                           }
                         });
}

// Composer #3259: the rate that is reported is the one that the update uses, after an LR warm-up
// from 0. Updates made at another rate would leave the reference at once.
TEST_P(SamCases, ReportedRateIsTheOneOfTheUpdate) {
  constexpr double kRates[] = {0, 0, 0.05, 0.1, 0.1, 0.1};  // DeepSpeed's trace
  Config config = with_sam(adamw(0.1), 0.05);
  config.scheduler = SchedulerConfig{};
  config.scheduler->kind = ScheduleKind::kWarmupLR;
  config.scheduler->warmup_num_steps = 2;
  config.scheduler->warmup_log = false;
  train<QuadraticModule>(2, config, make<QuadraticModule>(std::vector<float>{3, 4}),
                         [&](Engine& engine, QuadraticModule& m, int) {
                           Reference reference;
                           for (const double rate : kRates) {
                             engine.train_batch([&](int64_t) { return m.loss(); });
                             EXPECT_NEAR(engine.report().lr, rate, 1e-12);
                             EXPECT_EQ(engine.sam()->param_groups()[0].lr, engine.report().lr);
                             reference.step(0.05, rate);
                             for (size_t i = 0; i < 2; ++i) {
                               EXPECT_NEAR(values(m.w)[i], reference.w[i], 1e-5);
                             }
                           }
                           EXPECT_LT(values(m.w)[0], 2.9f);
                           EXPECT_LT(values(m.w)[1], 3.9f);
                         });
}

// davda54/sam #80: a negative radius is no base optimizer either.
TEST_P(SamCases, NegativeRadiusIsNamedOnEveryRankBeforeAnythingChanges) {
  run_thread_ranks(2, [&](Communicator& comm) {
    auto module = std::make_shared<QuadraticModule>(std::vector<float>{3, 4});
    const std::string text =
        message_of<ConfigError>([&] { Engine engine(module, with_sam(adamw(0.1), -0.05), comm); });
    expect_parts(text, {"sam.rho", "-0.05"});
    EXPECT_EQ(values(module->w), (std::vector<float>{3, 4}));
    comm.barrier();  // the ranks are in step
  });
}

// nblt/F-SAM #1, for the variants that keep vectors too.
TEST_P(SamCases, ParametersWithoutGradientPassEveryVariant) {
  struct WithUnused : QuadraticModule {
    WithUnused() : QuadraticModule({3, 4}) {
      u = register_parameter("u", at::arange(3, at::kFloat) + 1);
    }
    at::Tensor u;
  };
  for (const auto variant :
       {SamVariant::kSam, SamVariant::kAsam, SamVariant::kGsam, SamVariant::kFsam,
        SamVariant::kVasso, SamVariant::kAeSam, SamVariant::kLookSam}) {
    SCOPED_TRACE(sam_variant_name(variant));
    Config config = with_sam(sgd(0.1), 0.5);
    config.sam.variant = variant;
    config.sam.eta = 0;
    auto module =
        train<WithUnused>(2, config, make<WithUnused>(), [](Engine& engine, WithUnused& m, int) {
          engine.train_batch([&](int64_t) { return m.loss(); });
          EXPECT_TRUE(engine.was_step_applied());
        });
    EXPECT_EQ(values(module->u), (std::vector<float>{1, 2, 3}));
    // asam with t = |w|: e = ρ·w³/‖w²‖, ‖w²‖ = √337; the others: e = ρ·w/5 (first step, g = w).
    const double unit = std::sqrt(337.0);
    const bool adaptive = variant == SamVariant::kAsam;
    const double e[] = {adaptive ? 0.5 * 27 / unit : 0.3, adaptive ? 0.5 * 64 / unit : 0.4};
    EXPECT_NEAR(values(module->w)[0], 3 - 0.1 * (3 + e[0]), 1e-5);
    EXPECT_NEAR(values(module->w)[1], 4 - 0.1 * (4 + e[1]), 1e-5);
  }
}

}  // namespace
}  // namespace zerosharp
