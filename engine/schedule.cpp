#include "engine/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/error.h"

namespace zerosharp {
namespace {

/// Composer's ramp-then-decay: x runs from 0 to 1 after the LR warm-up.
double composer_multiplier(const SchedulerConfig& c, int64_t t) {
  if (t < c.warmup_steps) return static_cast<double>(t) / static_cast<double>(c.warmup_steps);
  if (c.kind == ScheduleKind::kConstant) return 1.0;
  const auto decay_steps = static_cast<double>(c.total_steps - c.warmup_steps);
  const double x =
      decay_steps <= 0 ? 0.0 : std::min(1.0, static_cast<double>(t - c.warmup_steps) / decay_steps);
  if (c.kind == ScheduleKind::kLinear) return 1.0 + (c.alpha_f - 1.0) * x;
  return c.alpha_f + (1.0 - c.alpha_f) * (1.0 + std::cos(std::numbers::pi * x)) / 2.0;
}

/// Share of the warm-up done at DeepSpeed's iteration t ≥ 0, for t < n.
double warmup_share(const SchedulerConfig& c, int64_t t, int64_t n) {
  if (!c.warmup_log) return static_cast<double>(t) / static_cast<double>(n);
  return std::log(static_cast<double>(t + 1)) / std::log(static_cast<double>(n));
}

/// DeepSpeed takes warm-ups of one step as two, so that log(n) is not zero.
int64_t warmup_length(const SchedulerConfig& c) { return std::max<int64_t>(2, c.warmup_num_steps); }

double warmup_lr(const SchedulerConfig& c, int64_t t, double initial_lr) {
  const double low = c.warmup_min_lr;
  if (t < 0) return low;
  const double high = c.warmup_max_lr.value_or(initial_lr);
  const int64_t n = warmup_length(c);
  double share = 1.0;
  if (t < n) {
    share = warmup_share(c, t, n);
  } else if (c.kind == ScheduleKind::kWarmupDecayLR) {
    const auto left = static_cast<double>(c.total_num_steps - t);
    share = std::max(0.0, left / std::max(1.0, static_cast<double>(c.total_num_steps - n)));
  }
  return low + (high - low) * share;
}

double warmup_cosine_lr(const SchedulerConfig& c, int64_t t, double initial_lr) {
  if (t < 0) return 0.0;
  const int64_t n = warmup_length(c);
  if (t < n) {
    return initial_lr * (c.warmup_min_ratio + (1.0 - c.warmup_min_ratio) * warmup_share(c, t, n));
  }
  const double span = std::max(1.0, static_cast<double>(c.total_num_steps - n));
  const double p = std::min(1.0, static_cast<double>(t - n + 1) / span);
  const double cosine = (1.0 + std::cos(std::numbers::pi * p)) / 2.0;
  return initial_lr * std::max(0.0, c.cos_min_ratio + (1.0 - c.cos_min_ratio) * cosine);
}

/// Share of the way up at update `b` ≥ 1 of a cycle of `first` rising and `second` falling steps;
/// `stairs` > 0 cuts it into that many levels. From whole numbers, so that a step that lies on a
/// stair is not rounded below it.
double cycle_share(const SchedulerConfig& c, int64_t b, int64_t first, int64_t second) {
  const int64_t into = b % (first + second);
  const bool rising = into <= first;
  const int64_t done = rising ? into : first + second - into;
  const int64_t length = rising ? first : second;
  const int64_t stairs = rising ? c.cycle_first_stair_count
                                : c.cycle_second_stair_count.value_or(c.cycle_first_stair_count);
  if (stairs == 0) return static_cast<double>(done) / static_cast<double>(length);
  const double level = std::floor(static_cast<double>(done) * static_cast<double>(stairs) /
                                  static_cast<double>(length));
  return level / static_cast<double>(stairs);
}

ScheduledValue one_cycle(const SchedulerConfig& c, int64_t t) {
  const int64_t first = c.cycle_first_step_size;
  const int64_t second = c.cycle_second_step_size.value_or(first);
  const int64_t total = first + second;
  const int64_t b = t + 1;
  ScheduledValue value;
  value.sets_beta1 = c.cycle_momentum;
  if (b <= total) {
    const double share = cycle_share(c, b, first, second);
    value.lr = c.cycle_min_lr + (c.cycle_max_lr - c.cycle_min_lr) * share;
    value.beta1 = c.cycle_max_mom - (c.cycle_max_mom - c.cycle_min_mom) * share;
    return value;
  }
  const double d = c.decay_step_size > 0
                       ? static_cast<double>(b - total) / static_cast<double>(c.decay_step_size)
                       : 0;
  value.lr = c.cycle_min_lr / (1.0 + c.decay_lr_rate * d);
  value.beta1 = c.cycle_max_mom * (1.0 + c.decay_mom_rate * d);
  return value;
}

}  // namespace

SchedulerConfig checked_schedule(SchedulerConfig config, int64_t train_steps) {
  switch (config.kind) {
    case ScheduleKind::kConstant:
    case ScheduleKind::kLinear:
    case ScheduleKind::kCosine:
      if (config.total_steps == 0) config.total_steps = train_steps;
      if (config.warmup_steps < 0) {
        fail_config("scheduler.params.warmup_steps must be at least 0, got ", config.warmup_steps);
      }
      if (config.kind != ScheduleKind::kConstant && config.total_steps < 1) {
        fail_config("scheduler.params.total_steps must be at least 1 (or set train.steps), got ",
                    config.total_steps);
      }
      if (!(config.alpha_f >= 0)) {
        fail_config("scheduler.params.alpha_f must be at least 0, got ", config.alpha_f);
      }
      break;
    case ScheduleKind::kComposer:  // ComposerSchedule checks it
      break;
    case ScheduleKind::kWarmupDecayLR:
    case ScheduleKind::kWarmupCosineLR:
      if (config.total_num_steps == 0) config.total_num_steps = train_steps;
      if (config.total_num_steps < 1) {
        fail_config("scheduler.params.total_num_steps is required and must be at least 1, got ",
                    config.total_num_steps);
      }
      [[fallthrough]];
    case ScheduleKind::kWarmupLR:
      if (config.warmup_num_steps < 1) {
        fail_config("scheduler.params.warmup_num_steps must be at least 1, got ",
                    config.warmup_num_steps, "; for no LR warm-up use the constant schedule");
      }
      break;
    case ScheduleKind::kOneCycle:
      if (config.cycle_first_step_size < 1) {
        fail_config("scheduler.params.cycle_first_step_size must be at least 1, got ",
                    config.cycle_first_step_size);
      }
      if (config.cycle_second_step_size.value_or(1) < 0) {
        fail_config("scheduler.params.cycle_second_step_size must be at least 0, got ",
                    *config.cycle_second_step_size);
      }
      break;
  }
  return config;
}

ScheduledValue scheduled_value(const SchedulerConfig& config, int64_t applied, double initial_lr) {
  const int64_t t = applied - 1;  // DeepSpeed's last_batch_iteration when this update is made
  switch (config.kind) {
    case ScheduleKind::kConstant:
    case ScheduleKind::kLinear:
    case ScheduleKind::kCosine:
      return {initial_lr * composer_multiplier(config, applied)};
    case ScheduleKind::kComposer:
      break;
    case ScheduleKind::kWarmupLR:
    case ScheduleKind::kWarmupDecayLR:
      return {warmup_lr(config, t, initial_lr)};
    case ScheduleKind::kWarmupCosineLR:
      return {warmup_cosine_lr(config, t, initial_lr)};
    case ScheduleKind::kOneCycle: {
      if (t >= 0) return one_cycle(config, t);
      // Before its first step DeepSpeed has only written both lower bounds.
      return {config.cycle_min_lr, config.cycle_momentum, config.cycle_min_mom};
    }
  }
  return {initial_lr};
}

}  // namespace zerosharp
