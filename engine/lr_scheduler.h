// Writes the schedule's values into the optimizer's own groups.
#pragma once
#include <cstdint>

#include "engine/schedule.h"
#include "zero/param_groups.h"

namespace zerosharp {

/// Holds a reference to the one set of groups, so the rate it writes is the rate the next update
/// reads. Stateless otherwise: the value is a function of the number of applied updates.
class LrScheduler {
 public:
  /// Writes the values of the first update at once.
  LrScheduler(ParamGroups& groups, const SchedulerConfig& config);

  /// Writes lr (OneCycle: beta1 too) of every group for the update after `applied` applied ones.
  void update(int64_t applied);

 private:
  ParamGroups& groups_;
  SchedulerConfig config_;
};

}  // namespace zerosharp
