// The bug this project was born from: a schedule that moves one set of groups while the optimizer
// reads another, and a warm-up that steps without a closure. Swept over stage, ranks and optimizer.
#include <gtest/gtest.h>

#include <type_traits>

#include "kernels/error.h"
#include "tests/support/run_ranks.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;
using kernels::OptimizerKind;

// Wrapping before sharding does not compile: the adapter takes the finished optimizer and nothing
// else, and is no LibTorch optimizer that a LibTorch scheduler could bind to.
static_assert(std::is_constructible_v<SamAdapter, Bf16Optimizer&, const SamConfig&>);
static_assert(!std::is_constructible_v<SamAdapter, torch::optim::Optimizer&, const SamConfig&>);
static_assert(!std::is_constructible_v<SamAdapter, torch::optim::SGD&, const SamConfig&>);
static_assert(!std::is_base_of_v<torch::optim::Optimizer, SamAdapter>);
static_assert(!std::is_convertible_v<SamAdapter*, torch::optim::Optimizer*>);
static_assert(!std::is_constructible_v<torch::optim::StepLR, SamAdapter&, unsigned, double>);
// Nobody can hold a second set of groups.
static_assert(!std::is_copy_constructible_v<ParamGroups>);
static_assert(!std::is_copy_assignable_v<ParamGroups>);

struct Case {
  int64_t stage;
  int world;
  OptimizerKind kind;
};

