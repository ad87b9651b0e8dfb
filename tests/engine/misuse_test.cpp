// Groups, numbers and closures that make no sense, and what a failure leaves behind.
#include <gtest/gtest.h>

#include <limits>
#include <optional>

#include "kernels/error.h"
#include "tests/support/messages.h"
#include "tests/support/run_ranks.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;

class Misuse : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Stages, Misuse, ::testing::Values(0, 1));

// --- Groups --------------------------------------------------------------------------------------

TEST_P(Misuse, GroupsOfDifferentKindsStepAsAlone) {
  Mlp23 reference(0);
  torch::optim::AdamW first({reference.w0, reference.b0},
                            torch::optim::AdamWOptions(0.05).weight_decay(0.2));
  torch::optim::SGD second({reference.w2, reference.b2},
                           torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1));
  for (int i = 0; i < 6; ++i) {
    first.zero_grad();
    second.zero_grad();
    reference.loss(0, 8).backward();
    first.step();
    second.step();
  }
  for (const int world : {1, 2, 4}) {
    run_thread_ranks(world, [&](Communicator& comm) {
      auto m = std::make_shared<Mlp23>(0);
      ParamGroup sgd_options;
      sgd_options.kind = kernels::OptimizerKind::kSgd;
      sgd_options.lr = 0.1;
      sgd_options.momentum = 0.9;
      sgd_options.weight_decay = 0.1;
      EngineOptions options;
      options.groups = {group(adamw_group(0.05, 0.2), {{"w0", m->w0}, {"b0", m->b0}}),
                        group(sgd_options, {{"w2", m->w2}, {"b2", m->b2}})};
      Engine engine(m, adamw(99, GetParam()), comm, options);
      const int64_t rows = 8 / world;
      for (int i = 0; i < 6; ++i) {
        engine.train_batch(
            [&](int64_t) { return m->loss(comm.rank() * rows, (comm.rank() + 1) * rows); });
      }
      for (size_t p = 0; p < 4; ++p) {
        const auto ours = values(m->parameters()[p]);
        const auto theirs = values(reference.parameters()[p]);
        for (size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(ours[i], theirs[i], 3e-6);
      }
    });
  }
}

// A group that gives only `lr` is scheduled from it.
TEST_P(Misuse, SchedulesStartFromTheRateOfTheGroup) {
  auto comm = make_single_communicator();
  auto module = std::make_shared<VectorModule>(3);
  EngineOptions options;
  ParamGroup given;
  given.kind = kernels::OptimizerKind::kSgd;
  given.lr = 0.5;
  options.groups = {group(given, {{"w", module->w}})};
  Config config = sgd(99.0, GetParam());
  config.scheduler = SchedulerConfig{};
  config.scheduler->kind = ScheduleKind::kConstant;
  Engine engine(module, config, *comm, options);
  engine.train_batch([&](int64_t) { return module->loss(1.0); });
  EXPECT_EQ(values(module->w), (std::vector<float>{0.5, 1.5, 2.5}));
}

struct BadNumber {
  const char* part;
  void (*set)(ParamGroup&);
};

const BadNumber kBadNumbers[] = {
    {"lr", [](ParamGroup& g) { g.lr = std::numeric_limits<double>::quiet_NaN(); }},
    {"lr", [](ParamGroup& g) { g.lr = -0.1; }},
    {"lr", [](ParamGroup& g) { g.lr = std::numeric_limits<double>::infinity(); }},
    {"beta1", [](ParamGroup& g) { g.beta1 = 1.0; }},
    {"beta2", [](ParamGroup& g) { g.beta2 = -0.5; }},
    {"eps", [](ParamGroup& g) { g.eps = -1e-8; }},
    {"weight_decay", [](ParamGroup& g) { g.weight_decay = std::nan(""); }},
    {"momentum", [](ParamGroup& g) { g.momentum = -0.9; }},
};

TEST_P(Misuse, NumbersThatMakeNoSenseAreRefusedAtConstruction) {
  auto comm = make_single_communicator();
  for (const BadNumber& bad : kBadNumbers) {
    auto module = std::make_shared<VectorModule>(3);
    EngineOptions options;
    ParamGroup given = adamw_group(0.1);
    given.name = "decay";
    bad.set(given);
    options.groups = {group(given, {{"w", module->w}})};
    const std::string text = message_of<ConfigError>(
        [&] { Engine engine(module, adamw(0.1, GetParam()), *comm, options); });
    expect_parts(text, {bad.part, "decay"});
  }
}

