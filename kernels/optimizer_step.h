// The fused optimizer pass: one read of gradient, master and states, one write of master, states
// and working weight.
#pragma once
#include <cstdint>
#include <limits>

#include "kernels/dtype.h"
#include "kernels/stream.h"

namespace zerosharp::kernels {

enum class OptimizerKind : uint8_t { kAdamW, kAdam, kSgd, kLion, kAdagrad };

/// "AdamW", "Adam (L2)", "SGD", "Lion" or "Adagrad".
const char* optimizer_name(OptimizerKind kind) noexcept;

/// Number of fp32 state values per parameter: Adam(W) 2, Lion and Adagrad 1, SGD 1 with momentum,
/// else 0.
int num_states(OptimizerKind kind, double momentum) noexcept;

/// One step's numbers, equal for every element of a run. Unused fields are ignored.
struct OptimizerStep {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  /// Factor of weight_decay where decay is decoupled: w ← w·(1 − decay_rate·wd); NaN: lr.
  double decay_rate = std::numeric_limits<double>::quiet_NaN();
  double momentum = 0;           ///< SGD
  double dampening = 0;          ///< SGD
  bool nesterov = false;         ///< SGD
  bool decoupled_decay = false;  ///< SGD: w ← w·(1 − decay_factor) instead of g ← g + wd·w
  double lr_decay = 0;           ///< Adagrad
  int64_t step = 1;              ///< 1 for the first update of these elements
  bool bias_correction = true;   ///< Adam(W)
  /// One float in the memory of the pointers below: every gradient is multiplied by it first
  /// (unscale × clip). If it is NaN, masters and states stay untouched and only
  /// weight ← round(master) is written: this is how a step is skipped, and a perturbed working
  /// weight restored, without asking the host. Null means 1.
  const float* grad_scale = nullptr;
};

/// A run of `numel` elements. No alignment is required beyond that of the element types; buffers
/// must not overlap. States the kind does not have may be null.
struct OptimizerShard {
  int64_t numel = 0;
  const void* grad = nullptr;  ///< fp32, bf16 or fp16
  DType grad_dtype = DType::kF32;
  float* master = nullptr;
  float* state0 = nullptr;  ///< exp_avg | momentum buffer | Adagrad's sum
  float* state1 = nullptr;  ///< exp_avg_sq
  void* weight = nullptr;   ///< round-to-nearest-even of the new master
  DType weight_dtype = DType::kBF16;
};

/// Updates one run. All arithmetic is fp32; hyper-parameters are combined in fp64 on the host and
/// rounded once. Formulas, with g ← g·grad_scale:
/// - AdamW (Loshchilov & Hutter 2019, alg. 2, torch.optim.AdamW): w ← w·(1−lr·wd); m, v moments;
///   w ← w − (lr/(1−β1ᵗ))·m / (√v/√(1−β2ᵗ) + eps).  Adam: g ← g + wd·w first, no decay of w.
/// - SGD (torch.optim.SGD): d = g + wd·w; buf = d on step 1, else momentum·buf + (1−dampening)·d;
///   d ← nesterov ? d + momentum·buf : buf; w ← w − lr·d. With `decoupled_decay` wd leaves d and
///   w ← w·(1 − lr·wd) first.
/// - Lion (Chen et al. 2023, alg. 2): w ← w·(1−lr·wd) − lr·sign(β1·m + (1−β1)·g), sign(0) = 0;
///   m ← β2·m + (1−β2)·g.
/// - Adagrad (torch.optim.Adagrad): g ← g + wd·w; s ← s + g²; w ← w −
/// lr/(1+(t−1)·lr_decay)·g/(√s+eps). Throws ConfigError on null pointers the kind needs or a dtype
/// it cannot read, CudaError on launch failure. Each element's result does not depend on its
/// position, the run's size or thread count.
void optimizer_step(const OptimizerShard& shard, const OptimizerStep& step, Stream stream);

}  // namespace zerosharp::kernels
