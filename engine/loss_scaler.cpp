#include "engine/loss_scaler.h"

#include <algorithm>
#include <cmath>

#include "kernels/error.h"

namespace zerosharp {

LossScaler::LossScaler(const Fp16Config& config)
    : config_(config),
      dynamic_(config.loss_scale == 0.0),
      scale_(dynamic_ ? std::ldexp(1.0, static_cast<int>(config.initial_scale_power))
                      : config.loss_scale),
      hysteresis_left_(config.hysteresis) {}

void LossScaler::update(bool overflow) {
  if (!dynamic_) return;
  if (overflow) {
    if (hysteresis_left_ <= 1) {
      if (scale_ <= config_.min_loss_scale) {
        fail<Error>("fp16: gradients overflow at the minimum loss scale ", config_.min_loss_scale,
                    " (fp16.min_loss_scale); lower the learning rate or train in bf16");
      }
      scale_ = std::max(scale_ / 2.0, config_.min_loss_scale);
    } else {
      --hysteresis_left_;
    }
    last_overflow_step_ = steps_;
  } else {
    if (config_.consecutive_hysteresis) hysteresis_left_ = config_.hysteresis;
    const int64_t clean = steps_ - last_overflow_step_;
    if (clean > 0 && clean % config_.loss_scale_window == 0) {
      if (!config_.consecutive_hysteresis) hysteresis_left_ = config_.hysteresis;
      scale_ *= 2.0;
    }
  }
  ++steps_;
}

}  // namespace zerosharp
