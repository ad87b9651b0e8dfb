// The loss scale of fp16 training.
#pragma once
#include <cstdint>

#include "engine/config/config.h"

namespace zerosharp {

/// DeepSpeed's state machine: static when `loss_scale` > 0, else dynamic. On overflow the scale is
/// halved (not below `min_loss_scale`) once `hysteresis` overflows were seen; it doubles after
/// every `loss_scale_window` steps without one, and hysteresis is then refilled
/// (`consecutive_hysteresis`: by every clean step).
class LossScaler {
 public:
  /// Scale 1 that never moves (bf16, fp32).
  LossScaler() = default;
  explicit LossScaler(const Fp16Config& config);

  double scale() const noexcept { return scale_; }
  /// Takes in the outcome of one step. Throws Error when it overflows at the minimum scale.
  void update(bool overflow);

 private:
  Fp16Config config_;
  bool dynamic_ = false;
  double scale_ = 1.0;
  int64_t hysteresis_left_ = 0;
  int64_t steps_ = 0;
  int64_t last_overflow_step_ = -1;
};

}  // namespace zerosharp
