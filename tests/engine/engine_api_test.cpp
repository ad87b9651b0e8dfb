// The engine's interface for hand-written loops: foreign optimizers, scopes, accounting, and that a
// step in the steady state allocates nothing.
#include <gtest/gtest.h>

#include <atomic>

#include "kernels/error.h"
#include "tests/support/counting_allocator.h"
#include "tests/support/run_ranks.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;

// --- Foreign optimizers
// ------------------------------------------------------------------------------

template <class Optimizer, class Options>
ForeignOptimizerFactory foreign(Options options) {
  return [options](std::vector<at::Tensor> shards) {
    return std::make_unique<Optimizer>(std::move(shards), options);
  };
}

/// Five steps of MLP23 on `world` ranks with the optimizer that `factory` builds over the shards.
std::vector<float> run_foreign(int world, int64_t stage, const ForeignOptimizerFactory& factory,
                               std::string* note = nullptr) {
  EngineOptions options;
  options.foreign_optimizer = factory;
  auto module = train<Mlp23>(
      world, sgd(0.05, stage), make<Mlp23>(0),
      [&](Engine& engine, Mlp23& m, int rank) {
        if (note != nullptr && rank == 0) *note = engine.notes().back();
        expect_clean_weights(engine);
        const int64_t rows = 8 / world;
        for (int i = 0; i < 5; ++i) {
          engine.train_batch([&](int64_t) { return m.loss(rank * rows, (rank + 1) * rows); });
          expect_clean_weights(engine);
        }
      },
      options);
  std::vector<float> weights;
  for (const auto& p : module->parameters()) {
    for (const float v : values(p)) weights.push_back(v);
  }
  return weights;
}

/// The same five steps with LibTorch alone.
template <class Optimizer, class Options>
std::vector<float> plain(Options options) {
  Mlp23 module(0);
  Optimizer optimizer(module.parameters(), options);
  for (int i = 0; i < 5; ++i) {
    optimizer.zero_grad();
    module.loss(0, 8).backward();
    optimizer.step();
  }
  std::vector<float> weights;
  for (const auto& p : module.parameters()) {
    for (const float v : values(p)) weights.push_back(v);
  }
  return weights;
}

template <class Optimizer, class Options>
void expect_as_plain(Options options, const char* expected_note) {
  const auto reference = plain<Optimizer>(options);
  for (const int64_t stage : {0, 1}) {
    for (const int world : {1, 2, 4}) {
      std::string note;
      const auto weights = run_foreign(world, stage, foreign<Optimizer>(options), &note);
      EXPECT_NE(note.find(expected_note), std::string::npos) << note;
      for (size_t i = 0; i < reference.size(); ++i) EXPECT_NEAR(weights[i], reference[i], 2e-6);
    }
  }
}

TEST(ForeignOptimizer, AdamWIsWarmedUpAndStepsAsAlone) {
  expect_as_plain<torch::optim::AdamW>(torch::optim::AdamWOptions(0.05).weight_decay(0.1),
                                       "zero-gradient step and restored");
}

TEST(ForeignOptimizer, SgdKeepsItsLazyFirstStep) {
  expect_as_plain<torch::optim::SGD>(
      torch::optim::SGDOptions(0.05).momentum(0.9).dampening(0.3).weight_decay(0.1),
      "made at its first step");
}

/// Acts only when handed a closure, as closure-based optimizers do.
class ClosureOnly : public torch::optim::SGD {
 public:
  explicit ClosureOnly(std::vector<at::Tensor> shards)
      : SGD(std::move(shards), torch::optim::SGDOptions(0.05)) {}
  at::Tensor step(LossClosure closure) override {
    TORCH_CHECK(closure != nullptr, "this optimizer requires a closure");
    return SGD::step(closure);
  }
};

TEST(ForeignOptimizer, OneThatRequiresAClosureIsNotBrokenByTheWarmUp) {
  const auto reference = plain<torch::optim::SGD>(torch::optim::SGDOptions(0.05));
  std::string note;
  const auto weights = run_foreign(
      2, 1, [](std::vector<at::Tensor> shards) { return std::make_unique<ClosureOnly>(shards); },
      &note);
  EXPECT_NE(note.find("refuses a step without a closure"), std::string::npos) << note;
  EXPECT_NE(note.find("requires a closure"), std::string::npos) << note;
  for (size_t i = 0; i < reference.size(); ++i) EXPECT_NEAR(weights[i], reference[i], 2e-6);
}

