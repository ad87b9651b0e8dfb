// Runs in Composer's words: the tests of the bug this project was born from, decoupled decay, and
// what SAM takes from schedules and times.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "kernels/error.h"
#include "tests/support/run_ranks.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;

/// The classifier of Composer's tests/algorithms/test_sam.py: average pool, Linear(1, 8), ReLU,
/// Linear(8, 2), softmax.
struct SimpleClassifier : torch::nn::Module {
  SimpleClassifier() {
    auto generator = at::detail::createCPUGenerator(5);
    w1 = register_parameter("fc1_weight", at::randn({8, 1}, generator));
    b1 = register_parameter("fc1_bias", at::zeros({8}));
    w2 = register_parameter("fc2_weight", at::randn({2, 8}, generator) * 0.5);
    b2 = register_parameter("fc2_bias", at::zeros({2}));
  }
  at::Tensor forward(const at::Tensor& images) const {
    const at::Tensor x = images.mean({2, 3}).to(w1.scalar_type());
    return at::softmax(at::linear(at::relu(at::linear(x, w1, b1)), w2, b2).to(at::kFloat), 1);
  }
  at::Tensor w1, b1, w2, b2;
};

/// 16 samples of 1×1×1 in 2 classes; four a rank and step, every rank others.
struct SixteenSamples {
  SixteenSamples() {
    auto generator = at::detail::createCPUGenerator(17);
    images = at::randn({16, 1, 1, 1}, generator);
    labels = at::randint(0, 2, {16}, generator, at::kLong);
  }
  std::pair<at::Tensor, at::Tensor> batch(int64_t step, int rank, int world) const {
    const int64_t begin = (step * 4 * world + 4 * rank) % 16;
    return {images.narrow(0, begin, 4), labels.narrow(0, begin, 4)};
  }
  at::Tensor images, labels;
};

struct Place {
  int64_t stage;
  int world;
  bool bf16;
};

