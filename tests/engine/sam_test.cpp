// SAM on a sharded optimizer: two passes, one perturbation, exact restoration, and what happens
// when a pass fails.
#include <gtest/gtest.h>

#include <limits>

#include "kernels/error.h"
#include "tests/support/run_ranks.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;

Config with_sam(Config config, double rho, SamScope scope = SamScope::kGlobal) {
  config.sam.enabled = true;
  config.sam.rho = rho;
  config.sam.scope = scope;
  return config;
}

class Sam : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Stages, Sam, ::testing::Values(0, 1),
                         [](const auto& info) { return "Stage" + std::to_string(info.param); });

TEST_P(Sam, PerturbsAlongTheAveragedGradient) {  // GSAM #5
  for (const auto scope : {SamScope::kGlobal, SamScope::kLocal}) {
    Config config = sgd(0.1, GetParam());
    config.sam.enabled = true;
    config.sam.rho = 0.5;
    config.sam.scope = scope;
    auto module =
        train<QuadraticModule>(2, config, make<QuadraticModule>(std::vector<float>{0, 0}),
                               [](Engine& engine, QuadraticModule& m, int rank) {
                                 const float side = rank == 0 ? 4.0f : -4.0f;
                                 engine.train_batch([&](int64_t) { return m.loss({3, side}); });
                               });
    const auto w = values(module->w);
    EXPECT_NEAR(w[0], scope == SamScope::kGlobal ? -0.35 : -0.33, 1e-6);
    EXPECT_NEAR(w[1], 0.0, 1e-6);
  }
}

TEST_P(Sam, EvaluatesEachMicroBatchTwiceAndOnlyOnEveryKthStep) {  // K5
  Config config = with_sam(sgd(0.1, GetParam()), 0.05);
  config.sam.interval = 3;
  config.batch.accumulation_steps = 2;
  train<QuadraticModule>(
      2, config, make<QuadraticModule>(std::vector<float>{3, 4}),
      [](Engine& engine, QuadraticModule& m, int) {
        std::vector<std::vector<int64_t>> calls;
        for (int step = 0; step < 6; ++step) {
          calls.emplace_back();
          engine.train_batch([&](int64_t micro) {
            calls.back().push_back(micro);
            return m.loss();
          });
          EXPECT_EQ(engine.report().outcome.perturbed, step % 3 == 2);
        }
        const std::vector<int64_t> once = {0, 1};
        const std::vector<int64_t> twice = {0, 1, 0, 1};
        EXPECT_EQ(calls, (std::vector<std::vector<int64_t>>{once, once, twice, once, once, twice}));
        EXPECT_EQ(engine.global_steps(), 6);
        EXPECT_EQ(engine.optimizer().applied_steps(), 6);
      });
}

TEST_P(Sam, RhoZeroIsTheBaseOptimizerBitForBit) {  // K6, davda54/sam #80
  const auto run = [&](bool sam) {
    Config config = adamw(0.01, GetParam());
    config.sam.enabled = sam;
    config.sam.rho = 0;
    return train<Mlp23>(2, config, make<Mlp23>(0), [](Engine& engine, Mlp23& m, int rank) {
      for (int i = 0; i < 5; ++i) {
        engine.train_batch([&](int64_t) { return m.loss(4 * rank, 4 * rank + 4); });
      }
    });
  };
  const auto with = run(true)->parameters();
  const auto without = run(false)->parameters();
  for (size_t i = 0; i < with.size(); ++i) EXPECT_TRUE(same_bits(with[i], without[i]));
}

// From-scratch SAM with SGD in float64: e = ρ g/‖g‖ at w, then w ← w − lr·g(w + e).
TEST_P(Sam, EqualsAFloat64Reference) {  // K6
  std::vector<double> w = {3, 4, -1};
  const std::vector<float> c = {0.5f, -2.f, 1.f};
  for (int step = 0; step < 10; ++step) {
    std::vector<double> g(3);
    double norm = 0;
    for (size_t i = 0; i < 3; ++i) {
      g[i] = w[i] + static_cast<double>(c[i]);
      norm += g[i] * g[i];
    }
    norm = std::sqrt(norm);
    for (size_t i = 0; i < 3; ++i) {
      w[i] -= 0.1 * (w[i] + 0.5 * g[i] / norm + static_cast<double>(c[i]));
    }
  }
  for (const int world : {1, 2, 4}) {
    auto module = train<QuadraticModule>(world, with_sam(sgd(0.1, GetParam()), 0.5),
                                         make<QuadraticModule>(std::vector<float>{3, 4, -1}),
                                         [&](Engine& engine, QuadraticModule& m, int) {
                                           for (int step = 0; step < 10; ++step) {
                                             engine.train_batch([&](int64_t) { return m.loss(c); });
                                             EXPECT_NEAR(engine.report().outcome.e_norm, 0.5,
                                                         1e-6);  // K8: at any number of ranks
                                           }
                                         });
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(values(module->w)[i], w[i], 1e-5);
  }
}

