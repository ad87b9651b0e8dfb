// SAM's perturbation and its norm. Bytes per parameter with bf16 gradients and weights: 8 (reads
// gradient 2, master 4; writes weight 2).
#include "kernels/cuda/entry.h"
#include "kernels/cuda/launch.cuh"

namespace zerosharp::kernels::cuda {
namespace {

template <class W>
__device__ __forceinline__ float base_of(const PerturbShard& shard, const W* weight, int64_t i) {
  return shard.master != nullptr ? shard.master[i] : to_float(weight[i]);
}

template <class G, class W, bool kStochastic, bool kMagnitude, bool kPreconditioned>
__global__ void __launch_bounds__(kThreads)
    perturb_kernel(PerturbShard shard, PerturbStep step, double* workspace) {
  const auto* grad = static_cast<const G*>(shard.grad);
  auto* weight = static_cast<W*>(shard.weight);
  const float scale = *step.scale;
  Sums mine;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  const int64_t end = isnan(scale) ? 0 : shard.numel;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < end; i += stride) {
    const float base = base_of(shard, weight, i);
    const float second = kPreconditioned ? shard.second_moment[i] : 0.0f;
    const float e =
        weighted<kMagnitude, kPreconditioned>(scale * to_float(grad[i]), base, second, step.shift);
    const float value = base + e;
    W rounded = from_float<W>(value);
    if (kStochastic) {
      const auto element = static_cast<uint64_t>(shard.first_element + i);
      rounded = stochastic_from_float<W>(value, philox_word(step.seed, step.step, element));
    }
    const float before = to_float(from_float<W>(base));
    const float after = to_float(rounded);
    const double shift = double{after} - double{before};
    mine.v[0] += after != before ? 1.0 : 0.0;
    mine.v[1] += shift * shift;
    mine.v[2] += double{e} * double{e};
    weight[i] = rounded;
  }
  const Sums total = block_sum(mine);
  if (threadIdx.x == 0) {
    for (int k = 0; k < 3; ++k) workspace[3 * blockIdx.x + k] = total.v[k];
  }
}

template <class G, class W, bool kMagnitude, bool kPreconditioned>
__global__ void __launch_bounds__(kThreads)
    weighted_squares_kernel(PerturbShard shard, float shift, double* workspace) {
  const auto* grad = static_cast<const G*>(shard.grad);
  const auto* weight = static_cast<const W*>(shard.weight);
  Sums mine;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < shard.numel; i += stride) {
    const float g = to_float(grad[i]);
    const float second = kPreconditioned ? shard.second_moment[i] : 0.0f;
    const float scaled =
        weighted<kMagnitude, kPreconditioned>(g, base_of(shard, weight, i), second, shift);
    mine.v[0] += double{g} * double{scaled};
    mine.v[1] += (bits_of(g) & 0x7f800000u) == 0x7f800000u ? 1.0 : 0.0;
    mine.v[2] += double{scaled} * double{scaled};
  }
  const Sums total = block_sum(mine);
  if (threadIdx.x == 0) {
    for (int k = 0; k < 3; ++k) workspace[3 * blockIdx.x + k] = total.v[k];
  }
}

/// Calls `body` with types and weighting as template arguments.
template <class Body>
void with_kinds(const PerturbShard& shard, Weighting weighting, Body body) {
  with_type(shard.grad_dtype, [&]<class G>(G*) {
    with_type(shard.weight_dtype, [&]<class W>(W*) {
      switch (weighting) {
        case Weighting::kNone:
          return body.template operator()<G, W, false, false>();
        case Weighting::kMagnitude:
          return body.template operator()<G, W, true, false>();
        case Weighting::kPreconditioned:
          return body.template operator()<G, W, false, true>();
      }
    });
  });
}

}  // namespace

void perturb(const PerturbShard& shard, const PerturbStep& step, double* stats, double* workspace,
             Stream stream) {
  const unsigned blocks = reduction_blocks(shard.numel);
  with_kinds(shard, step.weighting, [&]<class G, class W, bool kMagnitude, bool kPreconditioned>() {
    if (step.rounding == Rounding::kStochastic) {
      perturb_kernel<G, W, true, kMagnitude, kPreconditioned>
          <<<blocks, kThreads, 0, native(stream)>>>(shard, step, workspace);
    } else {
      perturb_kernel<G, W, false, kMagnitude, kPreconditioned>
          <<<blocks, kThreads, 0, native(stream)>>>(shard, step, workspace);
    }
  });
  ZS_CUDA_CHECK(cudaGetLastError());
  add_partials<<<1, kThreads, 0, native(stream)>>>(workspace, static_cast<int>(blocks), stats, 3);
  ZS_CUDA_CHECK(cudaGetLastError());
}

void sum_squares_weighted(const PerturbShard& shard, Weighting weighting, float shift, double* sums,
                          double* workspace, Stream stream) {
  const unsigned blocks = reduction_blocks(shard.numel);
  with_kinds(shard, weighting, [&]<class G, class W, bool kMagnitude, bool kPreconditioned>() {
    weighted_squares_kernel<G, W, kMagnitude, kPreconditioned>
        <<<blocks, kThreads, 0, native(stream)>>>(shard, shift, workspace);
  });
  ZS_CUDA_CHECK(cudaGetLastError());
  add_partials<<<1, kThreads, 0, native(stream)>>>(workspace, static_cast<int>(blocks), sums, 3);
  ZS_CUDA_CHECK(cudaGetLastError());
}

}  // namespace zerosharp::kernels::cuda