class ComposerSeedTests : public ::testing::TestWithParam<Place> {
 protected:
  static Config config() {
    const Place& place = GetParam();
    const std::string json =
        R"({"max_duration": "2ep", "global_train_batch_size": )" + std::to_string(4 * place.world) +
        R"(, "optimizer": {"name": "decoupled_sgdw", "lr": 0.1},
            "scheduler": {"name": "cosine_with_warmup", "t_warmup": "0.01dur", "t_max": "1dur",
                          "alpha_f": 0.1, "lr_compat": "composer"},
            "algorithms": {"sam": {}}, "precision": )" +
        (place.bf16 ? R"("amp_bf16")" : R"("fp32")") + R"(, "zero_optimization": {"stage": )" +
        std::to_string(place.stage) + "}}";
    return parse_config(json, "test", {}, place.world);
  }
  static EngineOptions options() {
    EngineOptions options;
    options.batches_per_epoch = 4 / GetParam().world;
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(StageAndRanks, ComposerSeedTests,
                         ::testing::Values(Place{0, 1, false}, Place{0, 1, true}, Place{1, 1, true},
                                           Place{0, 2, false}, Place{0, 2, true},
                                           Place{1, 2, false}, Place{1, 2, true}),
                         [](const auto& info) {
                           return "Stage" + std::to_string(info.param.stage) + "Ranks" +
                                  std::to_string(info.param.world) +
                                  (info.param.bf16 ? "Bf16" : "Fp32");
                         });

// T0: a loss made of two weighted cross entropies. There the run only had to end.
TEST_P(ComposerSeedTests, T0LossOfTwoParts) {
  const SixteenSamples data;
  const int world = GetParam().world;
  train<SimpleClassifier>(
      world, config(), make<SimpleClassifier>(),
      [&](Engine& engine, SimpleClassifier& m, int rank) {
        std::vector<double> losses;
        for (int64_t step = 0; step < engine.config().train.steps; ++step) {
          const auto [x, y] = data.batch(step, rank, world);
          losses.push_back(engine.train_batch([&, x = x, y = y](int64_t) {
            const at::Tensor p = m.forward(x);
            return 0.25 * at::cross_entropy_loss(p, y) + 0.75 * at::cross_entropy_loss(p, y);
          }));
          EXPECT_TRUE(engine.was_step_applied());
        }
        EXPECT_EQ(losses.size(), 8u / static_cast<size_t>(world));
      },
      options());
}

// T1 and T2, with what upstream's could not see: the exact rates, that weights move, that each step
// has two passes. 0.01dur of 8 or 4 batches is no warm-up.
TEST_P(ComposerSeedTests, T1AndT2GroupsAndTheirRates) {
  const SixteenSamples data;
  const int world = GetParam().world;
  const auto alpha = [&](int t) {
    return 0.1 + 0.9 * (1 + std::cos(std::acos(-1.0) * t / (8.0 / world))) / 2;
  };
  train<SimpleClassifier>(
      world, config(), make<SimpleClassifier>(),
      [&](Engine& engine, SimpleClassifier& m, int rank) {
        ASSERT_NE(engine.sam(), nullptr);
        EXPECT_EQ(&engine.sam()->param_groups(), &engine.optimizer().param_groups());  // T1
        const int64_t steps = engine.config().train.steps;
        ASSERT_EQ(steps, 8 / world);
        const at::Tensor before = m.w2.detach().clone();
        std::map<int, int> calls;
        for (int64_t step = 0; step < steps; ++step) {
          const auto [x, y] = data.batch(step, rank, world);
          engine.train_batch([&, x = x, y = y](const PassContext& context) {
            ++calls[context.pass];
            return at::cross_entropy_loss(m.forward(x), y);
          });
          EXPECT_NEAR(engine.report().lr, 0.1 * alpha(std::max(0, static_cast<int>(step) - 1)),
                      1e-12);
        }
        // T2: the rate of the last batch, of the adapter and of the optimizer that stepped.
        EXPECT_NEAR(engine.sam()->param_groups()[0].lr, world == 1 ? 0.0231802 : 0.0550000, 1e-7);
        // What Composer leaves behind: its schedule steps once more before the time moves on.
        EXPECT_NEAR(engine.lr(), world == 1 ? 0.0134254 : 0.0231802, 1e-7);
        EXPECT_EQ(engine.sam()->param_groups()[0].lr, engine.optimizer().param_groups()[0].lr);
        EXPECT_FALSE(same_bits(before, m.w2));
        EXPECT_EQ(calls[0], steps);
        EXPECT_EQ(calls[1], steps);
      },
      options());
}

/// A module with one parameter that every rank owns a piece of.
Factory<VectorModule> vector(int64_t n = 200) { return make<VectorModule>(n, 0.5, 0.01); }

Config composer_config(const std::string& more, int64_t stage, int world) {
  return parse_config(R"({"train_batch_size": )" + std::to_string(world) +
                          R"(, "zero_optimization": {"stage": )" + std::to_string(stage) + "}, " +
                          more + "}",
                      "test", {}, world);
}

class DecoupledDecay : public ::testing::TestWithParam<std::tuple<int64_t, int, const char*>> {};

INSTANTIATE_TEST_SUITE_P(StageRanksOptimizer, DecoupledDecay,
                         ::testing::Combine(::testing::Values(0, 1), ::testing::Values(1, 2),
                                            ::testing::Values("decoupled_sgdw", "decoupled_adamw",
                                                              "decoupled_lionw")));

// w ← w·(1 − (lr/initial_lr)·wd), then the update; in float64, with a constant gradient of 2. The
// flaw it is told from, 1 − lr·wd, would leave ten times less decay at this rate.
TEST_P(DecoupledDecay, FollowsTheShapeOfTheSchedule) {
  const auto [stage, world, name] = GetParam();
  const std::string optimizer = name;
  const Config config = composer_config(
      R"("optimizer": {"name": ")" + optimizer + R"(", "lr": 0.1, "weight_decay": 0.05},
         "scheduler": {"name": "linear", "t_max": "6ba"}, "max_duration": "6ba")",
      stage, world);
  std::vector<double> w(200);
  for (size_t i = 0; i < w.size(); ++i) w[i] = 0.5 + 0.01 * static_cast<double>(i);
  std::vector<double> flawed = w;
  double m = 0, v = 0;
  for (int t = 0; t < 6; ++t) {
    const double alpha = 1 - t / 6.0;
    const double lr = 0.1 * alpha;
    double update = lr * 2;  // SGD
    if (optimizer == "decoupled_lionw") update = lr;
    if (optimizer == "decoupled_adamw") {
      m = 0.9 * m + 0.1 * 2;
      v = 0.95 * v + 0.05 * 4;
      update = lr * (m / (1 - std::pow(0.9, t + 1))) /
               (std::sqrt(v / (1 - std::pow(0.95, t + 1))) + 1e-8);
    }
    for (double& x : w) x = x * (1 - alpha * 0.05) - update;
    for (double& x : flawed) x = x * (1 - lr * 0.05) - update;
  }
  const auto trained =
      train<VectorModule>(world, config, vector(), [](Engine& engine, VectorModule& module, int) {
        for (int t = 0; t < 6; ++t) engine.train_batch([&](int64_t) { return module.loss(2.0); });
      });
  const std::vector<float> result = values(trained->w);
  for (size_t i = 0; i < w.size(); ++i) {
    EXPECT_NEAR(result[i], w[i], 2e-6) << i;
    EXPECT_GT(std::abs(flawed[i] - w[i]), 1e-2) << i;
  }
}

