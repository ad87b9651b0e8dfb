// Memory and age of this process as the kernel counts them.
#pragma once
#include <cstdint>

namespace zerosharp {

int64_t rss_bytes();       ///< resident now; 0 where /proc is missing
int64_t peak_rss_bytes();  ///< resident at most so far
/// Seconds since the process was started, the loading of its libraries included.
double process_age_seconds();

}  // namespace zerosharp
