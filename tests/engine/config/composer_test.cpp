// Composer's times, schedules and names. Expected values are Composer's published ones or written
// out from the definitions.
#include <cmath>
#include <numbers>

#include "engine/composer_schedule.h"
#include "engine/config/key_table.h"
#include "tests/engine/config/parse.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;
using kernels::OptimizerKind;

std::string time_error(const std::string& text) {
  try {
    parse_time(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << text;
  return {};
}

void expect_time(const std::string& text, double value, TimeUnit unit) {
  const Time time = parse_time(text);
  EXPECT_EQ(time.value, value) << text;
  EXPECT_EQ(time.unit, unit) << text;
}

TEST(TimeString, NumberAndUnit) {
  expect_time("100ba", 100, TimeUnit::kBatch);
  expect_time("2EP", 2, TimeUnit::kEpoch);
  expect_time("3e4tok", 30000, TimeUnit::kToken);
  expect_time("1000.0sp", 1000, TimeUnit::kSample);
  expect_time("0.01dur", 0.01, TimeUnit::kDuration);
  expect_time("7iter", 7, TimeUnit::kIteration);
  expect_time("90sec", 90, TimeUnit::kSecond);
  EXPECT_EQ(parse_time("3", TimeUnit::kEpoch).unit, TimeUnit::kEpoch);
}

TEST(TimeString, ClockTimesAreSeconds) {
  expect_time("1h30m", 5400, TimeUnit::kSecond);
  expect_time("23h59m59s", 86399, TimeUnit::kSecond);
  expect_time("45s", 45, TimeUnit::kSecond);
  expect_time("2H", 7200, TimeUnit::kSecond);
  time_error("24h");    // hours end at 23
  time_error("30m1h");  // in this order only
  time_error("1h1h");
}

TEST(TimeString, RefusesWhatIsNone) {
  expect_parts(time_error("100"), {"\"100\" is no time", "the unit is missing", "\"100ba\""});
  expect_parts(time_error("ba"), {"does not begin with a number"});
  expect_parts(time_error("1.5ba"), {"only dur can have a fraction"});
  expect_parts(time_error("5 ba"), {"the unit is not known"});
  for (const char* text : {"", " 5ba", "-1ba", "nanba", "infba", "1e300tok", "5baba", "0x10ba"}) {
    time_error(text);
  }
}

TEST(TimeString, WritesWhatItReads) {
  for (const char* text : {"100ba", "2ep", "0.125dur", "1000000000tok"}) {
    EXPECT_EQ(time_text(parse_time(text)), text);
  }
}

/// 1000 epochs of 1000 batches, the run Composer's own tests use.
RunClock long_run(const char* max_duration = "1000ep") {
  RunClock clock;
  clock.max_duration = parse_time(max_duration);
  clock.batches_per_epoch = 1000;
  clock.samples_per_batch = 8;
  clock.tokens_per_batch = 8 * 64;
  return clock;
}

TEST(RunClock, ConvertsByCuttingOff) {
  const RunClock clock = long_run("3ep");
  const auto batches = [&](const char* text, double ratio = 1) {
    const Time time = clock.concrete("t", parse_time(text), ratio);
    EXPECT_EQ(time.unit, TimeUnit::kBatch) << text;
    return time.value;
  };
  EXPECT_EQ(batches("2ep"), 2000);
  EXPECT_EQ(batches("2ep", 0.3337), 667);   // 667.4
  EXPECT_EQ(batches("0.0015dur"), 4);       // 4.5
  EXPECT_EQ(batches("0.5dur", 0.1), 1500);  // the run's length is scaled already
  EXPECT_EQ(batches("7ba", 0.5), 3);
  EXPECT_EQ(batches("0.0001dur"), 0);
  const Time tokens = long_run("1000tok").concrete("t", parse_time("0.3339dur"));
  EXPECT_EQ(tokens.value, 333);
  EXPECT_EQ(tokens.unit, TimeUnit::kToken);
  EXPECT_EQ(clock.first_batch_at({1025, TimeUnit::kToken}), 3);  // 512 tokens a batch
  EXPECT_EQ(clock.first_batch_at({16, TimeUnit::kSample}), 2);
  EXPECT_EQ(scaled_duration(parse_time("5ep"), 0.5).value, 2);
  EXPECT_THROW(scaled_duration(parse_time("1ep"), 0.5), ConfigError);
  EXPECT_THROW(scaled_duration(parse_time("1dur"), 1), ConfigError);
}

TEST(RunClock, SaysWhatItDoesNotKnow) {
  const auto message = [](const char* text) {
    try {
      RunClock().concrete("scheduler.t_max", parse_time(text));
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  expect_parts(message("2ep"), {"scheduler.t_max \"2ep\"", "EngineOptions::batches_per_epoch"});
  expect_parts(message("1dur"), {"max_duration or train.steps"});
  expect_parts(message("5tok"), {"EngineOptions::tokens_per_sample"});
  expect_parts(message("5sec"), {"do not count seconds"});
  expect_parts(message("5iter"), {"do not count seconds or iterations"});
}

ComposerScheduleConfig schedule(const std::string& settings) {
  const Config config = parse(with_batch(R"("scheduler": {)" + settings + "}"));
  return config.scheduler->composer;
}

struct Golden {
  int64_t batch;
  double alpha;
};

void expect_schedule(const std::string& settings, const std::vector<Golden>& goldens,
                     const RunClock& clock = long_run(), double tolerance = 1e-12) {
  const ComposerSchedule s(schedule(settings), clock, "scheduler.");
  for (const Golden& golden : goldens) {
    EXPECT_NEAR(s.multiplier(golden.batch), golden.alpha, tolerance)
        << settings << " at batch " << golden.batch;
  }
}

// The figures of Composer's tests/optim/test_scheduler.py that the documentation of sam.md quotes.
TEST(ComposerSchedule, PublishedGoldens) {
  expect_schedule(R"("name": "cosine_with_warmup", "t_warmup": "0.9dur")",
                  {{0, 0}, {450000, .5}, {900000, 1}, {933333, .75}, {950000, .5}, {1000000, 0}},
                  long_run(), 1e-3);
  expect_schedule(R"("name": "cosine_warmrestart", "t_0": "0.003dur", "t_mult": 1.5)",
                  {{0, 1}, {1000, .75}, {3000, 1}, {4500, .75}, {7500, 1}, {14250, 1}}, long_run(),
                  1e-3);
  expect_schedule(R"("name": "polynomial", "power": 2)",
                  {{0, 1}, {100000, .81}, {200000, .64}, {500000, .25}, {1000000, 0}});
}

TEST(ComposerSchedule, Steps) {
  expect_schedule(R"("name": "step", "step_size": "2ep", "gamma": 0.5)",
                  {{0, 1}, {1999, 1}, {2000, .5}, {3999, .5}, {4000, .25}});
  expect_schedule(R"("name": "multistep", "milestones": ["10ba", "0.5dur"], "gamma": 0.2)",
                  {{0, 1}, {9, 1}, {10, .2}, {499999, .2}, {500000, .04}});
  // Milestones stand on the run's own time, the ramp before them.
  expect_schedule(R"("name": "multistep_with_warmup", "t_warmup": "4ba", "milestones": ["10ba"])",
                  {{0, 0}, {1, .25}, {3, .75}, {4, 1}, {9, 1}, {10, .1}});
  expect_schedule(R"("name": "exponential", "gamma": 0.5)",
                  {{0, 1}, {500, std::sqrt(.5)}, {3000, .125}});
  expect_schedule(R"("name": "exponential", "gamma": 0.25, "decay_period": "2ba")",
                  {{0, 1}, {1, .5}, {3, .125}});
}

TEST(ComposerSchedule, ConstantsAndLines) {
  expect_schedule(R"("name": "constant", "alpha": 0.3, "t_max": "5ba")",
                  {{0, .3}, {4, .3}, {5, 1}});
  expect_schedule(R"("name": "constant_with_warmup", "alpha": 0.3, "t_warmup": "4ba")",
                  {{0, 0}, {2, .15}, {4, .3}, {900000, .3}});
  expect_schedule(R"("name": "linear", "alpha_i": 0.8, "alpha_f": 0.2)",
                  {{0, .8}, {500000, .5}, {1000000, .2}, {2000000, .2}});
  expect_schedule(
      R"("name": "linear_decay_with_warmup", "t_warmup": "200ep", "alpha_i": 0.8, "alpha_f": 0)",
      {{0, 0}, {100000, .4}, {200000, .8}, {600000, .4}, {1000000, 0}});
  expect_schedule(R"("name": "linear_with_warmup", "t_warmup": "0ba")", {{0, 1}, {500000, .5}});
}

TEST(ComposerSchedule, CurvesAfterAWarmUp) {
  const double tenth = .1 + .9 * (1 + std::cos(std::numbers::pi * .25)) / 2;
  expect_schedule(R"("name": "cosine", "alpha_f": 0.1)", {{0, 1}, {250000, tenth}, {1000000, .1}});
  expect_schedule(R"("name": "cosine_with_warmup", "t_warmup": "200ep", "alpha_f": 0.1)",
                  {{100000, .5}, {200000, 1}, {400000, tenth}, {1000000, .1}});
  // With the warm-up its power is 2 unless given.
  expect_schedule(R"("name": "polynomial_with_warmup", "t_warmup": "200ep", "alpha_f": 0.2)",
                  {{200000, 1}, {600000, .2 + .8 * .25}, {1000000, .2}});
  // A warm-up of the whole run leaves x at 0.
  expect_schedule(R"("name": "cosine_with_warmup", "t_warmup": "1dur")",
                  {{999999, .999999}, {1000000, 1}});
}

TEST(ComposerSchedule, InverseSquareRoot) {
  expect_schedule(
      R"("name": "inv_sqrt_with_warmup", "t_warmup": "100ba", "t_scale": "400ba",
         "t_cooldown": "1000ba", "t_max": "11200ba", "alpha_f_decay": 0.1, "alpha_f_cooldown": 0.02)",
      {{50, .5},
       {100, 1},
       {1300, .1 + .9 / 2},                  // (1200 + 400)/400 = 4
       {6100, .1 + .9 / 4},                  // 16
       {10200, .1 + .9 / std::sqrt(26.25)},  // the cool-down begins
       {10700, (.1 + .9 / std::sqrt(26.25) + .02) / 2},
       {11200, .02},
       {20000, .02}},
      long_run("11200ba"));
}

TEST(ComposerSchedule, ScaledRuns) {
  RunClock clock = long_run("500ep");  // "1000ep" × 0.5
  clock.scale_schedule_ratio = 0.5;
  // t_max in epochs is scaled, shares of the run are not, the warm-up is not.
  expect_schedule(R"("name": "linear", "t_max": "1000ep")", {{250000, .5}, {500000, 0}}, clock);
  expect_schedule(R"("name": "linear", "t_max": "1dur")", {{250000, .5}, {500000, 0}}, clock);
  expect_schedule(R"("name": "linear_with_warmup", "t_warmup": "100ba")", {{50, .5}, {100, 1}},
                  clock);
  // scale_warmup makes the slope steeper and leaves its end: 1 from half-way on.
  expect_schedule(R"("name": "linear_with_warmup", "t_warmup": "100ba", "scale_warmup": true)",
                  {{25, .5}, {50, 1}, {75, 1}, {100, 1}}, clock);
}

TEST(ComposerSchedule, CountsSamplesAndTokens) {
  expect_schedule(R"("name": "linear", "t_max": "1dur")", {{5, .5}, {10, 0}}, long_run("80sp"));
  expect_schedule(R"("name": "linear_with_warmup", "t_warmup": "1024tok")",
                  {{0, 0}, {1, .5}, {2, 1}, {6, .5}, {10, 0}}, long_run("5120tok"));
}

std::string schedule_error(const std::string& settings, const RunClock& clock = long_run()) {
  try {
    const ComposerSchedule s(schedule(settings), clock, "scheduler.");
  } catch (const ConfigError& error) {
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << settings;
  return {};
}

TEST(ComposerSchedule, RefusesTimesThatDoNotFit) {
  expect_parts(
      schedule_error(R"("name": "cosine_with_warmup", "t_warmup": "100ba")", long_run("5120tok")),
      {"scheduler.t_warmup is counted in ba", "scheduler.t_max in tok"});
  expect_parts(schedule_error(R"("name": "cosine", "t_max": "10ba")"),
               {"t_max comes to 10ba", "before the end of the run at 1000000ba"});
  expect_parts(schedule_error(R"("name": "step", "step_size": "0.0000001dur")"),
               {"step_size", "comes to 0ba"});
  expect_parts(schedule_error(R"("name": "cosine_warmrestart", "t_0": "8ba", "t_mult": 0.5)"),
               {"t_mult 0.5 shrinks a cycle"});
  expect_parts(schedule_error(R"("name": "inv_sqrt_with_warmup", "t_warmup": "0.1dur",
                                 "t_scale": "1ba", "t_cooldown": "1ba")"),
               {"takes no share of the run"});
  expect_parts(schedule_error(R"("name": "inv_sqrt_with_warmup", "t_warmup": "5sp",
                                 "t_scale": "1ba", "t_cooldown": "1ba")"),
               {"not in the unit of t_max, ba"});
  expect_parts(schedule_error(R"("name": "linear", "t_max": "5sec")"), {"do not count seconds"});
}

// An LLM Foundry configuration in JSON: its numbers are read as there.
constexpr const char* kFoundry = R"({
  "max_duration": "4800ba", "global_train_batch_size": 256, "device_train_microbatch_size": 16,
  "seed": 17, "precision": "amp_bf16",
  "scheduler": {"name": "cosine_with_warmup", "t_warmup": "100ba", "alpha_f": 0.1},
  "optimizer": {"name": "decoupled_adamw", "lr": 6e-4, "betas": [0.9, 0.95], "eps": 1e-8,
                "weight_decay": 0},
  "algorithms": {"gradient_clipping": {"clipping_type": "norm", "clipping_threshold": 0.5},
                 "sam": {"rho": 0.1, "interval": 10}}})";

TEST(ComposerConfig, NamesMeanWhatTheyDoThere) {
  const Config config = parse(kFoundry);
  EXPECT_EQ(config.batch.train_batch_size, 256);
  EXPECT_EQ(config.batch.micro_batch_size, 16);
  EXPECT_EQ(config.batch.accumulation_steps, 8);
  EXPECT_EQ(config.train.seed, 17);
  EXPECT_EQ(config.precision, DType::kBF16);
  EXPECT_EQ(time_text(*config.train.max_duration), "4800ba");
  EXPECT_EQ(config.optimizer.kind, OptimizerKind::kAdamW);
  EXPECT_TRUE(config.optimizer.scheduled_decay);
  EXPECT_EQ(config.optimizer.lr, 6e-4);
  EXPECT_EQ(config.gradient_clipping, 0.5);
  EXPECT_TRUE(config.sam.enabled);
  EXPECT_EQ(config.sam.rho, 0.1);
  EXPECT_EQ(config.sam.interval, 10);
  EXPECT_EQ(config.scheduler->composer.name, "cosine_with_warmup");
  EXPECT_TRUE(config.warnings.empty()) << all_warnings(config);
  // What is written to the run's folder says the same.
  const Config again = parse(config.resolved_json);
  EXPECT_EQ(again.resolved_json, config.resolved_json);
}

TEST(ComposerConfig, DefaultsAreThoseOfTheNames) {
  const Config adamw =
      parse(R"({"train_batch_size": 4, "optimizer": {"name": "decoupled_adamw"}})");
  EXPECT_EQ(adamw.optimizer.lr, 1e-3);
  EXPECT_EQ(adamw.optimizer.beta2, 0.95);
  EXPECT_EQ(adamw.optimizer.weight_decay, 1e-5);
  EXPECT_EQ(adamw.gradient_clipping, 0);
  // A length in another unit does not make it a file of Composer's.
  EXPECT_EQ(parse(with_batch(R"("max_duration": "5ba")")).gradient_clipping, 1);
  expect_parts(all_warnings(adamw), {"gradient_clipping is off, as in Composer"});
  const Config lion = parse(R"({"train_batch_size": 4, "optimizer": {"name": "DecoupledLionW"}})");
  EXPECT_EQ(lion.optimizer.kind, OptimizerKind::kLion);
  EXPECT_EQ(lion.optimizer.lr, 1e-4);
  EXPECT_EQ(lion.optimizer.beta2, 0.99);
  const Config sgd =
      parse(R"({"train_batch_size": 4, "optimizer": {"name": "decoupled_sgdw", "lr": 0.1}})");
  EXPECT_TRUE(sgd.optimizer.decoupled_decay && sgd.optimizer.scheduled_decay);
  EXPECT_EQ(sgd.optimizer.weight_decay, 0);
  expect_parts(error_of(R"({"train_batch_size": 4, "optimizer": {"name": "decoupled_sgdw"}})"),
               {"optimizer.lr", "is required by decoupled_sgdw"});
  EXPECT_TRUE(parse(R"({"train_batch_size": 4, "algorithms": {"sam": {}}})").sam.enabled);
  EXPECT_FALSE(parse(R"({"train_batch_size": 4, "algorithms": {}})").sam.enabled);
  EXPECT_EQ(time_text(*parse(R"({"train_batch_size": 4, "max_duration": 3})").train.max_duration),
            "3ep");
}

TEST(ComposerConfig, EveryKindOfScheduleRoundTrips) {
  for (
      const char* settings :
      {R"("name": "step", "step_size": "2ep")",
       R"("name": "multistep_with_warmup", "t_warmup": "1ba", "milestones": ["1ep", "0.5dur"])",
       R"("name": "exponential", "gamma": 0.9)", R"("name": "cosine_warmrestart", "t_0": "1ep")",
       R"("name": "polynomial_with_warmup", "t_warmup": "1ba", "lr_compat": "composer")",
       R"("name": "inv_sqrt_with_warmup", "t_warmup": "1ba", "t_scale": "1ba", "t_cooldown": "0ba")"}) {
    for (const char* section : {"scheduler", "sam.rho_scheduler"}) {
      std::string text = std::string("{") + settings + "}";
      const bool rho = std::string(section) != "scheduler";
      if (rho && text.find("lr_compat") != std::string::npos) continue;
      text = rho ? R"("sam": {"rho_scheduler": )" + text + "}" : R"("scheduler": )" + text;
      const Config config = parse(with_batch(text));
      EXPECT_EQ(parse(config.resolved_json).resolved_json, config.resolved_json) << text;
    }
  }
}

TEST(ComposerConfig, RefusesHalfOfTwoLanguages) {
  expect_parts(error_of(R"({"train_batch_size": 4, "global_train_batch_size": 4})"),
               {"global_train_batch_size", "another name for train_batch_size", "remove one"});
  expect_parts(error_of(R"({"global_train_batch_size": 4, "train_batch_size": 4})"),
               {"train_batch_size", "is set by global_train_batch_size already"});
  expect_parts(error_of(with_batch(R"("max_duration": "2ep", "train": {"steps": 5})")),
               {"train.steps", "max_duration both say how long"});
  expect_parts(error_of(with_batch(R"("scheduler": {"name": "cosine", "type": "WarmupLR"})")),
               {"scheduler.type", "means nothing to"});
  expect_parts(error_of(with_batch(R"("scheduler": {"type": "cosine", "t_max": "1dur"})")),
               {"scheduler.t_max", "goes with scheduler.name"});
  expect_parts(error_of(with_batch(R"("scheduler": {"name": "cosine", "power": 2})")),
               {"scheduler.power", "means nothing to"});
  expect_parts(error_of(with_batch(R"("scheduler": {"name": "cosine_with_warmup"})")),
               {"scheduler.t_warmup", "is required by cosine_with_warmup"});
  expect_parts(
      error_of(with_batch(R"("scheduler": {"type": "WarmupLR", "lr_compat": "composer"})")),
      {"scheduler.lr_compat", "steps as DeepSpeed does"});
  expect_parts(error_of(with_batch(R"("scheduler": {"name": "cosine", "t_max": 100})")),
               {"scheduler.t_max", "must be a time with a unit"});
  expect_parts(error_of(with_batch(R"("precision": "amp_bf16", "fp16": {"enabled": true})")),
               {"fp16.enabled", "precision both choose"});
  expect_parts(
      error_of(with_batch(R"("algorithms": {"gradient_clipping": {"clipping_type": "adaptive"}})")),
      {"adaptive", "is not available"});
  expect_parts(error_of(with_batch(R"("scale_schedule_ratio": 0.5)")), {"scales max_duration"});
  expect_parts(error_of(with_batch(R"("max_duration": "1dur")")), {"ep, ba, sp or tok"});
  expect_parts(error_of(with_batch(R"("sam": {"start": "5ba", "start_step": 5})")),
               {"sam.start", "say the same"});
  expect_parts(error_of(with_batch(R"("sam": {"rho_scheduler": {"rho_min": 0.1}})")),
               {"sam.rho_scheduler.name", "is missing"});
  expect_parts(
      error_of(with_batch(
          R"("sam": {"rho_scheduler": {"name": "linear_in_lr", "lr_min": 1, "lr_max": 1}})")),
      {"lr_max", "must lie above lr_min"});
}

TEST(ComposerConfig, OverridesReachTheOtherName) {
  const Config config = parse(kFoundry, {"optimizer.params.lr=0.5", "train_batch_size=512",
                                         "train.steps=20", "scheduler.t_warmup=5ba"});
  EXPECT_EQ(config.optimizer.lr, 0.5);
  EXPECT_EQ(config.batch.train_batch_size, 512);
  EXPECT_EQ(config.train.steps, 20);
  EXPECT_FALSE(config.train.max_duration);
  EXPECT_EQ(config.scheduler->composer.t_warmup.value, 5);
  EXPECT_EQ(parse(kFoundry, {"optimizer.lr=0.25"}).optimizer.lr, 0.25);
  EXPECT_EQ(parse(kFoundry, {"max_duration=2"}).train.max_duration->unit, TimeUnit::kEpoch);
}

}  // namespace
}  // namespace zerosharp
