// The section "sam" of a configuration.
#pragma once
#include "engine/config/config.h"
#include "engine/config/key_values.h"

namespace zerosharp {

/// Complains about coefficients of other variants, and about a scope that the variant lacks.
SamConfig read_sam(KeyValues& v, Complaints& complaints);

/// "global", "group", "local" or "micro".
const char* sam_scope_name(SamScope scope) noexcept;
/// "auto", "nearest" or "stochastic".
const char* sam_rounding_name(SamRounding rounding) noexcept;

}  // namespace zerosharp
