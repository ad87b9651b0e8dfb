// The entries of the key table, in parts.
#pragma once
#include <vector>

#include "engine/config/key_table.h"

namespace zerosharp {

/// The keys that do something, sorted by section as documented.
std::vector<KeySpec> honoured_keys();

/// Those of the section "sam"; part of honoured_keys().
std::vector<KeySpec> sam_keys();

/// Composer's and LLM Foundry's: schedules, times and other names for the same things.
std::vector<KeySpec> composer_keys();

/// The keys DeepSpeed knows and this library does not need (a warning) or refuses (an error).
std::vector<KeySpec> deepspeed_keys();

}  // namespace zerosharp