// … and at the step, since param_groups() may be written at any time. Nothing changes.
TEST_P(Misuse, NumbersThatMakeNoSenseAreRefusedAtTheStep) {
  for (const BadNumber& bad : kBadNumbers) {
    train<VectorModule>(2, adamw(0.1, GetParam()), make<VectorModule>(3),
                        [&](Engine& engine, VectorModule& m, int) {
                          bad.set(engine.param_groups()[0]);
                          const std::string text = message_of<ConfigError>(
                              [&] { engine.train_batch([&](int64_t) { return m.loss(1.0); }); });
                          expect_parts(text, {bad.part, "group 0"});
                          EXPECT_EQ(values(m.w), (std::vector<float>{1, 2, 3}));
                        });
  }
}

// Also on the ranks that own nothing of the group.
TEST_P(Misuse, KindOfAGroupCannotChange) {
  train<VectorModule>(3, sgd(0.1, GetParam()), make<VectorModule>(3),
                      [](Engine& engine, VectorModule& m, int) {
                        engine.train_batch([&](int64_t) { return m.loss(0.0); });
                        engine.param_groups()[0].kind = kernels::OptimizerKind::kAdamW;
                        const std::string text = message_of<ConfigError>(
                            [&] { engine.train_batch([&](int64_t) { return m.loss(1.0); }); });
                        expect_parts(text, {"group 0", "SGD", "AdamW"});
                      });
}

// Like torch.optim.SGD whose momentum is switched on later: the buffer starts empty.
TEST_P(Misuse, MomentumMayBeSwitchedOnLater) {
  train<VectorModule>(
      3, sgd(1.0, GetParam()), make<VectorModule>(3), [](Engine& engine, VectorModule& m, int) {
        const auto step = [&] { engine.train_batch([&](int64_t) { return m.loss(1.0); }); };
        step();  // −1
        engine.param_groups()[0].momentum = 0.5;
        step();  // −1
        step();  // −1.5
        EXPECT_EQ(values(m.w), (std::vector<float>{-2.5, -1.5, -0.5}));
      });
}

TEST_P(Misuse, BetasMayChangeBetweenSteps) {
  auto m =
      train<VectorModule>(2, toy_config(kernels::OptimizerKind::kLion, 1.0, GetParam()),
                          make<VectorModule>(3), [](Engine& engine, VectorModule& module, int) {
                            const auto step = [&](double g) {
                              engine.train_batch([&](int64_t) { return module.loss(g); });
                            };
                            engine.param_groups()[0].beta2 = 0.5;
                            step(1);  // −1; m = 0.5
                            engine.param_groups()[0].beta1 = 0.25;
                            step(-1);  // sign(0.25·0.5 − 0.75) = −1: +1; m = −0.25
                            engine.param_groups()[0].beta1 = 0.9;
                            step(1);  // sign(0.9·(−0.25) + 0.1) = −1: +1
                          });
  EXPECT_EQ(values(m->w), (std::vector<float>{2, 3, 4}));
}

// --- Foreign optimizers --------------------------------------------------------------------------

TEST_P(Misuse, ForeignOptimizerThatEvaluatesTheLossAgainIsRefused) {
  auto comm = make_single_communicator();
  EngineOptions options;
  options.foreign_optimizer = [](std::vector<at::Tensor> shards) {
    return std::make_unique<torch::optim::LBFGS>(shards, torch::optim::LBFGSOptions(0.1));
  };
  const std::string text = message_of<ConfigError>([&] {
    Engine engine(std::make_shared<VectorModule>(3), sgd(0.1, GetParam()), *comm, options);
  });
  expect_parts(text, {"LBFGS"});
}

