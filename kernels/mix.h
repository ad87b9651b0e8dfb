// Sums and linear maps of two vectors: what SAM's variants make of two gradients.
#pragma once
#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/stream.h"

namespace zerosharp::kernels {

/// sums[0] += Σ x·y, sums[1] += Σ x², sums[2] += Σ y² over `numel` elements of x (fp32, bf16 or
/// fp16) and y (fp32). Exact products, summed in fp64 in an order that depends on `numel` only.
/// `workspace`: kReductionWorkspace doubles (norm.h), may be null on the CPU. Reads 4 bytes and an
/// x per element.
void dots(const void* x, DType x_dtype, const float* y, int64_t numel, double* sums,
          double* workspace, Stream stream);

/// x ← m[0]·x + m[1]·y, y ← m[2]·x + m[3]·y, both from the old values, in fp32, each rounded once
/// to its type. `matrix`: four floats beside the data. If m[0] is NaN nothing happens. A vector
/// whose row is (1, 0), y's (0, 1), keeps its bits, whatever the other holds. Reads and writes both
/// vectors, at most 2·(4 bytes and an x) per element.
void mix(void* x, DType x_dtype, float* y, int64_t numel, const float* matrix, Stream stream);

}  // namespace zerosharp::kernels
