// SAM's perturbation of the working weights: added in fp32 to the master, rounded once.
#pragma once
#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/stream.h"

namespace zerosharp::kernels {

enum class Rounding : uint8_t { kNearest, kStochastic };

/// The factor t of e = scale·t²·g.
enum class Weighting : uint8_t {
  kNone,           ///< 1
  kMagnitude,      ///< |base| + shift: ASAM (Kwon et al. 2021, eq. 7)
  kPreconditioned  ///< 1 / √(√v + shift), v Adam's second moment
};

struct PerturbShard {
  int64_t numel = 0;
  const void* grad = nullptr;
  DType grad_dtype = DType::kF32;
  const float* master = nullptr;  ///< null: the base is the working weight itself
  void* weight = nullptr;         ///< working weight, overwritten
  DType weight_dtype = DType::kBF16;
  int64_t first_element =
      0;  ///< index of element 0 in the whole flat buffer (keys the random bits)
  const float* second_moment = nullptr;  ///< v, for Weighting::kPreconditioned
};

struct PerturbStep {
  const float* scale = nullptr;  ///< one float beside the data. NaN: nothing happens
  Rounding rounding = Rounding::kNearest;
  uint64_t seed = 0;
  uint64_t step = 0;
  Weighting weighting = Weighting::kNone;
  float shift = 0;
};

/// weight ← round(base + e) with base = master, or the old weight where master is null.
/// stats (3 doubles, same memory, added to): [0] number of elements whose working weight differs
/// from round-to-nearest(base), [1] Σ(weight − round-to-nearest(base))², [2] Σe².
/// Stochastic rounding takes the bits of Philox4x32-10 with key `seed` and counter (element/4,
/// step), so every rank, replay and device draws the same bits for an element. fp32 working weights
/// are never rounded. `workspace`: kReductionWorkspace doubles (norm.h), may be null on the CPU.
/// Reads a gradient, a base and (kPreconditioned) 4 bytes, writes a weight per element.
void perturb(const PerturbShard& shard, const PerturbStep& step, double* stats, double* workspace,
             Stream stream);

/// sums[0] += Σ (t·g)², sums[1] += the number of infinities and NaNs among g, and for weightings
/// other than kNone sums[2] += Σ (t²·g)². t²·g is rounded to fp32, sums are fp64 in an order that
/// depends on `numel` only. Reads what `perturb` reads.
void sum_squares_weighted(const PerturbShard& shard, Weighting weighting, float shift, double* sums,
                          double* workspace, Stream stream);

}  // namespace zerosharp::kernels
