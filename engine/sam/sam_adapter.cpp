#include "engine/sam/sam_adapter.h"

#include <cmath>
#include <optional>

#include "engine/sam/rng_snapshot.h"
#include "kernels/error.h"

namespace zerosharp {

SamAdapter::SamAdapter(Bf16Optimizer& base, const SamConfig& config, uint64_t seed,
                       std::vector<at::Tensor> buffers)
    : base_(base), config_(config), seed_(seed), buffers_(std::move(buffers)) {
  if (!(config.rho >= 0) || std::isinf(config.rho)) {
    fail_config("sam.rho must be a finite number of at least 0, got ", config.rho);
  }
  if (config.interval < 1) {
    fail_config("sam.interval must be at least 1, got ", config.interval);
  }
  if (config.variant != "sam") {
    fail_config("sam.variant must be \"sam\", got \"", config.variant, "\"");
  }
}

void SamAdapter::step() {
  fail_config(
      "SAM's step() needs a closure, because it evaluates the loss twice: call "
      "engine.train_batch(closure), or SamAdapter::step(closure, micro_batches)");
}

void SamAdapter::step(const LossClosure& closure, int64_t micro_batches, double loss_scale) {
  if (!closure) step();
  const bool perturb = next_step_perturbs();
  ++steps_;
  PassFailure failure;
  if (perturb) {
    perturbed_step(failure, closure, micro_batches, loss_scale);
  } else {
    base_.begin();
    failure.run(base_, closure, micro_batches, loss_scale);
  }
  base_.reduce();
  base_.step(1.0 / (static_cast<double>(micro_batches) * loss_scale));
  failure.rethrow();
}

void SamAdapter::perturbed_step(PassFailure& failure, const LossClosure& closure,
                                int64_t micro_batches, double loss_scale) {
  std::optional<RngSnapshot> rng;
  if (config_.same_rng) rng.emplace(base_.device());

  base_.begin(Bf16Optimizer::Pass::kAscent);
  failure.run(base_, closure, micro_batches, loss_scale);
  const bool local = config_.scope == SamScope::kLocal;
  base_.reduce(local);

  Ascent ascent;
  ascent.rho = config_.rho;
  ascent.epsilon = config_.epsilon;
  ascent.unscale = 1.0 / (static_cast<double>(micro_batches) * loss_scale);
  ascent.local = local;
  ascent.rounding = config_.rounding;
  ascent.seed = seed_;
  ascent.step = static_cast<uint64_t>(steps_);
  base_.ascend(ascent);

  if (base_.skip_is_certain()) return;  // the same decision on every rank
  std::optional<BufferSnapshot> buffers;
  if (config_.freeze_bn) buffers.emplace(buffers_);
  if (rng) rng->restore();
  failure.run(base_, closure, micro_batches, loss_scale);
  if (buffers) buffers->restore();
}

}  // namespace zerosharp
