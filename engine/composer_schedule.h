// Composer's and LLM Foundry's schedules as pure functions of the number of batches.
#pragma once
#include <cstdint>
#include <string>

#include "engine/config/composer_schedule_config.h"

namespace zerosharp {

/// The shapes, with τ the time in the unit that the schedule's own times convert to:
/// - step: γ^⌊τ/step_size⌋; multistep: γ^#{m ≤ τ}; exponential: γ^(τ/decay_period);
/// - constant: α until t_max, then 1 (with warm-up: α for good);
/// - linear: α_i + (α_f − α_i)·x, cosine: α_f + (1 − α_f)(1 + cos πx)/2, polynomial:
///   α_f + (1 − α_f)(1 − x)^power, x = min(1, τ/t_max);
/// - warm restarts: cosine over cycles of t_0·t_mult^i, each length cut to a whole number;
/// - …_with_warmup: from 0 to the peak (constant α, linear α_i, else 1) over t_warmup, then
///   x = (τ − t_warmup)/(t_max − t_warmup), 0 if that is not positive. scale_warmup stretches the
///   ramp by the scale-schedule ratio and leaves its end where it is;
/// - inverse square root (LLM Foundry): warm-up, then α_d + (1 − α_d)/√((τ − t_warmup + t_scale) /
///   t_scale), over the last t_cooldown linear to alpha_f_cooldown.
class ComposerSchedule {
 public:
  /// Converts the times. `prefix` names the settings in messages ("scheduler."). Throws ConfigError
  /// for times that do not fit each other or the clock, and for a t_max before the end of the run.
  ComposerSchedule(const ComposerScheduleConfig& config, const RunClock& clock,
                   const std::string& prefix);

  /// α while batch number `batch`, from 0, is trained.
  double multiplier(int64_t batch) const;

 private:
  Time convert(const char* key, const Time& time, double ratio) const;
  void convert_period(const char* key, Time& period);
  void convert_warmup();
  void check_end() const;
  void check_inverse_sqrt() const;
  double after_warmup(double x) const;
  double inverse_sqrt(double t) const;
  double warm_restarts(double t) const;

  ComposerScheduleConfig config_;  // its times are concrete
  RunClock clock_;
  std::string prefix_;
  TimeUnit unit_ = TimeUnit::kBatch;
  double ramp_ = 0;  // length of the warm-up's slope
};

}  // namespace zerosharp