TEST(ForeignOptimizer, FollowsTheOneSetOfGroups) {
  EngineOptions options;
  options.foreign_optimizer = foreign<torch::optim::SGD>(torch::optim::SGDOptions(123.0));
  Config config = sgd(0.5);
  config.scheduler = SchedulerConfig{};
  config.scheduler->kind = ScheduleKind::kLinear;
  config.scheduler->warmup_steps = 2;
  config.scheduler->total_steps = 10;
  train<VectorModule>(
      2, config, make<VectorModule>(4),
      [](Engine& engine, VectorModule& m, int) {
        for (const double lr : {0.0, 0.25, 0.5}) {
          const float before = values(m.w)[0];
          engine.train_batch([&](int64_t) { return m.loss(1); });
          EXPECT_NEAR(before - values(m.w)[0], lr, 1e-6);
        }
      },
      options);
}

TEST(ForeignOptimizer, SkipsNonFiniteSteps) {
  EngineOptions options;
  options.foreign_optimizer = foreign<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1));
  train<VectorModule>(
      2, sgd(0.1), make<VectorModule>(4),
      [](Engine& engine, VectorModule& m, int rank) {
        const at::Tensor before = m.w.detach().clone();
        engine.train_batch([&](int64_t) { return m.loss(rank == 1 ? NAN : 1.0); });
        EXPECT_TRUE(same_bits(before, m.w));
        EXPECT_EQ(engine.skipped_steps(), 1);
      },
      options);
}

// --- Scopes
// -------------------------------------------------------------------------------------------

TEST(Scopes, FullParamsWithModifyReachesTheMastersOfAllRanks) {
  for (const int64_t stage : {0, 1}) {
    train<VectorModule>(3, sgd(1.0, stage, DType::kBF16), make<VectorModule>(10),
                        [](Engine& engine, VectorModule& m, int rank) {
                          const auto master = owned_master(engine);
                          {
                            const auto scope = engine.full_params(/*modify=*/true);
                            const at::NoGradGuard no_grad;
                            m.w[7] = rank == 0 ? 0.5 : 99.0;  // rank 0's change counts
                          }
                          EXPECT_EQ(values(m.w)[7], 0.5f);
                          expect_clean_weights(engine);
                          engine.train_batch([&](int64_t) { return m.loss(0); });
                          EXPECT_EQ(values(m.w)[7], 0.5f);
                          EXPECT_EQ(values(m.w)[6], 7.0f);
                        });
  }
}

TEST(Scopes, FullParamsKeepsExactMastersOfUntouchedWeights) {
  train<Mlp23>(1, sgd(1.0, 1, DType::kBF16), make<Mlp23>(0), [](Engine& engine, Mlp23& m, int) {
    const auto before = owned_master(engine);
    {
      const auto scope = engine.full_params(true);
      const at::NoGradGuard no_grad;
      m.b2[1] = 3.0;
    }
    const auto after = owned_master(engine);
    int changed = 0;
    for (size_t i = 0; i < before.size(); ++i) changed += before[i] != after[i];
    EXPECT_EQ(changed, 1);
  });
}

TEST(Scopes, EvalRestoresTrainingMode) {
  train<VectorModule>(1, sgd(1.0), make<VectorModule>(2), [](Engine& engine, VectorModule& m, int) {
    m.train();
    {
      const auto scope = engine.eval();
      EXPECT_FALSE(m.is_training());
      EXPECT_FALSE(m.loss(1).requires_grad());
    }
    EXPECT_TRUE(m.is_training());
    EXPECT_TRUE(m.loss(1).requires_grad());
  });
}

// --- DeepSpeed's loop
// -----------------------------------------------------------------------------------

TEST(Loop, ForwardBackwardStepEqualsTrainBatch) {
  Config config = adamw(0.01, 1);
  config.batch.accumulation_steps = 2;
  const auto run = [&](bool by_hand) {
    return train<Mlp23>(2, config, make<Mlp23>(0), [&](Engine& engine, Mlp23& m, int rank) {
      const auto loss = [&](int64_t micro) {
        const int64_t begin = (2 * micro + rank) * 2;
        return m.loss(begin, begin + 2);
      };
      for (int step = 0; step < 4; ++step) {
        if (!by_hand) {
          engine.train_batch(loss);
          continue;
        }
        for (int64_t micro = 0; micro < 2; ++micro) {
          EXPECT_EQ(engine.forward<Mlp23>(at::ones({1, 4})).sizes(), (at::IntArrayRef{1, 2}));
          engine.backward(loss(micro));
          engine.step();
        }
      }
    });
  };
  const auto a = run(false)->parameters();
  const auto b = run(true)->parameters();
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i], b[i]));
}

