// Precision, clipping and non-finite values: what users of partitioned training ran into.
#include <gtest/gtest.h>

#include "kernels/error.h"
#include "tests/support/run_ranks.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;

class PrecisionCases : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Stages, PrecisionCases, ::testing::Values(0, 1),
                         [](const auto& info) { return "Stage" + std::to_string(info.param); });

TEST_P(PrecisionCases, NormIsReportedBeforeClipping) {  // DeepSpeed #7220
  Config config = sgd(1.0, GetParam());
  config.gradient_clipping = 1.0;
  auto module = train<VectorModule>(
      2, config, make<VectorModule>(2, 0.0, 0.0), [](Engine& engine, VectorModule& m, int rank) {
        const at::Tensor g = rank == 0 ? at::tensor({6.f, 0.f}) : at::tensor({0.f, 8.f});
        engine.train_batch([&](int64_t) { return m.loss(g); });
        EXPECT_NEAR(engine.global_grad_norm(), 5.0, 1e-5);
      });
  const auto w = values(module->w);
  EXPECT_NEAR(w[0], -0.6, 1e-5);
  EXPECT_NEAR(w[1], -0.8, 1e-5);
}

TEST_P(PrecisionCases, OneInfinityOnOneRankSkipsEveryRank) {  // DeepSpeed #8035
  train<VectorModule>(2, adamw(0.1, GetParam(), DType::kBF16), make<VectorModule>(8),
                      [](Engine& engine, VectorModule& m, int rank) {
                        const FlatGroup& g = *engine.optimizer().flat_groups()[0];
                        engine.train_batch([&](int64_t) { return m.loss(1); });
                        const auto copy = [&] {
                          return std::vector<at::Tensor>{m.w.detach().clone(), g.master().clone(),
                                                         g.states()[0].clone(),
                                                         g.states()[1].clone()};
                        };
                        const auto before = copy();
                        at::Tensor gradient = at::ones({8});
                        if (rank == 1) gradient[3] = HUGE_VAL;
                        engine.train_batch([&](int64_t) { return m.loss(gradient); });
                        const auto after = copy();
                        for (size_t i = 0; i < before.size(); ++i) {
                          EXPECT_TRUE(same_bits(before[i], after[i])) << i;
                          EXPECT_TRUE(after[i].to(at::kFloat).isfinite().all().item<bool>());
                        }
                        EXPECT_EQ(engine.skipped_steps(), 1);
                        engine.train_batch([&](int64_t) { return m.loss(1); });
                        EXPECT_EQ(g.steps_applied(), std::vector<int64_t>{2});
                      });
}

TEST_P(PrecisionCases, SkippedStepsDoNotAdvanceTheSchedule) {  // DeepSpeed #8415
  Config config = adamw(0.1, GetParam(), DType::kBF16);
  config.scheduler = SchedulerConfig{};
  config.scheduler->kind = ScheduleKind::kWarmupLR;
  config.scheduler->warmup_num_steps = 4;
  config.scheduler->warmup_log = false;
  train<VectorModule>(2, config, make<VectorModule>(3), [](Engine& engine, VectorModule& m, int) {
    const at::Tensor before = m.w.detach().clone();
    for (int i = 0; i < 5; ++i) {
      engine.train_batch([&](int64_t) { return m.loss(NAN); });
      EXPECT_FALSE(engine.was_step_applied());
    }
    EXPECT_EQ(engine.skipped_steps(), 5);
    EXPECT_EQ(engine.global_steps(), 5);
    EXPECT_EQ(engine.lr(), 0.0);
    EXPECT_TRUE(same_bits(before, m.w));
  });
}

TEST_P(PrecisionCases, ConstructionIsInert) {  // DeepSpeed #5151
  Config config = adamw(0.1, GetParam(), DType::kBF16);
  config.optimizer.weight_decay = 0.1;
  train<VectorModule>(2, config, make<VectorModule>(4), [](Engine& engine, VectorModule& m, int) {
    EXPECT_EQ(values(m.w), (std::vector<float>{1, 2, 3, 4}));
    expect_clean_weights(engine);
    const ParamGroup& options = engine.param_groups()[0];
    EXPECT_EQ(options.lr, 0.1);
    EXPECT_EQ(options.weight_decay, 0.1);
    EXPECT_EQ(options.beta1, 0.9);
  });
}

TEST_P(PrecisionCases, MasterKeepsFp32ValuesExactly) {
  train<Mlp23>(1, adamw(0.1, GetParam(), DType::kBF16), make<Mlp23>(0),
               [](Engine& engine, Mlp23&, int) {
                 const Mlp23 given(0);
                 const auto master = owned_master(engine);
                 size_t at = 0;
                 for (const auto& parameter : given.parameters()) {
                   for (const float value : values(parameter)) EXPECT_EQ(master[at++], value);
                 }
               });
}

