// Momentum-SAM: the perturbation follows the optimizer's momentum, so no second pass is needed.
#pragma once
#include <cstdint>

#include "kernels/perturb.h"
#include "zero/bf16_optimizer.h"

namespace zerosharp {

/// Working weights are published as round(w − ρ·m/‖m‖), m the momentum buffer or Adam's first
/// moment (Becker et al. 2024, alg. 1): each step costs one pass over the shard and an all-reduce
/// of a few numbers more than the base optimizer's. Between steps working weights stay perturbed;
/// publish_clean() and publish_perturbed() change that for evaluation and saving.
class MomentumAscent {
 public:
  /// Hooks the optimizer's step(). Throws ConfigError where there is no momentum.
  MomentumAscent(Bf16Optimizer& base, double epsilon, kernels::Rounding rounding, uint64_t seed);

  /// Radius and random bits of the next step's perturbation.
  void set(double rho, uint64_t step) {
    rho_ = rho;
    step_ = step;
  }
  /// Collective, each.
  void publish_clean() { base_.publish(); }
  void publish_perturbed();

 private:
  void perturb_share();

  Bf16Optimizer& base_;
  double epsilon_;
  kernels::Rounding rounding_;
  uint64_t seed_;
  double rho_ = 0;
  uint64_t step_ = 0;
};

}  // namespace zerosharp
