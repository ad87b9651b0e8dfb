// Sharpness-aware minimization (Foret et al. 2021, arXiv 2010.01412) above a partitioned optimizer.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/config/config.h"
#include "engine/train_pass.h"
#include "zero/bf16_optimizer.h"

namespace zerosharp {

/// Wraps the finished, sharded optimizer: g at w, e = ρ·g/‖g‖ written into the working weights
/// only, g at w + e, then the base optimizer's update from the untouched masters, which also
/// publishes clean weights. It is no torch::optim::Optimizer and owns no groups, so no scheduler
/// can bind to copies of them, and it cannot be built before the optimizer has sharded its
/// parameters.
///
/// Scope global: e from the gradient averaged over ranks, equal everywhere, ‖e‖ = ρ at any number
/// of ranks and stage. Scope local (m-sharpness): each rank ascends along its own gradient; the
/// first pass communicates nothing; working weights differ between the passes and are equal again
/// after.
class SamAdapter {
 public:
  /// `buffers`: the module's buffers; what the second pass does to them is undone (freeze_bn).
  /// Throws ConfigError for rho < 0 or NaN, interval < 1 or an unknown variant.
  SamAdapter(Bf16Optimizer& base, const SamConfig& config, uint64_t seed,
             std::vector<at::Tensor> buffers = {});

  /// The base optimizer's groups themselves.
  ParamGroups& param_groups() noexcept { return base_.param_groups(); }
  /// The warm-up is exactly the base optimizer's; it needs no closure.
  void initialize_states() { base_.initialize_states(); }

  /// Always throws ConfigError: a training step of SAM evaluates the loss twice, so it needs the
  /// closure. The message shows both calls that have one.
  [[noreturn]] void step();

  /// One update from two passes over `micro_batches` micro-batches (on steps that `interval` leaves
  /// out: one pass). Collective. If any rank meets a non-finite loss or gradient in either pass, or
  /// throws, every rank skips, weights are clean and equal, and the failing rank's exception is
  /// thrown there (CommError on the others). Losses are multiplied by `loss_scale` for backward.
  void step(const LossClosure& closure, int64_t micro_batches, double loss_scale = 1.0);

  /// Whether the next step() will perturb: the shared step count alone decides.
  bool next_step_perturbs() const noexcept { return (steps_ + 1) % config_.interval == 0; }
  const SamConfig& config() const noexcept { return config_; }

 private:
  void perturbed_step(PassFailure& failure, const LossClosure& closure, int64_t micro_batches,
                      double loss_scale);

  Bf16Optimizer& base_;
  SamConfig config_;
  uint64_t seed_;
  std::vector<at::Tensor> buffers_;
  int64_t steps_ = 0;
};

}  // namespace zerosharp
