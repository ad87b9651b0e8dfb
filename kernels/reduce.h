// Reduction of equal slices that come from several ranks.
#pragma once
#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/stream.h"

namespace zerosharp {

enum class ReduceOp : uint8_t { kSum, kMean, kMax, kMin };

namespace kernels {

/// dst[i] = sources[0][i] ∘ sources[1][i] ∘ … in that order, for `num_sources` ≥ 1 slices of
/// `numel` elements. bf16 and fp16 are summed in fp32 and rounded once; fp32 in fp32; fp64 and
/// int64 in themselves; kMean divides the sum by `num_sources` (int64: refused). `dst` may be one
/// of the sources. `sources` is a host array; with a CUDA stream at most 64 sources.
void reduce_slices(const void* const* sources, int num_sources, ReduceOp op, DType dtype,
                   int64_t numel, void* dst, Stream stream);

}  // namespace kernels
}  // namespace zerosharp
