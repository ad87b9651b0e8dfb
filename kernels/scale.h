// The factors of norm.h as arithmetic on two sums, shared by host and device.
#pragma once
#include "kernels/element.h"

namespace zerosharp::kernels {

/// Without the library's isfinite, which host and device spell differently.
ZS_ELEMENT bool is_finite(double value) { return value - value == 0; }

struct ScalePair {
  float scale, norm;
};

ZS_ELEMENT ScalePair clip_pair(double sum, double bad, double pre_scale, double max_norm) {
  const double norm = pre_scale * sqrt(sum);
  const bool finite = bad == 0 && is_finite(norm);
  double scale = pre_scale;
  if (max_norm > 0) {
    const double factor = max_norm / (norm + 1e-6);
    scale = factor < 1 ? pre_scale * factor : pre_scale;
  }
  return {finite ? static_cast<float>(scale) : float_of(0x7fc00000u), static_cast<float>(norm)};
}

ZS_ELEMENT ScalePair ascent_pair(double sum, double bad, double pre_scale, double rho, double eps) {
  const double raw = sqrt(sum);
  const bool finite = bad == 0 && is_finite(raw);
  const double scale = raw > 0 ? rho / (raw + eps / pre_scale) : 0;
  return {finite ? static_cast<float>(scale) : float_of(0x7fc00000u),
          static_cast<float>(pre_scale * raw)};
}

}  // namespace zerosharp::kernels
