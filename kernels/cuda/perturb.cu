// SAM's perturbation. Bytes per parameter with bf16 gradients and weights: 8 (reads gradient 2,
// master 4; writes weight 2).
#include "kernels/cuda/entry.h"
#include "kernels/cuda/launch.cuh"

namespace zerosharp::kernels::cuda {
namespace {

template <class G, class W, bool kStochastic>
__global__ void __launch_bounds__(kThreads)
    perturb_kernel(int64_t numel, const G* grad, const float* master, W* weight,
                   int64_t first_element, PerturbStep step, double* workspace) {
  const float scale = *step.scale;
  Sums mine;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  const int64_t end = isnan(scale) ? 0 : numel;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < end; i += stride) {
    const float base = master != nullptr ? master[i] : to_float(weight[i]);
    float e = scale * to_float(grad[i]);
    if (step.adaptive) {
      const float t = fabsf(base) + step.eta;
      e = e * (t * t);
    }
    const float value = base + e;
    W rounded = from_float<W>(value);
    if (kStochastic) {
      const auto element = static_cast<uint64_t>(first_element + i);
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

template <class G, class W>
void launch(const PerturbShard& s, const PerturbStep& step, double* workspace, unsigned blocks,
            cudaStream_t stream) {
  const auto* grad = static_cast<const G*>(s.grad);
  auto* weight = static_cast<W*>(s.weight);
  if (step.rounding == Rounding::kStochastic) {
    perturb_kernel<G, W, true><<<blocks, kThreads, 0, stream>>>(s.numel, grad, s.master, weight,
                                                                s.first_element, step, workspace);
  } else {
    perturb_kernel<G, W, false><<<blocks, kThreads, 0, stream>>>(s.numel, grad, s.master, weight,
                                                                 s.first_element, step, workspace);
  }
  ZS_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void perturb(const PerturbShard& shard, const PerturbStep& step, double* stats, double* workspace,
             Stream stream) {
  const unsigned blocks = reduction_blocks(shard.numel);
  with_type(shard.grad_dtype, [&]<class G>(G*) {
    with_type(shard.weight_dtype,
              [&]<class W>(W*) { launch<G, W>(shard, step, workspace, blocks, native(stream)); });
  });
  add_partials<<<1, kThreads, 0, native(stream)>>>(workspace, static_cast<int>(blocks), stats, 3);
  ZS_CUDA_CHECK(cudaGetLastError());
}

}  // namespace zerosharp::kernels::cuda
