// The limit of the CPU optimizer pass: its memory streams without its arithmetic.
#pragma once
#include <cstdint>

namespace zerosharp::benchmarks {

/// Reads grad, master, m and v and writes master, m, v and weight, elements [begin, end): what the
/// fused AdamW pass with bf16 gradients and weights moves, 28 bytes an element. `zero` must be 0;
/// the compiler cannot know, so no stream is left out.
void same_streams(const uint16_t* grad, uint32_t* master, uint32_t* m, uint32_t* v,
                  uint16_t* weight, uint32_t zero, int64_t begin, int64_t end);

}  // namespace zerosharp::benchmarks