TEST(DecoupledDecay, IsWholeWhereTheInitialRateIsZero) {
  for (const bool zero : {true, false}) {
    Config config = sgd(0.0);
    config.optimizer.scheduled_decay = config.optimizer.decoupled_decay = true;
    config.optimizer.weight_decay = 0.25;
    if (!zero) config.optimizer.lr = 0.5;
    const auto trained =
        train<VectorModule>(1, config, vector(), [](Engine& engine, VectorModule& m, int) {
          engine.param_groups()[0].lr = 0;  // lr/initial_lr: 0/0 is taken as 1, 0/0.5 is 0
          engine.train_batch([&](int64_t) { return m.loss(1.0); });
        });
    EXPECT_FLOAT_EQ(values(trained->w)[0], zero ? 0.375f : 0.5f);
  }
}

TEST(DecoupledDecay, NeedsDecayThatIsDecoupled) {
  Config config = sgd(0.1);
  config.optimizer.scheduled_decay = true;
  run_thread_ranks(1, [&](Communicator& comm) {
    EXPECT_THROW(Engine(std::make_shared<VectorModule>(4), config, comm), ConfigError);
  });
}

/// ρ and the number of passes of each step of a run.
struct Steps {
  std::vector<double> rho;
  std::vector<int> passes;
  std::vector<double> lr;
  std::vector<std::string> warnings;
};

Steps run(const std::string& more, int world = 2, int64_t stage = 1, EngineOptions options = {}) {
  Steps steps;
  train<VectorModule>(
      world, composer_config(more, stage, world), vector(),
      [&](Engine& engine, VectorModule& m, int rank) {
        if (rank == 0) steps.warnings = engine.take_warnings();
        for (int64_t step = 0; step < engine.config().train.steps; ++step) {
          int passes = 0;
          engine.train_batch([&](const PassContext&) {
            ++passes;
            return m.loss(1.0);
          });
          if (rank != 0) continue;
          const StepOutcome& outcome = engine.report().outcome;
          steps.rho.push_back(outcome.perturbed ? outcome.rho : 0);
          steps.passes.push_back(passes);
          steps.lr.push_back(engine.report().lr);
          if (outcome.perturbed) EXPECT_NEAR(outcome.e_norm, outcome.rho, 1e-6);
        }
      },
      options);
  return steps;
}

void expect_near(const std::vector<double>& a, const std::vector<double>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-9) << "step " << i;
}

// GSAM's rule reads the rate that the same step will use, the first one included.
TEST(RhoSchedule, LinearInTheRate) {
  const std::string common =
      R"("max_duration": "5ba", "optimizer": {"name": "decoupled_sgdw", "lr": 0.2},
         "scheduler": {"name": "linear", "alpha_f": 0.5},
         "sam": {"enabled": true, "rho": 0.3, "rho_scheduler": {"name": "linear_in_lr")";
  for (const int64_t stage : {0, 1}) {
    const Steps steps = run(common + R"(, "rho_min": 0.1, "lr_min": 0.1}})", 2, stage);
    expect_near(steps.lr, {.2, .18, .16, .14, .12});
    expect_near(steps.rho, {.3, .26, .22, .18, .14});
  }
  // Below lr_min ρ falls on, but not below 0.
  const Steps low = run(common + R"(, "lr_min": 0.15}})");
  expect_near(low.rho, {.3, .18, .06, 0, 0});
}

TEST(RhoSchedule, AnyShapeOfARate) {
  const Steps steps = run(R"("max_duration": "4ba", "sam": {"enabled": true, "rho": 0.4,
      "rho_scheduler": {"name": "linear_with_warmup", "t_warmup": "2ba"}})");
  expect_near(steps.rho, {0, .2, .4, .2});
}

