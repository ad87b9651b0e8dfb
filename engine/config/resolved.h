// A configuration written back as JSON.
#pragma once
#include <string>

#include "engine/config/config.h"

namespace zerosharp {

/// Every effective key, pretty-printed, in a stable order; parse_config reads it back to an equal
/// configuration at the same number of ranks.
std::string resolved_json(const Config& config);

}  // namespace zerosharp
