// Schedules against literal goldens and formulas written out again from their definitions.
#include "engine/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "kernels/error.h"

namespace zerosharp {
namespace {

constexpr double kTight = 1e-15;  // a few roundings of double at values below 1

double lr_at(const SchedulerConfig& config, int64_t applied, double initial = 0.1) {
  return scheduled_value(config, applied, initial).lr;
}

/// Expects update 0, 1, … to use `expected`.
void expect_rates(const SchedulerConfig& config, const std::vector<double>& expected,
                  double tolerance = kTight, double initial = 0.1) {
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(lr_at(config, static_cast<int64_t>(i), initial), expected[i], tolerance)
        << "update " << i;
  }
}

SchedulerConfig composer(ScheduleKind kind, int64_t warmup, int64_t total, double alpha_f = 0) {
  SchedulerConfig config;
  config.kind = kind;
  config.warmup_steps = warmup;
  config.total_steps = total;
  config.alpha_f = alpha_f;
  return config;
}

SchedulerConfig warmup(ScheduleKind kind, int64_t steps, bool log, int64_t total = 0) {
  SchedulerConfig config;
  config.kind = kind;
  config.warmup_num_steps = steps;
  config.warmup_log = log;
  config.total_num_steps = total;
  return config;
}

TEST(Schedule, ConstantRampsFromZeroAndStays) {
  expect_rates(composer(ScheduleKind::kConstant, 4, 0), {0, 0.025, 0.05, 0.075, 0.1, 0.1, 0.1});
  expect_rates(composer(ScheduleKind::kConstant, 0, 0), {0.1, 0.1});
}

TEST(Schedule, LinearDecaysToItsFinalMultiplier) {
  expect_rates(composer(ScheduleKind::kLinear, 2, 6, 0.2),
               {0, 0.05, 0.1, 0.08, 0.06, 0.04, 0.02, 0.02});
  expect_rates(composer(ScheduleKind::kLinear, 0, 4), {0.1, 0.075, 0.05, 0.025, 0, 0});
}

TEST(Schedule, CosineWithWarmupMatchesPublishedMultipliers) {
  // T = 8, two steps of LR warm-up, alpha_f 0.1; 1e-7: the goldens have six digits, times 0.1.
  expect_rates(composer(ScheduleKind::kCosine, 2, 8, 0.1),
               {0, 0.05, 0.1, 0.0939711, 0.0775, 0.055, 0.0325, 0.0160289, 0.01}, 1e-7);
  const SchedulerConfig config = composer(ScheduleKind::kCosine, 900000, 1000000);
  const std::pair<int64_t, double> goldens[] = {
      {0, 0}, {450000, .5}, {900000, 1}, {933333, .75}, {950000, .5}, {1000000, 0}, {2000000, 0.0}};
  for (const auto& [step, multiplier] : goldens) {
    EXPECT_NEAR(lr_at(config, step, 1.0), multiplier, 1e-5) << step;
  }
}

TEST(Schedule, WarmupAsLongAsTheRunNeverDecays) {
  expect_rates(composer(ScheduleKind::kCosine, 3, 3), {0, 0.1 / 3, 0.2 / 3, 0.1, 0.1});
  expect_rates(composer(ScheduleKind::kLinear, 3, 2), {0, 0.1 / 3, 0.2 / 3, 0.1, 0.1});
}

TEST(Schedule, WarmupLrLagsOneUpdateAsDeepSpeed) {  // accelerate #2124
  SchedulerConfig config = warmup(ScheduleKind::kWarmupLR, 4, /*log=*/false);
  config.warmup_max_lr = 0.4;
  expect_rates(config, {0, 0, 0.1, 0.2, 0.3, 0.4, 0.4}, kTight, 0.4);
}

TEST(Schedule, WarmupLrIsLogarithmicByDefault) {
  SchedulerConfig config = warmup(ScheduleKind::kWarmupLR, 10, /*log=*/true);
  EXPECT_EQ(lr_at(config, 0), 0);
  EXPECT_NEAR(lr_at(config, 2), 0.1 * std::log(2) / std::log(10), kTight);  // t = 1
  EXPECT_NEAR(lr_at(config, 6), 0.1 * std::log(6) / std::log(10), kTight);
  EXPECT_NEAR(lr_at(config, 10), 0.1, kTight);  // t = 9: ln 10 / ln 10
  EXPECT_EQ(lr_at(config, 11), 0.1);
  config.warmup_min_lr = 0.02;
  EXPECT_EQ(lr_at(config, 0), 0.02);
  EXPECT_NEAR(lr_at(config, 2), 0.02 + 0.08 * std::log(2) / std::log(10), kTight);
}

TEST(Schedule, WarmupDecayFallsLinearlyToZero) {  // starVLA #210
  expect_rates(warmup(ScheduleKind::kWarmupDecayLR, 2, /*log=*/false, 6),
               {0, 0, 0.05, 0.1, 0.075, 0.05, 0.025, 0, 0});
}

TEST(Schedule, PeakIsTheGroupsOwnRateUnlessGiven) {  // DeepSpeed #7303
  for (const auto kind : {ScheduleKind::kWarmupLR, ScheduleKind::kWarmupDecayLR}) {
    const SchedulerConfig config = warmup(kind, 2, /*log=*/true, 20);
    double peak = 0;
    for (int64_t i = 0; i < 6; ++i) peak = std::max(peak, lr_at(config, i, 5e-5));
    EXPECT_EQ(peak, 5e-5);
  }
}

TEST(Schedule, WarmupOfOneStepStaysFinite) {  // DeepSpeed #771
  for (const auto kind :
       {ScheduleKind::kWarmupLR, ScheduleKind::kWarmupDecayLR, ScheduleKind::kWarmupCosineLR}) {
    for (const bool log : {false, true}) {
      const SchedulerConfig config = warmup(kind, 1, log, 5);
      for (int64_t i = 0; i < 9; ++i) {
        const double lr = lr_at(config, i);
        EXPECT_TRUE(lr >= 0 && lr <= 0.1) << "update " << i << ": " << lr;
      }
      EXPECT_NEAR(lr_at(config, 2), log ? 0.1 : 0.05, kTight);  // one step counts as two
    }
  }
}

TEST(Schedule, WarmupCosineStartsEveryGroupAtZero) {  // DeepSpeed #7969
  const SchedulerConfig config = warmup(ScheduleKind::kWarmupCosineLR, 4, /*log=*/false, 10);
  for (const double initial : {0.1, 0.2}) {
    EXPECT_EQ(lr_at(config, 0, initial), 0);
    EXPECT_EQ(lr_at(config, 1, initial), 0);
    EXPECT_NEAR(lr_at(config, 3, initial), initial / 2, kTight);
    for (int64_t t = 4; t < 14; ++t) {
      const double p = std::min(1.0, (static_cast<double>(t) - 3) / 6);
      const double ratio = 1e-4 + (1 - 1e-4) * (1 + std::cos(std::numbers::pi * p)) / 2;
      EXPECT_NEAR(lr_at(config, t + 1, initial), initial * ratio, kTight) << "t " << t;
    }
  }
}

TEST(Schedule, WarmupCosineEndsAtItsRatio) {
  SchedulerConfig config = warmup(ScheduleKind::kWarmupCosineLR, 10, /*log=*/true, 10);
  config.cos_min_ratio = 0.1;
  for (int64_t t = 10; t < 40; ++t) EXPECT_NEAR(lr_at(config, t + 1, 1.0), 0.1, kTight);
  config.warmup_min_ratio = 0.5;
  EXPECT_EQ(lr_at(config, 0, 1.0), 0);  // as DeepSpeed constructs it
  EXPECT_EQ(lr_at(config, 1, 1.0), 0.5);
  EXPECT_NEAR(lr_at(config, 3, 1.0), 0.5 + 0.5 * std::log(3) / std::log(10), kTight);
}

SchedulerConfig one_cycle(int64_t first, int64_t second) {
  SchedulerConfig config;
  config.kind = ScheduleKind::kOneCycle;
  config.cycle_min_lr = 0.01;
  config.cycle_max_lr = 0.1;
  config.cycle_first_step_size = first;
  config.cycle_second_step_size = second;
  return config;
}

TEST(OneCycle, RisesAndFallsWithMomentumAgainstIt) {
  const SchedulerConfig config = one_cycle(10, 10);
  EXPECT_EQ(lr_at(config, 0), 0.01);
  EXPECT_NEAR(lr_at(config, 2), 0.01 + 0.09 * 0.2, kTight);  // t = 1
  for (int64_t b = 1; b <= 20; ++b) {
    const double share = static_cast<double>(b <= 10 ? b : 20 - b) / 10;
    const ScheduledValue value = scheduled_value(config, b, 0.1);
    EXPECT_NEAR(value.lr, 0.01 + 0.09 * share, kTight) << "b " << b;
    EXPECT_TRUE(value.sets_beta1);
    EXPECT_NEAR(value.beta1, 0.9 - 0.1 * share, kTight) << "b " << b;
  }
  EXPECT_EQ(scheduled_value(config, 0, 0.1).beta1, 0.8);  // the construction value
}

TEST(OneCycle, CanLeaveMomentumAlone) {
  SchedulerConfig config = one_cycle(2, 2);
  config.cycle_momentum = false;
  for (int64_t i = 0; i < 8; ++i) EXPECT_FALSE(scheduled_value(config, i, 0.1).sets_beta1);
}

TEST(OneCycle, HalvesMayDiffer) {
  // 3 up, 6 down
  const double shares[] = {1. / 3, 2. / 3, 1, 5. / 6, 4. / 6, 3. / 6, 2. / 6, 1. / 6, 0};
  const SchedulerConfig config = one_cycle(3, 6);
  for (int64_t b = 1; b <= 9; ++b) {
    EXPECT_NEAR(lr_at(config, b), 0.01 + 0.09 * shares[b - 1], kTight) << "b " << b;
  }
  SchedulerConfig same = config;
  same.cycle_second_step_size.reset();  // as many as rise
  EXPECT_NEAR(lr_at(same, 4), 0.01 + 0.09 * 2 / 3, kTight);
}

TEST(OneCycle, StairsHoldTheRate) {
  SchedulerConfig config = one_cycle(10, 10);
  config.cycle_first_stair_count = 5;
  // floor(b·5/10)/5 on the way up, floor((20−b)·5/10)/5 on the way down
  const double shares[] = {0,  .2, .2, .4, .4, .6, .6, .8, .8, 1,
                           .8, .8, .6, .6, .4, .4, .2, .2, 0,  0};
  for (int64_t b = 1; b <= 20; ++b) {
    EXPECT_NEAR(lr_at(config, b), 0.01 + 0.09 * shares[b - 1], kTight) << "b " << b;
    EXPECT_NEAR(scheduled_value(config, b, 0.1).beta1, 0.9 - 0.1 * shares[b - 1], kTight);
  }
  config.cycle_second_stair_count = 0;  // smooth on the way down
  EXPECT_NEAR(lr_at(config, 11), 0.01 + 0.09 * 0.9, kTight);
}

TEST(OneCycle, OneStairPerStepIsTheSmoothCycle) {
  for (const auto& [first, second] : {std::pair(10, 10), std::pair(3, 7), std::pair(49, 7)}) {
    const SchedulerConfig smooth = one_cycle(first, second);
    SchedulerConfig stairs = smooth;
    stairs.cycle_first_stair_count = first;
    stairs.cycle_second_stair_count = second;
    for (int64_t b = 0; b <= first + second; ++b) EXPECT_EQ(lr_at(stairs, b), lr_at(smooth, b));
  }
}

TEST(OneCycle, DecaysAfterTheCycle) {
  SchedulerConfig config = one_cycle(10, 10);
  for (int64_t b = 21; b < 60; ++b) {  // no decay step size: stays at the bounds
    EXPECT_EQ(lr_at(config, b), 0.01);
    EXPECT_EQ(scheduled_value(config, b, 0.1).beta1, 0.9);
  }
  config.decay_step_size = 5;
  config.decay_lr_rate = 0.5;
  config.decay_mom_rate = 0.01;
  for (const int64_t b : {21, 25, 30, 45}) {
    const double intervals = static_cast<double>(b - 20) / 5;
    EXPECT_NEAR(lr_at(config, b), 0.01 / (1 + 0.5 * intervals), kTight);
    EXPECT_NEAR(scheduled_value(config, b, 0.1).beta1, 0.9 * (1 + 0.01 * intervals), kTight);
  }
}

std::string refusal(const SchedulerConfig& config, int64_t train_steps = 0) {
  try {
    checked_schedule(config, train_steps);
  } catch (const ConfigError& error) {
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return {};
}

TEST(CheckedSchedule, NamesTheKeyThatIsWrong) {
  using Kind = ScheduleKind;
  EXPECT_EQ(refusal(composer(Kind::kCosine, -1, 5)),
            "scheduler.params.warmup_steps must be at least 0, got -1");
  EXPECT_NE(refusal(composer(Kind::kLinear, 0, 0)).find("scheduler.params.total_steps"),
            std::string::npos);
  EXPECT_NE(refusal(composer(Kind::kLinear, 0, 5, std::nan(""))).find("alpha_f"),
            std::string::npos);
  for (const auto kind : {Kind::kWarmupLR, Kind::kWarmupDecayLR, Kind::kWarmupCosineLR}) {
    EXPECT_EQ(refusal(warmup(kind, 0, true, 9)),
              "scheduler.params.warmup_num_steps must be at least 1, got 0; for no LR warm-up use "
              "the constant schedule");
  }
  EXPECT_NE(refusal(warmup(Kind::kWarmupDecayLR, 2, true)).find("total_num_steps is required"),
            std::string::npos);
  EXPECT_NE(refusal(one_cycle(0, 1)).find("cycle_first_step_size"), std::string::npos);
  EXPECT_NE(refusal(one_cycle(1, -1)).find("cycle_second_step_size"), std::string::npos);
}

TEST(CheckedSchedule, TakesItsEndFromTheRun) {
  EXPECT_EQ(checked_schedule(composer(ScheduleKind::kCosine, 1, 0), 70).total_steps, 70);
  EXPECT_EQ(checked_schedule(composer(ScheduleKind::kCosine, 1, 50), 70).total_steps, 50);
  EXPECT_EQ(checked_schedule(warmup(ScheduleKind::kWarmupDecayLR, 2, true), 70).total_num_steps,
            70);
}

}  // namespace
}  // namespace zerosharp
