#include "engine/sam/ascent.h"

#include <torch/torch.h>

#include <cmath>

#include "kernels/error.h"
#include "kernels/mix.h"
#include "kernels/norm.h"
#include "zero/device.h"

namespace zerosharp {
namespace {

using kernels::OptimizerKind;
using kernels::Rounding;
using kernels::Weighting;

Weighting weighting_of(SamVariant variant) {
  if (variant == SamVariant::kAsam) return Weighting::kMagnitude;
  if (variant == SamVariant::kPreconditioned) return Weighting::kPreconditioned;
  return Weighting::kNone;
}

bool keeps_mean(SamVariant variant) {
  return variant == SamVariant::kFsam || variant == SamVariant::kVasso;
}

void check_second_moment(const Bf16Optimizer& base) {
  for (const ParamGroup& group : base.param_groups()) {
    if (group.kind == OptimizerKind::kAdamW || group.kind == OptimizerKind::kAdam) continue;
    fail_config("sam.variant \"preconditioned\" needs Adam's second moment, but the optimizer is ",
                kernels::optimizer_name(group.kind), "; use AdamW or Adam, or another variant");
  }
  if (base.uses_foreign_optimizer()) {
    fail_config(
        "sam.variant \"preconditioned\" needs Adam's second moment, which a foreign optimizer "
        "keeps to itself; use a built-in AdamW or Adam, or another variant");
  }
}

WeightSurvey survey_weights(Bf16Optimizer& base) {
  at::Tensor sums = at::zeros({3}, at::TensorOptions(at::kDouble).device(base.device()));
  for (const auto& group : base.flat_groups()) {
    const ShardRange share = group->share();
    const at::Tensor master =
        group->master().narrow(0, share.begin - group->owned().begin, share.size());
    const at::Tensor rounded = master.to(scalar_type(base.options().working)).to(at::kFloat);
    const at::Tensor nonzero = master.ne(0);
    sums.select(0, 0).add_(master.to(at::kDouble).square().sum());
    sums.select(0, 1).add_(rounded.eq(master).logical_and(nonzero).sum());
    sums.select(0, 2).add_(nonzero.sum());
  }
  base.communicator().all_reduce(span_of(sums), ReduceOp::kSum, base.stream());
  const at::Tensor host = sums.cpu();
  const auto* values = host.const_data_ptr<double>();
  return {std::sqrt(values[0]), values[2] > 0 ? values[1] / values[2] : 0.0};
}

Rounding choose_rounding(SamRounding asked, DType working, const WeightSurvey& survey) {
  if (asked == SamRounding::kNearest || working == DType::kF32) return Rounding::kNearest;
  if (asked == SamRounding::kStochastic) return Rounding::kStochastic;
  return survey.rounded_share > 0.5 ? Rounding::kStochastic : Rounding::kNearest;
}

}  // namespace

Ascent::Ascent(Bf16Optimizer& base, const SamConfig& config, ParameterMask mask, uint64_t seed)
    : base_(base),
      config_(config),
      mask_(std::move(mask)),
      seed_(seed),
      weighting_(weighting_of(config.variant)),
      shift_(static_cast<float>(weighting_ == Weighting::kMagnitude ? config.eta : config.delta)),
      survey_(survey_weights(base)),
      rounding_(choose_rounding(config.rounding, base.options().working, survey_)) {
  if (weighting_ == Weighting::kPreconditioned) check_second_moment(base);
  if (!keeps_mean(config.variant)) return;
  for (const auto& group : base.flat_groups()) mean_.push_back(at::zeros_like(group->master()));
}

kernels::PerturbShard Ascent::shard_of(size_t index, ShardRange run, bool owned) const {
  FlatGroup& group = *base_.flat_groups()[index];
  const int64_t offset = run.begin - group.owned().begin;
  kernels::PerturbShard shard;
  shard.numel = run.size();
  if (config_.variant == SamVariant::kVasso) {
    shard.grad = address(mean_[index], offset);
    shard.grad_dtype = DType::kF32;
  } else {
    const at::Tensor& gradients = group.gradients().accumulator();
    shard.grad = address(gradients, run.begin);
    shard.grad_dtype = dtype_of(gradients.scalar_type());
  }
  if (owned) shard.master = static_cast<const float*>(address(group.master(), offset));
  if (weighting_ == Weighting::kPreconditioned) {
    shard.second_moment = static_cast<const float*>(address(group.states().at(1), offset));
  }
  shard.weight = address(group.weights(), run.begin);
  shard.weight_dtype = base_.options().working;
  shard.first_element = run.begin;
  return shard;
}

void Ascent::measure(double unscale) {
  unscale_ = config_.variant == SamVariant::kVasso ? 1.0 : unscale;  // its mean is unscaled
  StepSums& sums = base_.ascent_sums();
  if (mean_.empty()) {
    add_norms();
    if (shared()) base_.reduce_sums();
    if (weighting_ != Weighting::kPreconditioned) return;
    along_ = sums.slot_tensor(StepSums::kSumSquares) * (unscale * unscale);
    sums.slot_tensor(StepSums::kSumSquares).copy_(sums.slot_tensor(StepSums::kDirection));
    return;
  }
  base_.count_squares();
  add_dots();
  base_.reduce_sums();  // the mean may move only if everything was finite on every rank
  update_mean(unscale);
  sums.slot_tensor(StepSums::kSumSquares).zero_();
  add_norms();
  base_.communicator().all_reduce({sums.slots(StepSums::kSumSquares), 1, DType::kF64},
                                  ReduceOp::kSum, base_.stream());
}

/// ⟨g, m⟩, ‖g‖² and ‖m‖² of the share.
void Ascent::add_dots() {
  StepSums& sums = base_.ascent_sums();
  for (size_t g = 0; g < mean_.size(); ++g) {
    FlatGroup& group = *base_.flat_groups()[g];
    const ShardRange share = group.share();
    const at::Tensor& gradients = group.gradients().accumulator();
    kernels::dots(address(gradients, share.begin), dtype_of(gradients.scalar_type()),
                  static_cast<const float*>(address(mean_[g], share.begin - group.owned().begin)),
                  share.size(), sums.slots(StepSums::kDot), sums.workspace(), base_.stream());
  }
}

/// m is a mean of unscaled gradients, so a loss scale that moves does not enter it; fsam's d takes
/// g's place in the accumulator.
void Ascent::update_mean(double unscale) {
  StepSums& sums = base_.ascent_sums();
  const bool fsam = config_.variant == SamVariant::kFsam;
  const at::Tensor started = sums.slot_tensor(StepSums::kSecond).gt(0).to(at::kDouble);
  const at::Tensor kept = started * (fsam ? config_.decay : 1 - config_.theta);
  const at::Tensor taken_out = started * (fsam ? config_.sigma / unscale : 0.0);
  const at::Tensor fresh = (1 - kept) * unscale;
  sums.set_matrix({at::ones_like(kept), -taken_out, fresh, kept});
  for (size_t g = 0; g < mean_.size(); ++g) {
    FlatGroup& group = *base_.flat_groups()[g];
    const ShardRange owned = group.owned();
    const at::Tensor& gradients = group.gradients().accumulator();
    kernels::mix(address(gradients, owned.begin), dtype_of(gradients.scalar_type()),
                 static_cast<float*>(address(mean_[g])), owned.size(),
                 sums.factors(StepSums::kMatrix), base_.stream());
  }
  const at::Tensor gm = sums.slot_tensor(StepSums::kDot);
  const at::Tensor gg = sums.slot_tensor(StepSums::kFirst);
  along_ = fsam ? (gg - taken_out * gm) * (unscale * unscale) : (kept * gm + fresh * gg) * unscale;
}

void Ascent::add_norms() {
  StepSums& sums = base_.ascent_sums();
  for (size_t g = 0; g < base_.flat_groups().size(); ++g) {
    const FlatGroup& group = *base_.flat_groups()[g];
    const ShardRange share = group.share();
    const ShardRange all{0, group.layout().padded_numel};
    const bool whole_owned = group.owned().size() == all.size();
    const auto add = [&](ShardRange range, bool owned) {
      for (const ShardRange& run : mask_.runs(g, range)) {
        kernels::sum_squares_weighted(shard_of(g, run, owned), weighting_, shift_, sums.slots(),
                                      sums.workspace(), base_.stream());
      }
    };
    add(share, true);
    if (shared()) continue;
    add({all.begin, share.begin}, whole_owned);
    add({share.end, all.end}, whole_owned);
  }
}

void Ascent::perturb(const AscentNumbers& numbers) {
  StepSums& sums = base_.ascent_sums();
  kernels::ascent_scale(sums.slots(), unscale_, numbers.rho, config_.epsilon,
                        sums.factors(StepSums::kAscent), base_.stream());
  const at::Tensor norm = sums.factor_tensor(StepSums::kAscentRaw).to(at::kDouble);
  const at::Tensor slope = along_.defined() ? at::where(norm.gt(0), along_ / norm, norm) : norm;
  base_.step_sums().slot_tensor(StepSums::kAscentNorm).add_(norm);
  base_.step_sums().slot_tensor(StepSums::kExpectedGap).add_(slope, numbers.rho);

  kernels::PerturbStep step;
  step.scale = sums.factors(StepSums::kAscent);
  step.seed = seed_;
  step.step = numbers.step + (numbers.salt << 40);
  step.weighting = weighting_;
  step.shift = shift_;
  double* const counted = base_.step_sums().slots(StepSums::kMoved);
  // Statistics of parts that other ranks count too go where nobody reads them.
  double* const uncounted = shared() ? sums.slots(StepSums::kMoved) : counted;
  base_.set_perturbed(true);
  for (size_t g = 0; g < base_.flat_groups().size(); ++g) {
    const FlatGroup& group = *base_.flat_groups()[g];
    const ShardRange share = group.share();
    const ShardRange all{0, group.layout().padded_numel};
    const bool whole_owned = group.owned().size() == all.size();
    perturb_runs(g, share, true, step, counted);
    if (!whole_owned && shared()) continue;
    perturb_runs(g, {all.begin, share.begin}, whole_owned, step, uncounted);
    perturb_runs(g, {share.end, all.end}, whole_owned, step, uncounted);
  }
  if (shared()) base_.gather_weights();
  base_.note_ascent(numbers.rho, shared() ? 1 : base_.communicator().size(), mask_.numel());
}

void Ascent::perturb_runs(size_t group, ShardRange range, bool owned, kernels::PerturbStep step,
                          double* stats) {
  // A working weight that is its own base is a value of its dtype, which rounding to nearest would
  // not move.
  step.rounding = owned ? rounding_ : Rounding::kStochastic;
  for (const ShardRange& run : mask_.runs(group, range)) {
    kernels::perturb(shard_of(group, run, owned), step, stats, base_.ascent_sums().workspace(),
                     base_.stream());
  }
}

int64_t Ascent::bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& mean : mean_) bytes += static_cast<int64_t>(mean.nbytes());
  return bytes;
}

}  // namespace zerosharp
