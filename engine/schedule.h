// Learning-rate schedules as pure functions of the number of applied steps.
#pragma once
#include <cstdint>

#include "engine/config/config.h"

namespace zerosharp {

/// What a schedule sets for one group before an update.
struct ScheduledValue {
  double lr = 0;
  bool sets_beta1 = false;  ///< OneCycle with cycle_momentum
  double beta1 = 0;
};

/// Checks `config` (sizes, missing required values). `train_steps` fills total_steps = 0.
/// Throws ConfigError naming the scheduler.params key. Returns the completed configuration.
SchedulerConfig checked_schedule(SchedulerConfig config, int64_t train_steps);

/// The value for update number `applied` (0 for the first update, counting applied updates only) of
/// a group whose configured rate is `initial_lr`.
/// - constant, linear, cosine (Composer's *WithWarmup forms; x = (t−w)/(T−w)): lr = initial·α with
///   α = t/w for t < w, then 1 | 1+(α_f−1)·min(1,x) | α_f+(1−α_f)(1+cos πx)/2.
/// - WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle: DeepSpeed's formulas and its lag: update 0
///   uses the construction value, update n ≥ 1 uses its t = n−1.
/// Schedules under scheduler.name are ComposerSchedule's; here they are constant.
ScheduledValue scheduled_value(const SchedulerConfig& config, int64_t applied, double initial_lr);

}  // namespace zerosharp
