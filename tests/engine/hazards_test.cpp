// Bad luck around an engine's life: lifetimes, parameters replaced behind its back, other parts of
// the module, failures at construction.
#include <gtest/gtest.h>

#include <limits>
#include <optional>

#include "kernels/error.h"
#include "tests/support/messages.h"
#include "tests/support/run_ranks.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;

class Hazards : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Stages, Hazards, ::testing::Values(0, 1));

// --- Lifetimes -----------------------------------------------------------------------------------

TEST_P(Hazards, GraphMayOutliveTheEngine) {
  auto comm = make_single_communicator();
  auto module = std::make_shared<VectorModule>(3);
  std::optional<Engine> engine(std::in_place, module, sgd(1.0, GetParam()), *comm);
  const at::Tensor loss = module->loss(2.0);
  engine.reset();
  loss.backward();
  ASSERT_TRUE(module->w.grad().defined());  // plain autograd again
  EXPECT_EQ(values(module->w.grad()), (std::vector<float>{2, 2, 2}));
}

TEST_P(Hazards, EnginesOneAfterTheOtherOnOneModule) {
  auto comm = make_single_communicator();
  auto module = std::make_shared<VectorModule>(3);
  at::Tensor old_graph;
  for (const DType precision : {DType::kF32, DType::kF32, DType::kBF16, DType::kF32}) {
    Engine engine(module, sgd(1.0, GetParam(), precision), *comm);
    const auto before = values(module->w);
    engine.train_batch([&](int64_t) { return module->loss(1.0); });
    for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(values(module->w)[i], before[i] - 1);
    old_graph = module->loss(1.0);  // keeps the engine's hooks alive beyond it
  }
}

TEST_P(Hazards, EngineNeedsNeitherModuleNorCommunicatorToGo) {
  auto comm = make_single_communicator();
  auto module = std::make_shared<VectorModule>(3);
  std::optional<Engine> engine(std::in_place, module, sgd(1.0, GetParam()), *comm);
  engine->train_batch([&](int64_t) { return module->loss(1.0); });
  module.reset();
  comm.reset();
  engine.reset();
}

TEST_P(Hazards, TwoLivingEnginesOnOneModuleAreRefused) {
  auto comm = make_single_communicator();
  for (const DType second : {DType::kF32, DType::kBF16}) {
    auto module = std::make_shared<VectorModule>(3);
    Engine engine(module, sgd(1.0, GetParam()), *comm);
    const std::string text =
        message_of<ShapeError>([&] { Engine other(module, sgd(1.0, GetParam(), second), *comm); });
    expect_parts(text, {"parameter w", "another engine"});
    engine.train_batch([&](int64_t) { return module->loss(1.0); });  // the first is unharmed
    EXPECT_EQ(values(module->w), (std::vector<float>{0, 1, 2}));
  }
}

// --- Parameters replaced behind the engine's back ------------------------------------------------

TEST_P(Hazards, CastingToTheSameTypeIsHarmless) {
  train<VectorModule>(2, sgd(1.0, GetParam(), DType::kBF16), make<VectorModule>(3),
                      [](Engine& engine, VectorModule& m, int) {
                        m.to(at::kBFloat16);
                        m.to(at::kCPU);
                        engine.train_batch([&](int64_t) { return m.loss(1.0); });
                        EXPECT_EQ(values(m.w), (std::vector<float>{0, 1, 2}));
                      });
}

// As torch::load(module, file) does: it gives parameters new storage.
TEST_P(Hazards, ParameterWithOtherStorageIsNamed) {
  auto comm = make_single_communicator();
  auto module = std::make_shared<VectorModule>(3);
  Engine engine(module, sgd(1.0, GetParam()), *comm);
  {
    const at::NoGradGuard no_grad;
    module->w.set_data(at::full({3}, 7.0f));
  }
  const std::string text = message_of<ShapeError>(
      [&] { engine.train_batch([&](int64_t) { return module->loss(1.0); }); });
  expect_parts(text, {"parameter w", "full_params"});
}

