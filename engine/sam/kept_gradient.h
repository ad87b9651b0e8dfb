// The first pass's gradient, kept on the shard so that the update can use both passes' gradients.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "zero/bf16_optimizer.h"

namespace zerosharp {

/// One fp32 vector k over the shards (4 bytes per owned element), beside the accumulated gradient
/// x of the current pass. All methods work on owned elements, on the device's current stream,
/// without asking the host; where anything was non-finite, nothing changes.
class KeptGradient {
 public:
  explicit KeptGradient(Bf16Optimizer& base);

  /// k ← x, between the first pass's reduce_gradients() and the second pass.
  void keep();
  /// Between reduce_gradients() and reduce_sums() of the update: ⟨x, k⟩, ‖x‖², ‖k‖² into its sums.
  void measure();

  // After reduce_sums(). Each sets kSumSquares of the step's sums to ‖x‖² of the new x.

  /// GSAM (Zhuang et al. 2022, alg. 1): x ← x − α·(k − c·x), the part of k orthogonal to x, with
  /// c = ⟨x, k⟩ / ‖x‖².
  void subtract_orthogonal(double alpha);
  /// LookSAM (Liu et al. 2022, alg. 1), its two-pass steps: k ← x − (⟨x, k⟩ / ‖k‖²)·k, the part of
  /// the sharp gradient orthogonal to the plain one. x stays.
  void keep_orthogonal();
  /// LookSAM's other steps: x ← x + α·(‖x‖ / ‖k‖)·k.
  void add_kept(double alpha);

  std::vector<at::Tensor>& shards() noexcept { return kept_; }
  int64_t bytes() const;

 private:
  void mix();

  Bf16Optimizer& base_;
  std::vector<at::Tensor> kept_;
};

}  // namespace zerosharp
