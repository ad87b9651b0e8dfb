// Gradient accumulation and learning-rate schedules: what users of partitioned training ran into.
#include <gtest/gtest.h>

#include "kernels/error.h"
#include "tests/support/run_ranks.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;

class AccumulationCases : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Stages, AccumulationCases, ::testing::Values(0, 1),
                         [](const auto& info) { return "Stage" + std::to_string(info.param); });

TEST_P(AccumulationCases,
       LossIsAveragedOverRanksAndMicroBatchesExactlyOnce) {  // transformers #35808
  for (const int world : {1, 2}) {
    for (const int64_t accumulation : {1, 2, 4}) {
      Config config = sgd(1.0, GetParam());
      config.batch.accumulation_steps = accumulation;
      auto module = train<VectorModule>(world, config, make<VectorModule>(4),
                                        [](Engine& engine, VectorModule& m, int) {
                                          engine.train_batch([&](int64_t) { return m.loss(1); });
                                          EXPECT_EQ(engine.global_grad_norm(), 2.0);
                                        });
      EXPECT_EQ(values(module->w), (std::vector<float>{0, 1, 2, 3}));
    }
  }
}

TEST_P(AccumulationCases, ClippingHappensOnceAtTheBoundary) {  // lingua #59
  Config config = sgd(1.0, GetParam());
  config.gradient_clipping = 1.0;
  config.batch.accumulation_steps = 2;
  auto module = train<VectorModule>(
      1, config, make<VectorModule>(2, 0.0, 0.0), [](Engine& engine, VectorModule& m, int) {
        engine.train_batch([&](int64_t micro) {
          return m.loss(micro == 0 ? at::tensor({6.f, 0.f}) : at::tensor({0.f, 8.f}));
        });
      });
  EXPECT_NEAR(values(module->w)[0], -0.6, 1e-5);
  EXPECT_NEAR(values(module->w)[1], -0.8, 1e-5);
}

// DeepSpeed's loop: windows carry over epochs, so 12 micro-batches at 4 are 3 updates.
TEST_P(AccumulationCases, WindowsCarryOverEpochs) {  // DeepSpeed #7439
  Config config = sgd(1.0, GetParam());
  config.batch.accumulation_steps = 4;
  auto module = train<VectorModule>(
      2, config, make<VectorModule>(2), [](Engine& engine, VectorModule& m, int) {
        for (int i = 0; i < 12; ++i) {
          EXPECT_EQ(engine.is_gradient_accumulation_boundary(), i % 4 == 3);
          engine.backward(m.loss(1));
          engine.step();
        }
        EXPECT_EQ(engine.global_steps(), 3);
      });
  EXPECT_EQ(values(module->w), (std::vector<float>{-2, -1}));
}

TEST_P(AccumulationCases, ReportedLossIsTheMeanOfTheWindow) {  // Lightning #835
  Config config = sgd(0.0, GetParam());
  config.batch.accumulation_steps = 4;
  train<VectorModule>(
      1, config, make<VectorModule>(1, 1.0), [](Engine& engine, VectorModule& m, int) {
        const double expected[] = {2.5, 6.5, 10.5};
        for (int step = 0; step < 3; ++step) {
          const double loss = engine.train_batch(
              [&](int64_t micro) { return m.loss(4 * step + static_cast<double>(micro) + 1); });
          EXPECT_DOUBLE_EQ(loss, expected[step]);
        }
        EXPECT_EQ(engine.global_steps(), 3);
      });
}

TEST_P(AccumulationCases, SchedulesStepOncePerUpdate) {  // DeepSpeed #771 …, starVLA #210
  const auto rates = [&](int64_t accumulation) {
    Config config = sgd(0.1, GetParam());
    config.batch.accumulation_steps = accumulation;
    config.scheduler = SchedulerConfig{};
    config.scheduler->kind = ScheduleKind::kWarmupDecayLR;
    config.scheduler->total_num_steps = 6;
    config.scheduler->warmup_num_steps = 2;
    config.scheduler->warmup_max_lr = 0.1;
    config.scheduler->warmup_log = false;
    std::vector<double> seen;
    train<VectorModule>(2, config, make<VectorModule>(3),
                        [&](Engine& engine, VectorModule& m, int rank) {
                          for (int i = 0; i < 6; ++i) {
                            const float before = values(m.w)[0];
                            engine.train_batch([&](int64_t) { return m.loss(1); });
                            // The weight moves by exactly the rate that is reported.
                            EXPECT_NEAR(before - values(m.w)[0], engine.report().lr, 1e-6);
                            if (rank == 0) seen.push_back(engine.report().lr);
                          }
                        });
    return seen;
  };
  EXPECT_EQ(rates(1), rates(4));
}

TEST_P(AccumulationCases, EveryGroupStartsAtItsWarmUpRate) {  // DeepSpeed #7969
  run_thread_ranks(2, [&](Communicator& comm) {
    auto m = std::make_shared<Unused>();
    Config config = adamw(0.1, GetParam());
    config.scheduler = SchedulerConfig{};
    config.scheduler->kind = ScheduleKind::kWarmupCosineLR;
    config.scheduler->total_num_steps = 10;
    config.scheduler->warmup_num_steps = 4;
    config.scheduler->warmup_log = false;
    EngineOptions options;
    options.groups = {group(adamw_group(0.1), {{"u", m->u}}),
                      group(adamw_group(0.2), {{"w", m->w}})};
    Engine engine(m, config, comm, options);
    EXPECT_EQ(engine.param_groups()[0].lr, 0.0);
    EXPECT_EQ(engine.param_groups()[1].lr, 0.0);
    for (int i = 0; i < 4; ++i) {
      engine.train_batch([&](int64_t) { return m->u.sum() + m->w.sum(); });
    }
    engine.lr();  // the rates of update 4: t = 3 of 4
    EXPECT_NEAR(engine.param_groups()[0].lr, 0.1 * 3 / 4, 1e-12);
    EXPECT_NEAR(engine.param_groups()[1].lr, 0.2 * 3 / 4, 1e-12);
  });
}

TEST_P(AccumulationCases, SamWithAScheduleOverAShardedOptimizerLearns) {  // Composer #3259
  Config config = adamw(0.1, GetParam());
  config.sam.enabled = true;
  config.scheduler = SchedulerConfig{};
  config.scheduler->kind = ScheduleKind::kWarmupLR;
  config.scheduler->warmup_num_steps = 2;
  config.scheduler->warmup_log = false;
  train<QuadraticModule>(2, config, make<QuadraticModule>(std::vector<float>{3, 4}),
                         [](Engine& engine, QuadraticModule& m, int) {
                           const double expected[] = {0, 0, 0.05, 0.1, 0.1, 0.1};
                           for (const double lr : expected) {
                             engine.train_batch([&](int64_t) { return m.loss(); });
                             EXPECT_NEAR(engine.report().lr, lr, 1e-12);
                             EXPECT_EQ(engine.optimizer().param_groups()[0].lr, engine.report().lr);
                           }
                           EXPECT_LT(values(m.w)[0], 2.9);
                           EXPECT_LT(values(m.w)[1], 3.9);
                         });
}

}  // namespace
}  // namespace zerosharp
