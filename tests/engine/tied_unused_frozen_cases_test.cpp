// Tied, unused and frozen parameters: what users of partitioned training ran into.
#include <gtest/gtest.h>

#include "kernels/error.h"
#include "tests/support/run_ranks.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;

class UnusedCases : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Stages, UnusedCases, ::testing::Values(0, 1),
                         [](const auto& info) { return "Stage" + std::to_string(info.param); });

struct Tied : torch::nn::Module {  // DeepSpeed #988
  Tied() {
    auto a = register_module("a", std::make_shared<torch::nn::Module>());
    auto b = register_module("b", std::make_shared<torch::nn::Module>());
    w = a->register_parameter("w", at::arange(3, at::kFloat) + 1);
    b->register_parameter("w", w);
  }
  at::Tensor loss() const {
    return (w * at::tensor({1.f, 0.f, 0.f})).sum() + (w * at::tensor({0.f, 2.f, 0.f})).sum();
  }
  at::Tensor w;
};

TEST_P(UnusedCases, TiedParametersCountOnceAndAddUp) {
  auto module =
      train<Tied>(2, sgd(1.0, GetParam()), make<Tied>(), [](Engine& engine, Tied& m, int) {
        EXPECT_EQ(engine.optimizer().num_parameters(), 3);
        engine.train_batch([&](int64_t) { return m.loss(); });
      });
  EXPECT_EQ(values(module->w), (std::vector<float>{0, 0, 3}));
}

TEST_P(UnusedCases, OneTensorInTwoGroupsIsRefused) {  // DeepSpeed #195
  auto comm = make_single_communicator();
  auto module = std::make_shared<VectorModule>(3);
  const at::Tensor before = module->w.detach().clone();
  EngineOptions options;
  options.groups = {group(adamw_group(0.1), {{"emb.weight", module->w}}),
                    group(adamw_group(0.1), {{"emb.weight", module->w}})};
  try {
    Engine engine(module, adamw(0.1, GetParam()), *comm, options);
    FAIL() << "was not refused";
  } catch (const ShapeError& error) {
    const std::string text = error.what();
    for (const char* part : {"emb.weight", "group 0", "group 1"}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
  EXPECT_TRUE(same_bits(before, module->w));
}

// As in torch::optim: no gradient, no decay, no momentum.
TEST_P(UnusedCases, UnusedParametersAreLeftAlone) {  // DeepSpeed #777, PyTorch #28294
  Config config = adamw(0.1, GetParam());
  config.optimizer.weight_decay = 0.1;
  auto reference = std::make_shared<Unused>();
  torch::optim::AdamW adamw_reference(reference->parameters(),
                                      torch::optim::AdamWOptions(0.1).weight_decay(0.1));
  for (int i = 0; i < 3; ++i) {
    adamw_reference.zero_grad();
    reference->w.sum().backward();
    adamw_reference.step();
  }
  auto module = train<Unused>(2, config, make<Unused>(), [](Engine& engine, Unused& m, int) {
    for (int i = 0; i < 3; ++i) engine.train_batch([&](int64_t) { return m.w.sum(); });
  });
  EXPECT_TRUE(same_bits(module->u, at::ones({3})));
  EXPECT_TRUE(same_bits(module->v, at::ones({20})));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(values(module->w)[i], values(reference->w)[i], 1e-6);
  }
}

// A parameter that comes into use later starts with bias corrections of its own first step.
TEST_P(UnusedCases, LateParametersStartAsTheirOwnFirstStep) {
  auto reference = std::make_shared<Unused>();
  torch::optim::AdamW optimizer(reference->parameters(), torch::optim::AdamWOptions(0.1));
  const auto loss = [](Unused& m, int step) {
    return step < 2 ? m.w.sum() : m.w.sum() + 3 * m.u.sum();
  };
  for (int i = 0; i < 4; ++i) {
    optimizer.zero_grad();
    loss(*reference, i).backward();
    optimizer.step();
  }
  Config config = adamw(0.1, GetParam());
  config.optimizer.weight_decay = 0.01;  // torch's default
  auto module = train<Unused>(2, config, make<Unused>(), [&](Engine& engine, Unused& m, int) {
    for (int i = 0; i < 4; ++i) engine.train_batch([&](int64_t) { return loss(m, i); });
  });
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(values(module->w)[i], values(reference->w)[i], 1e-6);
    EXPECT_NEAR(values(module->u)[i], values(reference->u)[i], 1e-6);
  }
}

