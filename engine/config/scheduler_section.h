// The section "scheduler" of a configuration.
#pragma once
#include <optional>

#include "engine/config/config.h"
#include "engine/config/key_values.h"

namespace zerosharp {

/// The checked schedule, or nothing where the section is absent or wrong. `config` holds what it
/// depends on: the optimizer's rate and train.steps. Complains about parameters of other schedules
/// and about values the schedule cannot work with; warns about legal but doubtful ones.
std::optional<SchedulerConfig> read_scheduler(KeyValues& v, const Config& config,
                                              Complaints& complaints);

}  // namespace zerosharp