TEST(Loop, WrongOrdersAreNamed) {
  train<VectorModule>(1, sgd(1.0), make<VectorModule>(2), [](Engine& engine, VectorModule& m, int) {
    EXPECT_THROW(engine.step(), ConfigError);
    engine.backward(m.loss(1));
    EXPECT_THROW(engine.backward(m.loss(1)), ConfigError);
    EXPECT_THROW(engine.module_as<Mlp23>(), ShapeError);
    EXPECT_THROW(engine.train_batch(LossClosure()), ConfigError);
  });
  Config config = sgd(1.0);
  config.batch.accumulation_steps = 2;
  train<VectorModule>(1, config, make<VectorModule>(2), [](Engine& engine, VectorModule& m, int) {
    engine.backward(m.loss(1));
    engine.step();
    EXPECT_THROW(engine.train_batch([&](int64_t) { return m.loss(1); }), ConfigError);
  });
}

TEST(Construction, UnavailableCombinationsAreRefused) {
  auto comm = make_single_communicator();
  const auto module = [] { return std::make_shared<VectorModule>(2); };
  EXPECT_THROW(Engine(module(), sgd(1.0, 2), *comm), ConfigError);
  EXPECT_THROW(Engine(nullptr, sgd(1.0), *comm), ShapeError);
}

// --- Memory and allocations
// ---------------------------------------------------------------------------------

// Bytes of a parameter on each rank: weights 2, gradients 2 (fp32 accumulators 4), and the owned
// share of master 4 and moments 8.
TEST(Memory, IsWhatTheArithmeticSays) {
  constexpr int64_t kNumel = 64 * 12 * 100;  // no padding at 1, 2, 3 or 4 ranks
  for (const int64_t stage : {0, 1}) {
    for (const int world : {1, 2, 3, 4}) {
      for (const int64_t accumulation : {1, 2}) {
        Config config = adamw(0.1, stage, DType::kBF16);
        config.batch.accumulation_steps = accumulation;
        train<VectorModule>(world, config, make<VectorModule>(kNumel),
                            [&](Engine& engine, VectorModule&, int) {
                              const MemoryBytes bytes = engine.optimizer().memory();
                              const int64_t owned = stage == 0 ? kNumel : kNumel / world;
                              EXPECT_EQ(bytes.weights, 2 * kNumel);
                              EXPECT_EQ(bytes.gradients, (accumulation > 1 ? 4 : 2) * kNumel);
                              EXPECT_EQ(bytes.master, 4 * owned);
                              EXPECT_EQ(bytes.states, 8 * owned);
                              EXPECT_LT(bytes.other, 200'000);
                            });
      }
    }
  }
}

// What a step allocates beyond the model's own tensors: nothing, from the very first one on.
TEST(Memory, StepsAllocateNothing) {
  auto comm = make_single_communicator();
  for (const int64_t stage : {0, 1}) {
    for (const DType precision : {DType::kF32, DType::kBF16}) {
      Mlp23 module(0);
      ParamGroupSpec spec;
      spec.parameters = {{"a", module.w0}, {"b", module.b0}, {"c", module.w2}, {"d", module.b2}};
      OptimizerOptions options;
      options.stage = static_cast<int>(stage);
      options.working = options.accumulator = precision;
      Bf16Optimizer optimizer({spec}, options, *comm);
      optimizer.initialize_states();
      CountingAllocator counter;
      for (int i = 0; i < 3; ++i) {
        optimizer.begin();
        const at::Tensor loss = module.loss(0, 8);
        loss.backward();
        const int64_t before = counter.count;
        optimizer.add_loss(loss);
        optimizer.reduce();
        optimizer.step();
        EXPECT_EQ(counter.count, before) << "step " << i;
      }
    }
  }
}

// The process's own growth for 40 million parameters, against the accounting.
TEST(Memory, AccountingMatchesTheProcess) {
  constexpr int64_t kNumel = 40'000'000;
  auto comm = make_single_communicator();
  auto module = std::make_shared<VectorModule>(kNumel, 0.0, 0.0);
  CountingAllocator counter;
  Engine engine(module, adamw(0.1, 1, DType::kBF16), *comm);
  const int64_t state = engine.optimizer().memory().total();
  EXPECT_NEAR(static_cast<double>(state), 16.0 * kNumel, 0.01 * 16 * kNumel);
  // Construction passes each parameter through one fp32 copy; everything else it took is held.
  EXPECT_NEAR(static_cast<double>(counter.total_bytes), static_cast<double>(state),
              0.05 * static_cast<double>(state) + 8.0 * kNumel);
}

}  // namespace
}  // namespace zerosharp