struct TwoHeads : torch::nn::Module {
  TwoHeads() {
    h1 = register_parameter("h1", at::arange(3, at::kFloat) + 1);
    h2 = register_parameter("h2", at::arange(3, at::kFloat) + 1);
  }
  at::Tensor h1, h2;
};

TEST_P(UnusedCases, BranchesThatDifferBetweenRanksAddZero) {  // DeepSpeed #7998
  auto module = train<TwoHeads>(
      2, sgd(1.0, GetParam()), make<TwoHeads>(), [](Engine& engine, TwoHeads& m, int rank) {
        // The first step leaves gradients behind that the second must not see.
        engine.train_batch([&](int64_t) { return 2 * m.h1.sum() + 2 * m.h2.sum(); });
        EXPECT_NEAR(engine.global_grad_norm(), std::sqrt(6 * 4.0), 1e-6);
        engine.train_batch([&](int64_t) { return rank == 0 ? m.h1.sum() : m.h2.sum(); });
        EXPECT_NEAR(engine.global_grad_norm(), std::sqrt(6 * 0.25), 1e-6);
      });
  EXPECT_EQ(values(module->h1), (std::vector<float>{-1.5, -0.5, 0.5}));
  EXPECT_EQ(values(module->h2), (std::vector<float>{-1.5, -0.5, 0.5}));
}

TEST_P(UnusedCases, WhatIsUnusedNowAddsNothingToTheNorm) {
  train<TwoHeads>(1, sgd(0.0, GetParam()), make<TwoHeads>(), [](Engine& engine, TwoHeads& m, int) {
    engine.train_batch([&](int64_t) { return m.h1.sum() + 100 * m.h2.sum(); });
    engine.train_batch([&](int64_t) { return m.h1.sum(); });
    EXPECT_NEAR(engine.global_grad_norm(), std::sqrt(3.0), 1e-6);
  });
}

TEST_P(UnusedCases, FrozenParametersTakeTheWorkingTypeAndStay) {
  struct Frozen : VectorModule {
    Frozen() : VectorModule(3) {
      f = register_parameter("f", at::ones({4}) / 3, /*requires_grad=*/false);
    }
    at::Tensor f;
  };
  auto module = train<Frozen>(2, sgd(1.0, GetParam(), DType::kBF16), make<Frozen>(),
                              [](Engine& engine, Frozen& m, int) {
                                EXPECT_EQ(engine.optimizer().num_parameters(), 3);
                                engine.train_batch([&](int64_t) { return m.loss(1); });
                              });
  EXPECT_EQ(module->f.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(same_bits(module->f, (at::ones({4}) / 3).to(at::kBFloat16)));
}

TEST(UnusableModules, NothingTrainableIsRefused) {
  auto comm = make_single_communicator();
  auto module = std::make_shared<VectorModule>(3);
  module->w.set_requires_grad(false);
  EXPECT_THROW(Engine(module, sgd(1.0), *comm), ShapeError);
}

TEST(UnusableModules, RanksWithDifferentParametersAreToldSo) {
  try {
    run_thread_ranks(2, [](Communicator& comm) {
      Engine engine(std::make_shared<VectorModule>(3 + comm.rank()), sgd(1.0), comm);
    });
    FAIL() << "no error";
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("different parameters"), std::string::npos);
  }
}

TEST_P(UnusedCases, EveryRankStartsWithRankZerosWeightsAndBuffers) {  // detr #544
  struct WithBuffers : Mlp23 {
    explicit WithBuffers(int rank) : Mlp23(rank) {
      mean = register_buffer("mean", at::full({3}, static_cast<float>(rank)));
      count = register_buffer("count", at::full({}, rank, at::kLong));
    }
    at::Tensor mean, count;
  };
  const Mlp23 first(0);
  run_thread_ranks(3, [&](Communicator& comm) {
    auto module = std::make_shared<WithBuffers>(comm.rank());
    Engine engine(module, adamw(0.1, GetParam()), comm);
    for (size_t i = 0; i < first.parameters().size(); ++i) {
      EXPECT_TRUE(same_bits(module->parameters()[i], first.parameters()[i]));
    }
    EXPECT_TRUE(same_bits(module->mean, at::zeros({3})));
    EXPECT_EQ(module->count.item<int64_t>(), 0);
  });
}

}  // namespace
}  // namespace zerosharp