TEST_P(Sam, AccumulationPerturbsOnceForTheWholeBatch) {  // davda54/sam #62
  Config config = with_sam(sgd(0.1, GetParam()), 0.5);
  config.batch.accumulation_steps = 2;
  auto module = train<QuadraticModule>(
      1, config, make<QuadraticModule>(std::vector<float>{0, 0}),
      [](Engine& engine, QuadraticModule& m, int) {
        engine.train_batch([&](int64_t micro) {
          return m.loss(micro == 0 ? std::vector<float>{6, 0} : std::vector<float>{0, 8});
        });
      });
  EXPECT_NEAR(values(module->w)[0], -0.33, 1e-5);
  EXPECT_NEAR(values(module->w)[1], -0.44, 1e-5);
}

TEST_P(Sam, LocalScopeSendsNoGradientInTheFirstPass) {  // K9
  const auto reduced_bytes = [&](SamScope scope, bool sam) {
    int64_t bytes = 0;
    Config config = sgd(0.1, GetParam());
    if (sam) config = with_sam(config, 0.5, scope);
    train<VectorModule>(2, config, make<VectorModule>(1000),
                        [&](Engine& engine, VectorModule& m, int rank) {
                          Communicator& comm = engine.optimizer().communicator();
                          comm.reset_stats();
                          engine.train_batch([&](int64_t) { return m.loss(1); });
                          if (rank != 0) return;
                          bytes = comm.stats().of(CollectiveOp::kReduceScatter).bytes +
                                  comm.stats().of(CollectiveOp::kAllReduce).bytes;
                        });
    return bytes;
  };
  const int64_t plain = reduced_bytes(SamScope::kGlobal, false);
  EXPECT_EQ(reduced_bytes(SamScope::kLocal, true), plain);
  EXPECT_GT(reduced_bytes(SamScope::kGlobal, true), plain + 1000);
}

TEST_P(Sam, CostsNoExtraMemory) {
  const auto bytes = [&](bool sam) {
    int64_t total = 0;
    Config config = adamw(0.1, GetParam(), DType::kBF16);
    if (sam) config = with_sam(config, 0.05);
    train<VectorModule>(2, config, make<VectorModule>(1000),
                        [&](Engine& engine, VectorModule& m, int rank) {
                          engine.train_batch([&](int64_t) { return m.loss(1); });
                          if (sam) EXPECT_EQ(engine.sam()->bytes(), 0);
                          if (rank == 0) total = engine.optimizer().memory().total();
                        });
    return total;
  };
  EXPECT_EQ(bytes(true), bytes(false));
}

// BatchNorm1d(1) first in the model, inputs of mean 10, momentum 0.1: one update of the statistics.
struct NormModule : torch::nn::Module {
  NormModule() {
    norm = register_module("norm", torch::nn::BatchNorm1d(1));
    w = register_parameter("w", at::ones({1}));
  }
  at::Tensor loss() {
    const at::Tensor x = at::tensor({9.f, 11.f, 10.f, 10.f}).unsqueeze(1);
    return (norm(x) * w).pow(2).mean() + w.sum();
  }
  torch::nn::BatchNorm1d norm = nullptr;
  at::Tensor w;
};

TEST_P(Sam, BatchNormStatisticsMoveOnce) {  // davda54/sam #17
  for (const auto scope : {SamScope::kGlobal, SamScope::kLocal}) {
    auto module = train<NormModule>(1, with_sam(sgd(0.1, GetParam()), 0.05, scope),
                                    make<NormModule>(), [](Engine& engine, NormModule& m, int) {
                                      engine.train_batch([&](int64_t) { return m.loss(); });
                                    });
    EXPECT_NEAR(module->norm->running_mean.item<float>(), 1.0, 1e-5);
    EXPECT_EQ(module->norm->num_batches_tracked.item<int64_t>(), 1);
  }
}

