// Schedules and other settings in Composer's words.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "engine/config/config.h"
#include "engine/config/key_values.h"

namespace zerosharp {

/// The names of Composer's schedules, "step|multistep|…".
std::string schedule_names();

/// Reads the schedule that `prefix`name chooses, with its settings beside it; what another one
/// reads is a complaint. `allowed` are keys below the prefix that every schedule may have.
ComposerScheduleConfig read_composer_schedule(KeyValues& v, const std::string& prefix,
                                              std::vector<std::string> allowed,
                                              Complaints& complaints);

/// The settings `schedule` reads, for the resolved configuration.
nlohmann::ordered_json composer_schedule_json(const ComposerScheduleConfig& schedule);

/// max_duration and scale_schedule_ratio, which replace train.steps.
void read_duration(KeyValues& v, Config& config, Complaints& complaints);

/// Whether the file uses Composer's words, so that its defaults hold: no gradient clipping.
bool speaks_composer(const KeyValues& v);

}  // namespace zerosharp
