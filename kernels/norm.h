// Gradient norm in one pass, and the factors derived from it, all without asking the host.
#pragma once
#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/stream.h"

namespace zerosharp::kernels {

/// Doubles of scratch memory (same memory kind as the data) that reductions need.
inline constexpr int64_t kReductionWorkspace = 8192;

/// sums[0] += Σ x² and sums[1] += the number of infinities and NaNs among `numel` elements of `x`
/// (fp32, bf16 or fp16). Squares are exact products summed in fp64 in an order that depends on
/// `numel` only, so equal input gives equal bits on any thread count. A non-finite element makes
/// sums[0] non-finite too. `workspace`: kReductionWorkspace doubles, may be null on the CPU.
void sum_squares(const void* x, DType dtype, int64_t numel, double* sums, double* workspace,
                 Stream stream);

/// From sums = {Σg², number of non-finite}: out[1] = pre_scale·√Σg² (the global norm before
/// clipping) and out[0] = pre_scale · min(1, max_norm / (out[1] + 1e-6)) (max_norm ≤ 0: no
/// clipping). If anything was non-finite out[0] is NaN, which makes optimizer_step do nothing.
void clip_scale(const double* sums, double pre_scale, double max_norm, float* out, Stream stream);

/// SAM's ascent factor (Foret et al. 2021, eq. 2 with p = 2), so that e = out[0]·g for the raw
/// accumulated gradient g: out[0] = rho / (√Σg² + eps / pre_scale), 0 when the norm is 0 and NaN
/// (perturb then does nothing) when anything was non-finite. out[1] = pre_scale·√Σg².
void ascent_scale(const double* sums, double pre_scale, double rho, double eps, float* out,
                  Stream stream);

}  // namespace zerosharp::kernels