TEST_P(Misuse, ForeignOptimizerWithOneGroupCannotFollowTwoRates) {
  train<Mlp23>(2, sgd(0.1, GetParam()), make<Mlp23>(0), [&](Engine&, Mlp23&, int) {});
  run_thread_ranks(2, [&](Communicator& comm) {
    auto m = std::make_shared<Mlp23>(0);
    EngineOptions options;
    options.groups = {group(adamw_group(0.1), {{"w0", m->w0}, {"b0", m->b0}}),
                      group(adamw_group(0.1), {{"w2", m->w2}, {"b2", m->b2}})};
    options.foreign_optimizer = [](std::vector<at::Tensor> shards) {
      return std::make_unique<torch::optim::SGD>(shards, torch::optim::SGDOptions(1.0));
    };
    Engine engine(m, sgd(0.1, GetParam()), comm, options);
    engine.train_batch([&](int64_t) { return m->loss(0, 8); });  // equal rates: fine
    engine.param_groups()[1].lr = 0.2;
    const std::string text = message_of<ConfigError>(
        [&] { engine.train_batch([&](int64_t) { return m->loss(0, 8); }); });
    expect_parts(text, {"one group", "0.1", "0.2"});
  });
}

// --- After a failure -----------------------------------------------------------------------------

TEST_P(Misuse, FailedStepLeavesNoTrace) {
  Config config = adamw(0.05, GetParam());
  config.batch.accumulation_steps = 2;
  const auto run = [&](bool fails) {
    return train<Mlp23>(3, config, make<Mlp23>(0), [&](Engine& engine, Mlp23& m, int rank) {
      for (int step = 0; step < 5; ++step) {
        if (fails && step == 2) {
          const auto attempt = [&] {
            engine.train_batch([&](int64_t micro) {
              if (rank == 1 && micro == 1) throw std::out_of_range("no such sample");
              return 100 * m.loss(0, 8);
            });
          };
          if (rank == 1) {
            EXPECT_THROW(attempt(), std::out_of_range);
          } else {
            expect_parts(message_of<CommError>(attempt), {"rank 1"});
          }
        }
        engine.train_batch([&](int64_t micro) { return m.loss(rank + micro, rank + micro + 4); });
      }
    });
  };
  const auto failed = run(true)->parameters();
  const auto clean = run(false)->parameters();
  for (size_t i = 0; i < clean.size(); ++i) EXPECT_TRUE(same_bits(failed[i], clean[i]));
}

TEST_P(Misuse, ReportTellsOfAFailedStep) {
  train<VectorModule>(2, sgd(1.0, GetParam()), make<VectorModule>(3),
                      [](Engine& engine, VectorModule& m, int rank) {
                        engine.train_batch([&](int64_t) { return m.loss(1.0); });
                        EXPECT_TRUE(engine.was_step_applied());
                        EXPECT_ANY_THROW(engine.train_batch([&](int64_t) {
                          if (rank == 1) throw std::runtime_error("broken");
                          return m.loss(1.0);
                        }));
                        EXPECT_FALSE(engine.was_step_applied());
                        EXPECT_EQ(engine.report().step, 2);
                        EXPECT_EQ(engine.report().outcome.num_failed, 1);
                        EXPECT_EQ(engine.report().outcome.failed_rank, 1);
                        EXPECT_EQ(engine.skipped_steps(), 1);
                      });
}

TEST_P(Misuse, EvaluationBetweenBackwardAndStepChangesNothing) {
  train<VectorModule>(2, sgd(1.0, GetParam()), make<VectorModule>(3),
                      [](Engine& engine, VectorModule& m, int) {
                        engine.backward(m.loss(1.0));
                        {
                          const auto scope = engine.eval();
                          EXPECT_EQ(m.loss(1.0).item<float>(), 6.0f);
                        }
                        engine.step();
                        EXPECT_EQ(values(m.w), (std::vector<float>{0, 1, 2}));
                      });
}

// --- Configurations built by hand ----------------------------------------------------------------

TEST_P(Misuse, BatchNumbersOfAHandmadeConfigurationAreChecked) {
  auto comm = make_single_communicator();
  for (const int64_t steps : {0, -1}) {
    Config config = sgd(1.0, GetParam());
    config.batch.accumulation_steps = steps;
    const std::string text = message_of<ConfigError>(
        [&] { Engine engine(std::make_shared<VectorModule>(3), config, *comm); });
    expect_parts(text, {"gradient_accumulation_steps", std::to_string(steps)});
  }
}

}  // namespace
}  // namespace zerosharp
