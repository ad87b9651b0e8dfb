// Writes the schedule's values into the optimizer's own groups.
#pragma once
#include <cstdint>
#include <optional>

#include "engine/composer_schedule.h"
#include "engine/schedule.h"
#include "zero/param_groups.h"

namespace zerosharp {

/// Holds a reference to the one set of groups, so the rate it writes is the rate the next update
/// reads. Stateless otherwise: the value is a function of the number of applied updates.
class LrScheduler {
 public:
  /// Writes the values of the first update at once. `composer` belongs to kind kComposer.
  LrScheduler(ParamGroups& groups, const SchedulerConfig& config,
              std::optional<ComposerSchedule> composer = std::nullopt);

  /// Writes lr (OneCycle: beta1 too) of every group for the update after `applied` applied ones.
  void update(int64_t applied);

 private:
  ParamGroups& groups_;
  SchedulerConfig config_;
  std::optional<ComposerSchedule> composer_;
};

}  // namespace zerosharp
