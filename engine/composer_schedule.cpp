#include "engine/composer_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/error.h"

namespace zerosharp {
namespace {

bool reads_t_max(const ComposerScheduleConfig& c) {
  switch (c.shape) {
    case ComposerShape::kLinear:
    case ComposerShape::kCosine:
    case ComposerShape::kPolynomial:
    case ComposerShape::kInverseSqrt:
      return true;
    case ComposerShape::kConstant:
      return !c.warmup;
    case ComposerShape::kStep:
    case ComposerShape::kMultiStep:
    case ComposerShape::kExponential:
    case ComposerShape::kWarmRestarts:
      return false;
  }
  return false;
}

double cosine(double x, double alpha_f) {
  return alpha_f + (1.0 - alpha_f) * (1.0 + std::cos(std::numbers::pi * x)) / 2.0;
}

}  // namespace

ComposerSchedule::ComposerSchedule(const ComposerScheduleConfig& config, const RunClock& clock,
                                   const std::string& prefix)
    : config_(config), clock_(clock), prefix_(prefix) {
  ComposerScheduleConfig& c = config_;
  const double ratio = clock.scale_schedule_ratio;
  if (c.shape == ComposerShape::kInverseSqrt) check_inverse_sqrt();
  if (reads_t_max(c)) {
    c.t_max = convert("t_max", c.t_max, ratio);
    unit_ = c.t_max.unit;
    // A constant α may end before the run does.
    if (c.shape != ComposerShape::kConstant) check_end();
  }
  if (c.shape == ComposerShape::kStep) convert_period("step_size", c.step_size);
  if (c.shape == ComposerShape::kExponential) convert_period("decay_period", c.decay_period);
  if (c.shape == ComposerShape::kWarmRestarts) convert_period("t_0", c.t_0);
  for (Time& milestone : c.milestones) milestone = convert("milestones", milestone, ratio);
  if (c.shape == ComposerShape::kInverseSqrt) {
    c.t_scale = convert("t_scale", c.t_scale, 1);
    c.t_cooldown = convert("t_cooldown", c.t_cooldown, 1);
  }
  if (c.warmup) convert_warmup();
  if (c.shape == ComposerShape::kWarmRestarts && clock.max_duration) {
    const Time end = clock.concrete("max_duration", *clock.max_duration);
    multiplier(clock.first_batch_at(end));  // a cycle of length 0 is better met now
  }
}

void ComposerSchedule::convert_period(const char* key, Time& period) {
  const Time given = period;
  period = convert(key, given, clock_.scale_schedule_ratio);
  unit_ = period.unit;
  if (period.value >= 1) return;
  fail_config(prefix_, key, " \"", time_text(given), "\" comes to ", time_text(period),
              "; it must be at least 1", time_unit_name(unit_));
}

Time ComposerSchedule::convert(const char* key, const Time& time, double ratio) const {
  return clock_.concrete(prefix_ + key, time, ratio);
}

void ComposerSchedule::convert_warmup() {
  ComposerScheduleConfig& c = config_;
  const Time given = c.t_warmup;
  c.t_warmup = convert("t_warmup", given, 1);
  ramp_ = c.scale_warmup ? convert("t_warmup", given, clock_.scale_schedule_ratio).value
                         : c.t_warmup.value;
  if (!reads_t_max(c)) {
    unit_ = c.t_warmup.unit;
  } else if (c.t_warmup.unit != c.t_max.unit) {
    fail_config(prefix_, "t_warmup is counted in ", time_unit_name(c.t_warmup.unit), " but ",
                prefix_, "t_max in ", time_unit_name(c.t_max.unit), "; give both in one unit");
  }
  if (c.shape == ComposerShape::kInverseSqrt &&
      c.t_warmup.value + c.t_cooldown.value > c.t_max.value) {
    fail_config(prefix_, "t_warmup and t_cooldown together are longer than t_max, ",
                time_text(c.t_max));
  }
}

/// LLM Foundry takes these as they stand, in the unit of t_max.
void ComposerSchedule::check_inverse_sqrt() const {
  const ComposerScheduleConfig& c = config_;
  const TimeUnit unit = convert("t_max", c.t_max, 1).unit;
  const std::pair<const char*, Time> times[] = {
      {"t_warmup", c.t_warmup}, {"t_scale", c.t_scale}, {"t_cooldown", c.t_cooldown}};
  for (const auto& [key, time] : times) {
    if (time.unit == TimeUnit::kDuration) {
      fail_config(prefix_, key, " \"", time_text(time), "\": ", c.name,
                  " takes no share of the run here; give it in ", time_unit_name(unit));
    }
    if (convert(key, time, 1).unit != unit) {
      fail_config(prefix_, key, " \"", time_text(time), "\" is not in the unit of t_max, ",
                  time_unit_name(unit));
    }
  }
  if (c.t_scale.value < 1) fail_config(prefix_, "t_scale must be at least 1");
  if (c.alpha_f_decay < c.alpha_f_cooldown) {
    fail_config(prefix_, "alpha_f_decay ", c.alpha_f_decay, " must not be below alpha_f_cooldown ",
                c.alpha_f_cooldown);
  }
}

/// Composer refuses a schedule that is over before the run is, where both count in one unit.
void ComposerSchedule::check_end() const {
  if (!clock_.max_duration) return;
  Time end = *clock_.max_duration;
  if (end.unit == TimeUnit::kEpoch) {
    if (clock_.batches_per_epoch == 0) return;
    end = clock_.concrete("max_duration", end);
  }
  if (end.unit != config_.t_max.unit || config_.t_max.value >= end.value) return;
  fail_config(prefix_, "t_max comes to ", time_text(config_.t_max),
              ", before the end of the run at ", time_text(end),
              "; make it \"1dur\", or shorten the run");
}

double ComposerSchedule::multiplier(int64_t batch) const {
  const ComposerScheduleConfig& c = config_;
  const double t = clock_.elapsed(batch, unit_);
  if (c.shape == ComposerShape::kInverseSqrt) return inverse_sqrt(t);
  if (c.warmup) {
    if (t < c.t_warmup.value) {
      double peak = 1;
      if (c.shape == ComposerShape::kConstant) peak = c.alpha;
      if (c.shape == ComposerShape::kLinear) peak = c.alpha_i;
      return ramp_ > 0 ? peak * std::min(1.0, t / ramp_) : 0.0;
    }
    if (c.shape == ComposerShape::kConstant) return c.alpha;
  }
  switch (c.shape) {
    case ComposerShape::kStep:
      return std::pow(c.gamma, std::floor(t / c.step_size.value));
    case ComposerShape::kMultiStep: {
      const auto passed =
          std::count_if(c.milestones.begin(), c.milestones.end(),
                        [&](const Time& m) { return clock_.elapsed(batch, m.unit) >= m.value; });
      return std::pow(c.gamma, static_cast<double>(passed));
    }
    case ComposerShape::kConstant:
      return t < c.t_max.value ? c.alpha : 1.0;
    case ComposerShape::kExponential:
      return std::pow(c.gamma, t / c.decay_period.value);
    case ComposerShape::kWarmRestarts:
      return warm_restarts(t);
    case ComposerShape::kLinear:
    case ComposerShape::kCosine:
    case ComposerShape::kPolynomial:
    case ComposerShape::kInverseSqrt:
      break;
  }
  const double start = c.warmup ? c.t_warmup.value : 0.0;
  const double length = c.t_max.value - start;
  return after_warmup(length > 0 ? std::min(1.0, (t - start) / length) : 0.0);
}

double ComposerSchedule::after_warmup(double x) const {
  const ComposerScheduleConfig& c = config_;
  if (c.shape == ComposerShape::kLinear) return c.alpha_i + (c.alpha_f - c.alpha_i) * x;
  if (c.shape == ComposerShape::kCosine) return cosine(x, c.alpha_f);
  return c.alpha_f + (1.0 - c.alpha_f) * std::pow(1.0 - x, c.power);
}

double ComposerSchedule::warm_restarts(double t) const {
  double begin = 0;
  double length = config_.t_0.value;
  while (t >= begin + length) {
    begin += length;
    const double next = std::trunc(length * config_.t_mult);
    if (next < 1) {
      fail_config(prefix_, "t_mult ", config_.t_mult, " shrinks a cycle of the run to length 0, ",
                  begin, time_unit_name(unit_), " after the start; set it to 1 or more");
    }
    if (next == length) begin += std::floor((t - begin) / length) * length;  // all further ones
    length = next;
  }
  return cosine((t - begin) / length, config_.alpha_f);
}

double ComposerSchedule::inverse_sqrt(double t) const {
  const ComposerScheduleConfig& c = config_;
  if (t < c.t_warmup.value) return t / c.t_warmup.value;
  const auto decayed = [&](double at) {
    return c.alpha_f_decay +
           (1.0 - c.alpha_f_decay) /
               std::sqrt((at - c.t_warmup.value + c.t_scale.value) / c.t_scale.value);
  };
  const double cooldown = c.t_max.value - c.t_cooldown.value;
  if (t < cooldown || c.t_cooldown.value == 0) return decayed(std::min(t, cooldown));
  const double share = std::min(1.0, (t - cooldown) / c.t_cooldown.value);
  return decayed(cooldown) + share * (c.alpha_f_cooldown - decayed(cooldown));
}

}  // namespace zerosharp