// A cast to another type also takes the hook away, so no gradient would ever arrive.
TEST_P(Hazards, ParameterCastToAnotherTypeIsNamed) {
  auto comm = make_single_communicator();
  auto module = std::make_shared<VectorModule>(3);
  Engine engine(module, sgd(1.0, GetParam(), DType::kBF16), *comm);
  module->to(at::kFloat);
  const std::string text = message_of<ShapeError>(
      [&] { engine.train_batch([&](int64_t) { return module->loss(1.0); }); });
  expect_parts(text, {"parameter w", "full_params"});
}

TEST_P(Hazards, FullParamsTakesOverWeightsLoadedIntoNewStorage) {
  for (const DType precision : {DType::kF32, DType::kBF16}) {
    train<VectorModule>(
        2, sgd(1.0, GetParam(), precision), make<VectorModule>(3),
        [](Engine& engine, VectorModule& m, int rank) {
          {
            const auto scope = engine.full_params(/*modify=*/true);
            const at::NoGradGuard no_grad;
            m.w.set_data(at::full({3}, rank == 0 ? 7.0f : 99.0f));  // fp32, as files often are
          }
          EXPECT_EQ(values(m.w), (std::vector<float>{7, 7, 7}));
          expect_clean_weights(engine);
          engine.train_batch([&](int64_t) { return m.loss(1.0); });
          EXPECT_EQ(values(m.w), (std::vector<float>{6, 6, 6}));
        });
  }
}

struct SharedStorage : torch::nn::Module {
  SharedStorage() {
    a = register_parameter("a", at::ones({4}));
    b = register_parameter("b", a.detach());  // the same memory, but another tensor
  }
  at::Tensor a, b;
};

// Flattening would silently untie them.
TEST_P(Hazards, DifferentTensorsInOneMemoryAreRefused) {
  auto comm = make_single_communicator();
  const std::string text = message_of<ShapeError>(
      [&] { Engine engine(std::make_shared<SharedStorage>(), sgd(1.0, GetParam()), *comm); });
  expect_parts(text, {"parameter b", "a", "memory"});
}

// --- What construction does to the rest of the module --------------------------------------------

struct ComplexBuffer : VectorModule {
  ComplexBuffer() : VectorModule(3) {
    const at::Tensor angle = at::arange(4, at::kFloat);
    table = register_buffer("table", at::complex(at::cos(angle), at::sin(angle)));
  }
  at::Tensor table;  // as rotary position embeddings keep it
};

TEST_P(Hazards, ComplexBuffersSurvive) {
  const ComplexBuffer fresh;
  auto module = train<ComplexBuffer>(2, sgd(1.0, GetParam()), make<ComplexBuffer>(),
                                     [](Engine&, ComplexBuffer&, int) {});
  EXPECT_TRUE(same_bits(module->table, fresh.table));
}

struct FrozenOfAnyType : VectorModule {
  explicit FrozenOfAnyType(int rank = 0) : VectorModule(3) {
    for (const auto type : {at::kChar, at::kByte, at::kInt, at::kBool, at::kComplexFloat}) {
      frozen.push_back(register_parameter("f" + std::to_string(frozen.size()),
                                          at::full({3}, 1 - rank, type), false));
    }
  }
  std::vector<at::Tensor> frozen;
};

TEST_P(Hazards, FrozenParametersMayBeOfAnyType) {
  run_thread_ranks(2, [&](Communicator& comm) {
    auto module = std::make_shared<FrozenOfAnyType>(comm.rank());
    Engine engine(module, sgd(1.0, GetParam()), comm);
    for (const auto& f : module->frozen) {
      EXPECT_TRUE(same_bits(f, at::ones({3}, f.scalar_type()))) << f.dtype();
    }
  });
}

// "After construction every rank holds rank 0's weights": also what is in no group.
TEST_P(Hazards, ParametersInNoGroupAreEqualOnAllRanks) {
  run_thread_ranks(2, [&](Communicator& comm) {
    auto module = std::make_shared<Mlp23>(comm.rank());
    EngineOptions options;
    options.groups = {group(adamw_group(0.1), {{"w0", module->w0}})};
    Engine engine(module, adamw(0.1, GetParam()), comm, options);
    for (size_t i = 0; i < module->parameters().size(); ++i) {
      EXPECT_TRUE(same_bits(module->parameters()[i], Mlp23(0).parameters()[i])) << i;
    }
  });
}

