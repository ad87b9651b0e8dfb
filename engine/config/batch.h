// The arithmetic of train_batch_size = micro · accumulation · ranks.
#pragma once
#include <cstdint>
#include <string>

#include "engine/config/config.h"

namespace zerosharp {

/// Fills in what is missing (0) of the three numbers for `world_size` ranks, by DeepSpeed's table:
/// two given → the third; the total alone → accumulation 1; the micro-batch alone → accumulation 1.
/// Throws ConfigError that shows the derivation when they do not fit, one becomes 0 or none is
/// given.
BatchConfig derive_batch(const BatchConfig& given, int world_size);

}  // namespace zerosharp