TEST_P(PrecisionCases, ZeroGradientsAreDefined) {  // DeepSpeed #8614
  Config config = adamw(0.1, GetParam(), DType::kBF16);
  config.gradient_clipping = 1.0;
  VectorModule reference(4);
  torch::optim::AdamW optimizer(reference.parameters(),
                                torch::optim::AdamWOptions(0.1).weight_decay(0));
  train<VectorModule>(2, config, make<VectorModule>(4),
                      [&](Engine& engine, VectorModule& m, int rank) {
                        const double gradients[] = {0, 1, 0};
                        for (const double g : gradients) {
                          engine.train_batch([&](int64_t) { return m.loss(g); });
                          EXPECT_TRUE(engine.was_step_applied());
                          EXPECT_NEAR(engine.global_grad_norm(), 2 * g, 1e-6);
                          if (rank != 0) continue;
                          optimizer.zero_grad();
                          // Norm 2 is clipped to 1, so the reference gets half the gradient.
                          reference.loss(g / 2).backward();
                          optimizer.step();
                          if (g == 0 && engine.global_steps() == 1) {
                            EXPECT_EQ(values(m.w), (std::vector<float>{1, 2, 3, 4}));
                          }
                        }
                        if (rank == 0) {
                          EXPECT_NEAR(owned_master(engine)[0], values(reference.w)[0], 1e-5);
                        }
                      });
}

TEST_P(PrecisionCases, NormOfManyBf16GradientsDoesNotStall) {  // Automodel #825
  for (const int world : {1, 2, 4}) {
    train<VectorModule>(world, sgd(0.0, GetParam(), DType::kBF16),
                        make<VectorModule>(65536, 0.0, 0.0),
                        [](Engine& engine, VectorModule& m, int) {
                          engine.train_batch([&](int64_t) { return m.loss(1); });
                          EXPECT_NEAR(engine.global_grad_norm(), 256.0, 0.01);
                        });
  }
}

TEST_P(PrecisionCases, SmallUpdatesAddUpInTheMaster) {  // ml-by-hand #85
  train<VectorModule>(2, adamw(1e-3, GetParam(), DType::kBF16), make<VectorModule>(1),
                      [](Engine& engine, VectorModule& m, int rank) {
                        for (int i = 0; i < 10; ++i) {
                          engine.train_batch([&](int64_t) { return m.loss(1); });
                        }
                        if (rank == 0) {
                          EXPECT_NEAR(owned_master(engine)[0], 0.99, 1e-5);
                        }
                        EXPECT_EQ(values(m.w)[0], 0.98828125f);
                      });
}

TEST_P(PrecisionCases, Bf16RanksOnTheCpuWork) {  // PyTorch #113557
  auto module = train<VectorModule>(2, adamw(0.1, GetParam(), DType::kBF16), make<VectorModule>(5),
                                    [](Engine& engine, VectorModule& m, int) {
                                      for (int i = 0; i < 2; ++i) {
                                        engine.train_batch([&](int64_t) { return m.loss(1); });
                                      }
                                    });
  for (int i = 0; i < 5; ++i) {
    const auto expected = at::scalar_tensor(i + 0.8).to(at::kBFloat16).item<float>();
    EXPECT_EQ(values(module->w)[static_cast<size_t>(i)], expected);
  }
}

TEST_P(PrecisionCases, DynamicLossScaleOfFp16) {
  Config config = sgd(1.0, GetParam(), DType::kF16);
  config.fp16.initial_scale_power = 4;
  config.fp16.loss_scale_window = 2;
  config.fp16.hysteresis = 1;
  train<VectorModule>(2, config, make<VectorModule>(4), [](Engine& engine, VectorModule& m, int) {
    EXPECT_EQ(engine.loss_scale(), 16.0);
    engine.train_batch([&](int64_t) { return m.loss(0.25); });
    EXPECT_EQ(values(m.w), (std::vector<float>{0.75, 1.75, 2.75, 3.75}));
    EXPECT_EQ(engine.global_grad_norm(), 0.5);  // unscaled
    engine.train_batch([&](int64_t) { return m.loss(HUGE_VAL); });
    EXPECT_FALSE(engine.was_step_applied());
    EXPECT_EQ(engine.loss_scale(), 8.0);
    for (int i = 0; i < 2; ++i) {
      engine.train_batch([&](int64_t) { return m.loss(0.25); });
    }
    EXPECT_EQ(engine.loss_scale(), 16.0);
  });
}

}  // namespace
}  // namespace zerosharp
