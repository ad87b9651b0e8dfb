// What users of partitioned training ran into, as tests: partition and parameter shapes, tied,
// unused and frozen parameters, precision and clipping, gradient accumulation, SAM basics.
#include <gtest/gtest.h>

#include "kernels/error.h"
#include "tests/support/run_ranks.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;

class EveryStage : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Stages, EveryStage, ::testing::Values(0, 1),
                         [](const auto& info) { return "Stage" + std::to_string(info.param); });

TEST_P(EveryStage, MoreRanksThanElements) {  // DeepSpeed #129
  auto module = train<VectorModule>(4, adamw(0.1, GetParam()), make<VectorModule>(3),
                                    [](Engine& engine, VectorModule& m, int) {
                                      for (int i = 0; i < 2; ++i) {
                                        engine.train_batch([&](int64_t) { return m.loss(1); });
                                      }
                                    });
  const auto w = values(module->w);
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(w[static_cast<size_t>(i)], i + 0.8, 1e-6);
}

TEST_P(EveryStage, LossIsAveragedOverRanksAndMicroBatchesExactlyOnce) {  // transformers #35808
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

TEST_P(EveryStage, NormIsReportedBeforeClipping) {  // DeepSpeed #7220
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

TEST_P(EveryStage, SamPerturbsAlongTheAveragedGradient) {  // GSAM #5
  for (const auto scope : {SamScope::kGlobal, SamScope::kLocal}) {
    Config config = sgd(0.1, GetParam());
    config.sam.enabled = true;
    config.sam.rho = 0.5;
    config.sam.scope = scope;
    auto module = train<QuadraticModule>(2, config, make<QuadraticModule>(std::vector<float>{0, 0}),
                                         [](Engine& engine, QuadraticModule& m, int rank) {
                                           const std::vector<float> c =
                                               rank == 0 ? std::vector<float>{3, 4}
                                                         : std::vector<float>{3, -4};
                                           engine.train_batch([&](int64_t) { return m.loss(c); });
                                         });
    const auto w = values(module->w);
    EXPECT_NEAR(w[0], scope == SamScope::kGlobal ? -0.35 : -0.33, 1e-6);
    EXPECT_NEAR(w[1], 0.0, 1e-6);
  }
}

}  // namespace
}  // namespace zerosharp
