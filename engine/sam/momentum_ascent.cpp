#include "engine/sam/momentum_ascent.h"

#include <torch/torch.h>

#include "kernels/error.h"
#include "kernels/norm.h"
#include "kernels/perturb.h"
#include "zero/device.h"

namespace zerosharp {
namespace {

void check_momentum(const Bf16Optimizer& base) {
  using kernels::OptimizerKind;
  if (base.uses_foreign_optimizer()) {
    fail_config(
        "sam.variant \"msam\" needs the optimizer's momentum, which a foreign optimizer keeps to "
        "itself; use a built-in optimizer, or another variant");
  }
  for (const ParamGroup& group : base.param_groups()) {
    const bool has = group.kind == OptimizerKind::kSgd ? group.momentum != 0
                                                       : group.kind != OptimizerKind::kAdagrad;
    if (has) continue;
    fail_config("sam.variant \"msam\" needs momentum, but the optimizer is ",
                kernels::optimizer_name(group.kind),
                group.kind == OptimizerKind::kSgd ? " without it: set optimizer.params.momentum"
                                                  : ": use AdamW, Adam, Lion or SGD with momentum",
                ", or use another variant");
  }
}

}  // namespace

MomentumAscent::MomentumAscent(Bf16Optimizer& base, double epsilon, kernels::Rounding rounding,
                               uint64_t seed)
    : base_(base), epsilon_(epsilon), rounding_(rounding), seed_(seed) {
  check_momentum(base);
  base_.set_before_publish([this] { perturb_share(); });
}

void MomentumAscent::perturb_share() {
  StepSums& sums = base_.ascent_sums();
  sums.clear();
  const auto momentum = [&](const FlatGroup& group, int64_t begin) {
    return static_cast<const float*>(address(group.states().at(0), begin - group.owned().begin));
  };
  for (const auto& group : base_.flat_groups()) {
    kernels::sum_squares(momentum(*group, group->share().begin), DType::kF32, group->share().size(),
                         sums.slots(), sums.workspace(), base_.stream());
  }
  base_.reduce_sums_of(sums);
  kernels::ascent_scale(sums.slots(), 1.0, -rho_, epsilon_, sums.factors(StepSums::kAscent),
                        base_.stream());
  kernels::PerturbStep step;
  step.scale = sums.factors(StepSums::kAscent);
  step.rounding = rounding_;
  step.seed = seed_;
  step.step = step_;
  for (const auto& group : base_.flat_groups()) {
    const ShardRange owned = group->owned();
    kernels::PerturbShard shard;
    shard.numel = owned.size();
    shard.grad = momentum(*group, owned.begin);
    shard.grad_dtype = DType::kF32;
    shard.master = static_cast<const float*>(address(group->master()));
    shard.weight = address(group->weights(), owned.begin);
    shard.weight_dtype = base_.options().working;
    shard.first_element = owned.begin;
    kernels::perturb(shard, step, sums.slots(StepSums::kMoved), sums.workspace(), base_.stream());
  }
  base_.set_perturbed(true);
}

void MomentumAscent::publish_perturbed() {
  perturb_share();
  base_.gather_weights();
}

}  // namespace zerosharp