TEST_P(Hazards, EvalKeepsSubmodulesModes) {
  struct Net : VectorModule {
    Net() : VectorModule(3) {
      backbone = register_module("backbone", std::make_shared<torch::nn::BatchNorm1dImpl>(3));
    }
    std::shared_ptr<torch::nn::BatchNorm1dImpl> backbone;
  };
  train<Net>(1, sgd(1.0, GetParam()), make<Net>(), [](Engine& engine, Net& m, int) {
    m.train();
    m.backbone->eval();  // a backbone whose statistics must not move
    { const auto scope = engine.eval(); }
    EXPECT_TRUE(m.is_training());
    EXPECT_FALSE(m.backbone->is_training());
  });
}

// --- Failures at construction --------------------------------------------------------------------

struct TwoParameters : torch::nn::Module {
  explicit TwoParameters(at::ScalarType second) {
    first = register_parameter("first", at::ones({3}) / 3);
    frozen = register_parameter("frozen", at::ones({3}) / 3, false);
    last = register_parameter("last", at::ones({3}, second));
  }
  at::Tensor first, frozen, last;
};

TEST_P(Hazards, RefusedModuleStaysAsItWas) {
  auto comm = make_single_communicator();
  auto module = std::make_shared<TwoParameters>(at::kComplexFloat);
  EngineOptions options;
  options.groups = {group(adamw_group(0.1), {{"first", module->first}, {"frozen", module->frozen}}),
                    group(adamw_group(0.1), {{"last", module->last}})};
  const std::string text = message_of<ShapeError>(
      [&] { Engine engine(module, adamw(0.1, GetParam(), DType::kBF16), *comm, options); });
  expect_parts(text, {"parameter last", "floating"});
  EXPECT_TRUE(same_bits(module->first, at::ones({3}) / 3));
  EXPECT_TRUE(same_bits(module->frozen, at::ones({3}) / 3));
}

// All ranks fail together, so that a program may catch the error and go on.
TEST_P(Hazards, WhatOneRankRefusesAllRanksRefuse) {
  run_thread_ranks(3, [&](Communicator& comm) {
    const bool bad = comm.rank() == 1;
    auto module = std::make_shared<TwoParameters>(bad ? at::kComplexFloat : at::kFloat);
    const auto build = [&] { Engine engine(module, adamw(0.1, GetParam()), comm); };
    if (bad) {
      expect_parts(message_of<ShapeError>(build), {"parameter last"});
    } else {
      expect_parts(message_of<CommError>(build), {"rank 1"});
    }
    comm.barrier();  // the communicator is in step on all ranks
  });
}

TEST_P(Hazards, RanksWithDifferentSettingsAreToldSo) {
  struct Case {
    const char* part;
    std::function<void(Config&)> change;
  };
  const std::vector<Case> cases = {
      {"stage", [](Config& c) { c.zero_stage = 1 - c.zero_stage; }},
      {"bf16", [](Config& c) { c.precision = DType::kBF16; }},
      {"accumulated in", [](Config& c) { c.grad_accum_dtype = DType::kBF16; }},
      {"clipping", [](Config& c) { c.gradient_clipping = 0.5; }},
      {"lr", [](Config& c) { c.optimizer.lr = 0.2; }},
      {"SGD", [](Config& c) { c.optimizer.kind = kernels::OptimizerKind::kSgd; }},
      {"weight_decay", [](Config& c) { c.optimizer.weight_decay = 0.3; }},
  };
  for (const Case& each : cases) {
    run_thread_ranks(2, [&](Communicator& comm) {
      Config config = adamw(0.1, GetParam());
      if (comm.rank() == 1) each.change(config);
      const std::string text = message_of<CommError>(
          [&] { Engine engine(std::make_shared<VectorModule>(3), config, comm); });
      expect_parts(text, {"different settings"});
      if (comm.rank() == 1) expect_parts(text, {each.part});
      comm.barrier();
    });
  }
}

}  // namespace
}  // namespace zerosharp