TEST(SamTimes, StartAndEnd) {
  const Steps steps = run(R"("max_duration": "8ba", "sam": {"enabled": true, "start": "0.25dur",
                             "end": "6ba"})");
  EXPECT_EQ(steps.passes, (std::vector<int>{1, 1, 2, 2, 2, 2, 1, 1}));
  EngineOptions options;
  options.batches_per_epoch = 3;
  options.tokens_per_sample = 10;
  // Two samples a step: "8sp" is over after 4 steps; "21tok" is reached in the middle of the
  // second.
  EXPECT_EQ(
      run(R"("max_duration": "8sp", "sam": {"enabled": true, "start": "21tok"})", 2, 1, options)
          .passes,
      (std::vector<int>{1, 1, 2, 2}));
  EXPECT_EQ(run(R"("max_duration": "2ep", "sam": {"enabled": true, "start": "1ep"})", 2, 1, options)
                .passes,
            (std::vector<int>{1, 1, 1, 2, 2, 2}));
}

// A schedule under scheduler.type ends with the run, however its length is given.
TEST(SamTimes, DurationEndsDeepSpeedsSchedulesToo) {
  const Steps steps = run(R"("max_duration": "4ba", "optimizer": {"name": "decoupled_sgdw",
      "lr": 0.4}, "scheduler": {"type": "linear"})");
  expect_near(steps.lr, {.4, .3, .2, .1});
}

TEST(SamTimes, ZeroRateHasBothPassesUnlessSaved) {
  const std::string text = R"("max_duration": "4ba",
      "scheduler": {"name": "constant_with_warmup", "t_warmup": "2ba", "lr_compat": "composer"},
      "sam": {"enabled": true, "skip_when_lr_zero": )";
  const Steps both = run(text + "false}");
  expect_near(both.lr, {0, 0, .0005, .001});  // two batches of rate 0, as in Composer
  EXPECT_EQ(both.passes, (std::vector<int>{2, 2, 2, 2}));
  EXPECT_EQ(run(text + "true}").passes, (std::vector<int>{1, 1, 2, 2}));
}

TEST(SamTimes, ARunThatEndsBeforeItsFirstPerturbationWarns) {
  const auto warning = [](const std::string& sam) {
    std::string all;
    for (const auto& line :
         run(R"("max_duration": "4ba", "sam": {"enabled": true, )" + sam + "}").warnings) {
      all += line;
    }
    return all;
  };
  EXPECT_NE(warning(R"("start_step": 4)").find("SAM is never active"), std::string::npos);
  EXPECT_NE(warning(R"("interval": 5)").find("the run has only 4 steps"), std::string::npos);
  EXPECT_NE(warning(R"("interval": 3, "end_step": 2)").find("sam.end_step is 2"),
            std::string::npos);
  EXPECT_EQ(warning(R"("start_step": 3)"), "");
  EXPECT_EQ(warning(R"("interval": 4)"), "");
}

TEST(SamTimes, RefusesWhatTheRunDoesNotKnow) {
  const auto refuse = [](const std::string& more) {
    run_thread_ranks(1, [&](Communicator& comm) {
      auto module = std::make_shared<VectorModule>(4);
      const at::Tensor before = module->w.clone();
      EXPECT_THROW(Engine(module, composer_config(more, 1, 1), comm), ConfigError) << more;
      EXPECT_TRUE(same_bits(before, module->w));
    });
  };
  refuse(R"("max_duration": "2ep")");
  refuse(R"("sam": {"enabled": true, "start": "0.5dur"})");
  refuse(R"("max_duration": "8ba", "sam": {"enabled": true, "start": "4ba", "end": "2ba"})");
  refuse(R"("max_duration": "8ba", "scheduler": {"name": "cosine", "t_max": "4ba"})");
}

}  // namespace
}  // namespace zerosharp
