// The fused optimizer pass. Bytes per parameter with bf16 gradients and weights: AdamW 28 (reads
// gradient 2, master 4, two states 8; writes master 4, states 8, weight 2), Lion and Adagrad 20,
// SGD with momentum 20, SGD 12.
#include "kernels/cuda/entry.h"
#include "kernels/cuda/launch.cuh"

namespace zerosharp::kernels::cuda {
namespace {

template <OptimizerKind kKind, bool kHasMomentum>
struct Rule {
  static constexpr bool kTwoStates =
      kKind == OptimizerKind::kAdamW || kKind == OptimizerKind::kAdam;
  static constexpr bool kOneState = kKind != OptimizerKind::kSgd || kHasMomentum;

  template <class G, class W>
  static __device__ __forceinline__ void update(G grad, float& master, float& state0, float& state1,
                                                W& weight, float scale, const UpdateNumbers& n) {
    ElementState e{master, state0, state1};
    update_element<kKind, kHasMomentum>(e, to_float(grad) * scale, n);
    master = e.master;
    state0 = e.state0;
    state1 = e.state1;
    weight = from_float<W>(e.master);
  }
};

template <class R, class G, class W>
__device__ __forceinline__ void update_one(const G* grad, float* master, float* state0,
                                           float* state1, W* weight, int64_t i, float scale,
                                           const UpdateNumbers& n) {
  float w = master[i];
  float s0 = R::kOneState ? state0[i] : 0.0f;
  float s1 = R::kTwoStates ? state1[i] : 0.0f;
  R::update(grad[i], w, s0, s1, weight[i], scale, n);
  master[i] = w;
  if (R::kOneState) state0[i] = s0;
  if (R::kTwoStates) state1[i] = s1;
}

/// A skipped step only restores the working weights.
template <class W>
__device__ __forceinline__ void restore(const float* master, W* weight, int64_t begin,
                                        int64_t end) {
  for (int64_t i = begin; i < end; ++i) weight[i] = from_float<W>(master[i]);
}

template <class R, class G, class W>
__global__ void __launch_bounds__(kThreads)
    wide_kernel(int64_t numel, const G* grad, float* master, float* state0, float* state1,
                W* weight, const float* grad_scale, UpdateNumbers n) {
  const int64_t begin = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kPack;
  if (begin >= numel) return;
  const float scale = grad_scale != nullptr ? *grad_scale : 1.0f;
  const int64_t end = begin + kPack < numel ? begin + kPack : numel;
  if (isnan(scale)) return restore(master, weight, begin, end);
  if (end - begin < kPack) {
    for (int64_t i = begin; i < end; ++i) {
      update_one<R>(grad, master, state0, state1, weight, i, scale, n);
    }
    return;
  }
  const Pack<G> g = load(grad + begin);
  Pack<float> w = load(master + begin);
  Pack<float> s0, s1;
  if (R::kOneState) s0 = load(state0 + begin);
  if (R::kTwoStates) s1 = load(state1 + begin);
  Pack<W> out;
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    R::update(g.v[i], w.v[i], s0.v[i], s1.v[i], out.v[i], scale, n);
  }
  store(master + begin, w);
  if (R::kOneState) store(state0 + begin, s0);
  if (R::kTwoStates) store(state1 + begin, s1);
  store(weight + begin, out);
}

/// For buffers that do not start on 16 bytes.
template <class R, class G, class W>
__global__ void __launch_bounds__(kThreads)
    narrow_kernel(int64_t numel, const G* grad, float* master, float* state0, float* state1,
                  W* weight, const float* grad_scale, UpdateNumbers n) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= numel) return;
  const float scale = grad_scale != nullptr ? *grad_scale : 1.0f;
  if (isnan(scale)) return restore(master, weight, i, i + 1);
  update_one<R>(grad, master, state0, state1, weight, i, scale, n);
}

template <class R, class G, class W>
void launch(const OptimizerShard& s, const UpdateNumbers& n, const float* grad_scale,
            cudaStream_t stream) {
  const auto* grad = static_cast<const G*>(s.grad);
  auto* weight = static_cast<W*>(s.weight);
  const bool wide = aligned(grad) && aligned(s.master) && aligned(weight) &&
                    (!R::kOneState || aligned(s.state0)) && (!R::kTwoStates || aligned(s.state1));
  if (wide) {
    const unsigned blocks = blocks_for((s.numel + kPack - 1) / kPack);
    wide_kernel<R><<<blocks, kThreads, 0, stream>>>(s.numel, grad, s.master, s.state0, s.state1,
                                                    weight, grad_scale, n);
  } else {
    narrow_kernel<R><<<blocks_for(s.numel), kThreads, 0, stream>>>(
        s.numel, grad, s.master, s.state0, s.state1, weight, grad_scale, n);
  }
  ZS_CUDA_CHECK(cudaGetLastError());
}

template <class G, class W>
void launch_kind(const OptimizerShard& s, OptimizerKind kind, const UpdateNumbers& n,
                 const float* grad_scale, cudaStream_t stream) {
  switch (kind) {
    case OptimizerKind::kAdamW:
    case OptimizerKind::kAdam:
      return launch<Rule<OptimizerKind::kAdamW, false>, G, W>(s, n, grad_scale, stream);
    case OptimizerKind::kSgd:
      if (n.momentum != 0) {
        return launch<Rule<OptimizerKind::kSgd, true>, G, W>(s, n, grad_scale, stream);
      }
      return launch<Rule<OptimizerKind::kSgd, false>, G, W>(s, n, grad_scale, stream);
    case OptimizerKind::kLion:
      return launch<Rule<OptimizerKind::kLion, false>, G, W>(s, n, grad_scale, stream);
    case OptimizerKind::kAdagrad:
      return launch<Rule<OptimizerKind::kAdagrad, false>, G, W>(s, n, grad_scale, stream);
  }
}

}  // namespace

void optimizer_step(const OptimizerShard& shard, OptimizerKind kind, const UpdateNumbers& numbers,
                    const float* grad_scale, Stream stream) {
  with_type(shard.grad_dtype, [&]<class G>(G*) {
    with_type(shard.weight_dtype, [&]<class W>(W*) {
      launch_kind<G, W>(shard, kind, numbers, grad_scale, native(stream));
    });
  });
}

}  // namespace zerosharp::kernels::cuda