TEST_P(Sam, BothPassesDrawTheSameRandomNumbers) {
  for (const bool same : {true, false}) {
    Config config = with_sam(sgd(0.1, GetParam()), 0.05);
    config.sam.same_rng = same;
    train<VectorModule>(1, config, make<VectorModule>(64),
                        [&](Engine& engine, VectorModule& m, int) {
                          std::vector<at::Tensor> masks;
                          engine.train_batch([&](int64_t) {
                            masks.push_back(at::rand({64}));
                            return m.loss(masks.back());
                          });
                          ASSERT_EQ(masks.size(), 2u);
                          EXPECT_EQ(same_bits(masks[0], masks[1]), same);
                        });
  }
}

TEST_P(Sam, ParametersWithoutGradientStayAsTheyAre) {  // nblt/F-SAM #1
  struct WithUnused : QuadraticModule {
    WithUnused() : QuadraticModule({3, 4}) { u = register_parameter("u", at::ones({3})); }
    at::Tensor u;
  };
  auto module = train<WithUnused>(2, with_sam(sgd(0.1, GetParam()), 0.5), make<WithUnused>(),
                                  [](Engine& engine, WithUnused& m, int) {
                                    engine.train_batch([&](int64_t) { return m.loss(); });
                                  });
  EXPECT_NEAR(values(module->w)[0], 2.67, 1e-5);
  EXPECT_NEAR(values(module->w)[1], 3.56, 1e-5);
  EXPECT_TRUE(same_bits(module->u, at::ones({3})));
}

// A layer used in the first pass only is perturbed but gets no second gradient. Restoration must
// not depend on one (Composer's leaves it perturbed for ever).
TEST_P(Sam, LayersUsedInTheFirstPassOnlyAreRestored) {
  struct TwoLayers : torch::nn::Module {
    TwoLayers() {
      a = register_parameter("a", at::ones({5}));
      b = register_parameter("b", at::ones({5}));
    }
    at::Tensor a, b;
  };
  for (const auto precision : {DType::kF32, DType::kBF16}) {
    auto module = train<TwoLayers>(2, with_sam(sgd(0.1, GetParam(), precision), 3.0),
                                   make<TwoLayers>(), [](Engine& engine, TwoLayers& m, int) {
                                     int call = 0;
                                     engine.train_batch([&](int64_t) {
                                       return call++ == 0 ? (m.a.sum() + m.b.sum()).to(at::kFloat)
                                                          : m.a.sum().to(at::kFloat);
                                     });
                                     EXPECT_TRUE(engine.was_step_applied());
                                     expect_clean_weights(engine);
                                   });
    EXPECT_EQ(values(module->b), std::vector<float>(5, 1.f));
  }
}

enum class Fault { kNanLoss, kNanGradient, kThrow };

/// One step in which rank 1 fails in pass `bad_pass`, then a good one.
void expect_skip(int64_t stage, Fault fault, int bad_pass, SamScope scope, DType precision) {
  SCOPED_TRACE(::testing::Message() << "fault " << static_cast<int>(fault) << " in pass "
                                    << bad_pass << ", scope " << static_cast<int>(scope));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  train<QuadraticModule>(
      2, with_sam(adamw(0.1, stage, precision), 0.5, scope),
      make<QuadraticModule>(std::vector<float>{3, 4, 5}),
      [&](Engine& engine, QuadraticModule& m, int rank) {
        const at::Tensor before = m.w.detach().clone();
        int call = 0;
        const auto bad = [&](int64_t) -> at::Tensor {
          const bool now = rank == 1 && call == bad_pass;
          ++call;
          const at::Tensor loss = m.loss();
          if (!now) return loss;
          if (fault == Fault::kThrow) throw std::runtime_error("out of data");
          // A NaN that reaches the loss but no gradient, or both.
          return fault == Fault::kNanLoss ? loss + nan : m.loss({nan, 0, 0});
        };
        if (fault == Fault::kThrow) {
          try {
            engine.train_batch(bad);
            ADD_FAILURE() << "rank " << rank << " did not throw";
          } catch (const CommError& error) {
            EXPECT_EQ(rank, 0);
            EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
          } catch (const std::runtime_error& error) {
            EXPECT_EQ(rank, 1);
            EXPECT_STREQ(error.what(), "out of data");
          }
        } else {
          engine.train_batch(bad);
          EXPECT_FALSE(engine.was_step_applied());
        }
        EXPECT_TRUE(same_bits(before, m.w));
        expect_clean_weights(engine);
        EXPECT_EQ(engine.skipped_steps(), 1);
        EXPECT_EQ(engine.optimizer().applied_steps(), 0);
        for (const auto& state : engine.optimizer().flat_groups()[0]->states()) {
          EXPECT_TRUE(same_bits(state, at::zeros_like(state)));
        }
        engine.train_batch([&](int64_t) { return m.loss(); });
        EXPECT_TRUE(engine.was_step_applied());
        EXPECT_FALSE(same_bits(before, m.w));
        expect_clean_weights(engine);
      });
}