class SeedBug : public ::testing::TestWithParam<Case> {
 protected:
  static Config config(bool sam, double lr = 0.1) {
    Config config = toy_config(GetParam().kind, lr, GetParam().stage);
    config.optimizer.weight_decay = 0.01;
    if (GetParam().kind == OptimizerKind::kSgd) {
      config.optimizer.momentum = 0.9;
      config.optimizer.dampening = 0.1;
    }
    config.sam.enabled = sam;
    return config;
  }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int64_t stage : {0, 1}) {
    for (const int world : {1, 2, 4}) {
      for (const OptimizerKind kind : {OptimizerKind::kAdamW, OptimizerKind::kSgd}) {
        all.push_back({stage, world, kind});
      }
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(StageRanksOptimizer, SeedBug, ::testing::ValuesIn(cases()),
                         [](const auto& info) {
                           return "Stage" + std::to_string(info.param.stage) + "Ranks" +
                                  std::to_string(info.param.world) + kind_name(info.param.kind);
                         });

TEST_P(SeedBug, K1OneSetOfGroups) {
  train<QuadraticModule>(GetParam().world, config(/*sam=*/true),
                         make<QuadraticModule>(std::vector<float>{3, 4}),
                         [](Engine& engine, QuadraticModule& m, int) {
                           ASSERT_NE(engine.sam(), nullptr);
                           EXPECT_EQ(&engine.param_groups(), &engine.optimizer().param_groups());
                           EXPECT_EQ(&engine.param_groups(), &engine.sam()->param_groups());
                           // What is written through one is what the kernel uses: lr = 0 freezes
                           // the weights.
                           engine.sam()->param_groups()[0].lr = 0;
                           const at::Tensor before = m.w.detach().clone();
                           engine.train_batch([&](int64_t) { return m.loss(); });
                           EXPECT_TRUE(same_bits(before, m.w));
                           engine.sam()->param_groups()[0].lr = 0.5;
                           engine.train_batch([&](int64_t) { return m.loss(); });
                           EXPECT_FALSE(same_bits(before, m.w));
                         });
}

// T = 8 batches, LR warm-up over 2, final multiplier 0.1: the multipliers are those of Composer's
// CosineAnnealingWithWarmup, computed by hand to six digits.
constexpr double kAlpha[8] = {0, .5, 1, .939711, .775, .55, .325, .160289};

TEST_P(SeedBug, K2WeightsMoveExactlyWhenTheRateIsNotZero) {
  Config c = config(/*sam=*/true);
  c.train.steps = 8;
  c.scheduler = SchedulerConfig{};
  c.scheduler->kind = ScheduleKind::kCosine;
  c.scheduler->warmup_steps = 2;
  c.scheduler->alpha_f = 0.1;
  train<QuadraticModule>(GetParam().world, c, make<QuadraticModule>(std::vector<float>{3, 4, -2}),
                         [](Engine& engine, QuadraticModule& m, int) {
                           double first_loss = 0;
                           double last_loss = 0;
                           for (int t = 0; t < 8; ++t) {
                             const at::Tensor before = m.w.detach().clone();
                             EXPECT_NEAR(engine.lr(), 0.1 * kAlpha[t], 1e-7);
                             last_loss = engine.train_batch([&](int64_t) { return m.loss(); });
                             if (t == 0) first_loss = last_loss;
                             EXPECT_NEAR(engine.report().lr, 0.1 * kAlpha[t], 1e-7);
                             EXPECT_EQ(same_bits(before, m.w), kAlpha[t] == 0) << "batch " << t;
                             expect_clean_weights(engine);
                           }
                           EXPECT_LT(last_loss, first_loss);
                         });
}

TEST_P(SeedBug, K3WarmUpNeedsNoClosureAndIsInert) {
  for (const bool sam : {false, true}) {
    run_thread_ranks(GetParam().world, [&](Communicator& comm) {
      auto module = std::make_shared<VectorModule>(7);
      const at::Tensor given = module->w.detach().clone();
      comm.reset_stats();
      Engine engine(module, config(sam), comm);
      Bf16Optimizer& optimizer = engine.optimizer();
      EXPECT_TRUE(optimizer.states_initialized());
      EXPECT_TRUE(same_bits(given, module->w));
      const FlatGroup& group = *optimizer.flat_groups()[0];
      EXPECT_EQ(group.states().size(), GetParam().kind == OptimizerKind::kAdamW ? 2u : 1u);
      for (const auto& state : group.states()) {
        EXPECT_TRUE(same_bits(state, at::zeros_like(state)));  // +0, bit by bit
      }
      EXPECT_EQ(group.steps_applied(), std::vector<int64_t>{0});
      EXPECT_EQ(optimizer.applied_steps(), 0);
      EXPECT_EQ(optimizer.skipped_steps(), 0);
      EXPECT_EQ(engine.param_groups()[0].lr, 0.1);
      // A second call does nothing, and no call communicates.
      const int64_t calls = comm.sequence();
      const void* state = group.states().empty() ? nullptr : group.states()[0].data_ptr();
      optimizer.initialize_states();
      if (engine.sam() != nullptr) engine.sam()->initialize_states();
      EXPECT_EQ(comm.sequence(), calls);
      EXPECT_EQ(group.states().empty() ? nullptr : group.states()[0].data_ptr(), state);
    });
  }
}

/// Five steps with a changing gradient; `warm_up` false makes states at the first step.
std::vector<float> trajectory(int world, const Config& config, bool warm_up) {
  std::vector<float> weights;
  run_thread_ranks(world, [&](Communicator& comm) {
    VectorModule module(5);
    ParamGroupSpec spec;
    spec.options.kind = config.optimizer.kind;
    spec.options.lr = config.optimizer.lr;
    spec.options.weight_decay = config.optimizer.weight_decay;
    spec.options.momentum = config.optimizer.momentum;
    spec.options.dampening = config.optimizer.dampening;
    spec.parameters = {{"w", module.w}};
    OptimizerOptions options;
    options.stage = static_cast<int>(config.zero_stage);
    options.working = options.accumulator = DType::kF32;
    Bf16Optimizer optimizer({spec}, options, comm);
    if (warm_up) optimizer.initialize_states();
    EXPECT_EQ(optimizer.states_initialized(), warm_up);
    for (int i = 0; i < 5; ++i) {
      optimizer.begin();
      const at::Tensor loss = module.loss(at::arange(5, at::kFloat) - i);
      loss.backward();
      optimizer.add_loss(loss);
      optimizer.reduce();
      optimizer.step();
    }
    if (comm.rank() == 0) weights = values(module.w);
  });
  return weights;
}

TEST_P(SeedBug, K4WarmUpDoesNotChangeTheTrajectory) {
  const std::vector<float> with = trajectory(GetParam().world, config(false), true);
  const std::vector<float> without = trajectory(GetParam().world, config(false), false);
  EXPECT_EQ(std::memcmp(with.data(), without.data(), with.size() * sizeof(float)), 0);
}

// A zero-gradient step for warm-up would make the first real update of AdamW 0.744 · lr (its bias
// corrections would be those of step 2) and the first SGD buffer lose the dampening exemption.
TEST_P(SeedBug, FirstUpdateIsThatOfAFreshOptimizer) {
  Config c = config(false);
  c.optimizer.weight_decay = 0;
  auto module = train<VectorModule>(GetParam().world, c, make<VectorModule>(3),
                                    [](Engine& engine, VectorModule& m, int) {
                                      engine.train_batch([&](int64_t) { return m.loss(2); });
                                    });
  const double expected = GetParam().kind == OptimizerKind::kAdamW ? 0.1 : 0.2;
  for (int i = 0; i < 3; ++i) {
    EXPECT_NEAR(values(module->w)[static_cast<size_t>(i)], i + 1 - expected, 1e-6);
  }
}

TEST_P(SeedBug, StepWithoutAClosureIsRefused) {
  run_thread_ranks(GetParam().world, [&](Communicator& comm) {
    auto module = std::make_shared<VectorModule>(3);
    Engine engine(module, config(true), comm);
    const at::Tensor before = module->w.detach().clone();
    for (const auto& call : {std::function<void()>([&] { engine.sam()->step(); }),
                             std::function<void()>([&] { engine.sam()->step(PassClosure(), 1); }),
                             std::function<void()>([&] { engine.step(); }),
                             std::function<void()>([&] { engine.backward(module->loss(1)); })}) {
      try {
        call();
        ADD_FAILURE() << "was not refused";
      } catch (const ConfigError& error) {
        EXPECT_NE(std::string(error.what()).find("closure"), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find("train_batch"), std::string::npos) << error.what();
      }
    }
    EXPECT_TRUE(same_bits(before, module->w));
  });
}

}  // namespace
}  // namespace zerosharp
