// The update rules, one element at a time; formulas and sources are in optimizer_step.h.
#pragma once
#include "kernels/element.h"
#include "kernels/optimizer_step.h"

namespace zerosharp::kernels {

/// A step's numbers after combination in fp64 and one rounding.
struct UpdateNumbers {
  float decay = 1;  ///< 1 − lr·wd (decoupled) …
  float l2 = 0;     ///< … or wd, added to the gradient
  float beta1 = 0, one_minus_beta1 = 0;
  float beta2 = 0, one_minus_beta2 = 0;
  float inv_sqrt_bias2 = 1;
  float eps = 0;
  float rate = 0;  ///< lr, over the bias correction of the first moment for Adam(W)
  float momentum = 0, one_minus_dampening = 1;
  bool first_step = false;
  bool nesterov = false;
};

UpdateNumbers update_numbers(const OptimizerStep& step);

struct ElementState {
  float master, state0, state1;
};

template <OptimizerKind kKind, bool kHasMomentum>
ZS_ELEMENT void update_element(ElementState& e, float g, const UpdateNumbers& n) {
  float w = e.master;
  if constexpr (kKind == OptimizerKind::kAdamW || kKind == OptimizerKind::kAdam) {
    g = g + n.l2 * w;
    w = w * n.decay;
    e.state0 = n.beta1 * e.state0 + n.one_minus_beta1 * g;
    e.state1 = n.beta2 * e.state1 + n.one_minus_beta2 * (g * g);
    const float denominator = sqrtf(e.state1) * n.inv_sqrt_bias2 + n.eps;
    w = w - n.rate * (e.state0 / denominator);
  } else if constexpr (kKind == OptimizerKind::kSgd) {
    float d = g + n.l2 * w;
    w = w * n.decay;
    if constexpr (kHasMomentum) {
      e.state0 = n.first_step ? d : n.momentum * e.state0 + n.one_minus_dampening * d;
      d = n.nesterov ? d + n.momentum * e.state0 : e.state0;
    }
    w = w - n.rate * d;
  } else if constexpr (kKind == OptimizerKind::kLion) {
    const float c = n.beta1 * e.state0 + n.one_minus_beta1 * g;
    const float sign = static_cast<float>(c > 0) - static_cast<float>(c < 0);
    w = w * n.decay - n.rate * sign;
    e.state0 = n.beta2 * e.state0 + n.one_minus_beta2 * g;
  } else {
    g = g + n.l2 * w;
    e.state0 = e.state0 + g * g;
    w = w - n.rate * (g / (sqrtf(e.state0) + n.eps));
  }
  e.master = w;
}

}  // namespace zerosharp::kernels