TEST_P(Sam, FailureOfOneRankInEitherPassSkipsOnAllAndLeavesCleanWeights) {  // GSAM #2
  for (const Fault fault : {Fault::kNanLoss, Fault::kNanGradient, Fault::kThrow}) {
    for (const int pass : {0, 1}) {
      for (const auto scope : {SamScope::kGlobal, SamScope::kLocal}) {
        for (const DType precision : {DType::kF32, DType::kBF16}) {
          expect_skip(GetParam(), fault, pass, scope, precision);
        }
      }
    }
  }
}

TEST_P(Sam, ZeroGradientIsNoFailure) {
  train<QuadraticModule>(2, with_sam(sgd(0.1, GetParam()), 0.5),
                         make<QuadraticModule>(std::vector<float>{0, 0}),
                         [](Engine& engine, QuadraticModule& m, int) {
                           engine.train_batch([&](int64_t) { return m.loss(); });
                           EXPECT_TRUE(engine.was_step_applied());
                           EXPECT_EQ(engine.report().outcome.e_norm, 0.0);
                           EXPECT_EQ(values(m.w), (std::vector<float>{0, 0}));
                         });
}

TEST_P(Sam, WeightsAreGuardedWhilePerturbed) {
  train<QuadraticModule>(1, with_sam(sgd(0.1, GetParam()), 0.5),
                         make<QuadraticModule>(std::vector<float>{3, 4}),
                         [](Engine& engine, QuadraticModule& m, int) {
                           int call = 0;
                           engine.train_batch([&](int64_t) {
                             const bool second = call++ == 1;
                             EXPECT_EQ(engine.optimizer().weights_perturbed(), second);
                             if (second) {
                               EXPECT_THROW(engine.eval(), ConfigError);
                               EXPECT_THROW(engine.full_params(), ConfigError);
                             }
                             return m.loss();
                           });
                           EXPECT_EQ(call, 2);
                           EXPECT_NO_THROW(engine.eval());
                         });
}

// r = (L(w+e) − L(w)) / (ρ‖g‖) is 1 + ρ/(2‖g‖) for this quadratic; √N would betray a shard norm.
TEST_P(Sam, EfficacyIsThatOfTheWholeGradient) {  // K11
  for (const int world : {1, 2, 4}) {
    train<QuadraticModule>(world, with_sam(sgd(0.0, GetParam()), 0.01),
                           make<QuadraticModule>(std::vector<float>{3, 4, 12, 84}),
                           [](Engine& engine, QuadraticModule& m, int) {
                             engine.train_batch([&](int64_t) { return m.loss(); });
                             const StepOutcome& o = engine.report().outcome;
                             EXPECT_NEAR(o.ascent_norm, 85.0, 1e-4);
                             const double r = (o.loss_perturbed - o.loss) / (0.01 * o.ascent_norm);
                             EXPECT_NEAR(r, 1.0, 0.02);
                           });
  }
}

TEST(SamConfigCheck, BadNumbersAreNamed) {
  auto comm = make_single_communicator();
  for (const double rho : {-0.1, std::nan(""), HUGE_VAL}) {
    EXPECT_THROW(Engine(std::make_shared<VectorModule>(2), with_sam(sgd(0.1), rho), *comm),
                 ConfigError);
  }
  Config config = with_sam(sgd(0.1), 0.1);
  config.sam.interval = 0;
  EXPECT_THROW(Engine(std::make_shared<VectorModule>(2), config, *comm), ConfigError);
}

TEST(SamLoss, UnusableLossesAreRefusedBeforeAnythingChanges) {
  auto comm = make_single_communicator();
  auto module = std::make_shared<VectorModule>(2);
  Engine engine(module, with_sam(sgd(0.1), 0.1), *comm);
  const at::Tensor before = module->w.detach().clone();
  EXPECT_THROW(engine.train_batch([](int64_t) { return at::Tensor(); }), ShapeError);
  EXPECT_THROW(engine.train_batch([&](int64_t) { return module->w * 2; }), ShapeError);
  EXPECT_THROW(engine.train_batch([&](int64_t) { return module->loss(1).detach(); }), ShapeError);
  EXPECT_TRUE(same_bits(before, module->w));
  EXPECT_FALSE(engine.optimizer().weights_perturbed());
}

}  // namespace
}  // namespace zerosharp
