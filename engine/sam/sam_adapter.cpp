#include "engine/sam/sam_adapter.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "engine/sam/check.h"
#include "kernels/error.h"

namespace zerosharp {
namespace {

using Pass = Bf16Optimizer::Pass;

constexpr int kInactiveSteps = 5;          // in a row, before a warning
constexpr double kInactiveShare = 0.1;     // of the expected rise of the loss
constexpr double kReadableRise = 0x1p-18;  // of the loss; less is lost in its fp32 digits

std::unique_ptr<Communicator> make_group(Communicator& all, const SamConfig& config,
                                         int local_ranks) {
  if (config.scope != SamScope::kGroup) return nullptr;
  return all.split(all.rank() / static_cast<int>(sam_group_size(config, all.size(), local_ranks)));
}

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.clone());
  return result;
}

}  // namespace

SamAdapter::SamAdapter(Bf16Optimizer& base, const SamConfig& config, SamContext context)
    : base_(base), config_(config), context_(std::move(context)) {
  check_sam(config_);
  group_ = make_group(base_.communicator(), config_, context_.local_ranks);
  ascent_.emplace(base_, config_,
                  ParameterMask(base_.flat_groups(), config_.params, context_.norm_parameters),
                  context_.seed);
  const SamVariant variant = config_.variant;
  if (variant == SamVariant::kGsam || variant == SamVariant::kLookSam || config_.report_cosine) {
    kept_.emplace(base_);
  }
  if (variant == SamVariant::kMsam) {
    momentum_.emplace(base_, config_.epsilon, ascent_->rounding(), context_.seed);
  }
  if (config_.scope == SamScope::kMicro) scratch_.emplace(base_);
  if (const auto warning = radius_warning(config_, base_.options().working, ascent_->survey())) {
    warnings_.push_back(*warning);
  }
  if (const auto warning = never_active_warning(config_, context_.total_steps)) {
    warnings_.push_back(*warning);
  }
}

SamAdapter::~SamAdapter() = default;

void SamAdapter::step() {
  fail_config(
      "SAM's step() needs a closure, because it evaluates the loss twice: call "
      "engine.train_batch(closure), or SamAdapter::step(closure, micro_batches)");
}

const StepOutcome& SamAdapter::step(const PassClosure& closure, int64_t micro_batches,
                                    double loss_scale) {
  if (!closure) step();
  PassFailure failure;
  try {
    const int64_t first = open_boundary(micro_batches, loss_scale);
    if (scratch_ && ascends_) {
      micro_step(failure, closure);
    } else {
      failure.run(base_, closure, {0, 0, !ascends_}, first, loss_scale);
      if (end_ascent()) failure.run(base_, closure, {0, 1, true}, micro_batches, loss_scale);
    }
    finish();
  } catch (...) {
    abandon();
    throw;
  }
  failure.rethrow();
  return base_.outcome();
}

bool SamAdapter::rests() const noexcept {
  const ParamGroups& groups = base_.param_groups();
  return config_.skip_when_lr_zero &&
         std::all_of(groups.begin(), groups.end(), [](const auto& g) { return g.lr == 0; });
}

bool SamAdapter::in_active_steps() const noexcept {
  return steps_ >= config_.start_step && (config_.end_step == 0 || steps_ < config_.end_step);
}

bool SamAdapter::next_step_perturbs() const noexcept {
  if (momentum_ || !in_active_steps() || rests()) return false;
  if (config_.variant == SamVariant::kLookSam) return steps_ % config_.k == 0 || !kept_valid_;
  return (steps_ + 1) % config_.interval == 0;
}

double SamAdapter::rho() const { return rho_schedule_ ? rho_schedule_(steps_) : config_.rho; }

SamAdapter::Descent SamAdapter::plan_descent() const noexcept {
  if (config_.variant == SamVariant::kGsam && ascends_) return Descent::kOrthogonal;
  if (config_.variant == SamVariant::kLookSam && in_active_steps() && !rests()) {
    return ascends_ ? Descent::kKeep : Descent::kReuse;
  }
  return Descent::kGradient;
}

void SamAdapter::check_has_parts() const {
  if (!scratch_) return;
  fail_config(
      "sam.scope \"micro\" perturbs for each micro-batch anew, which a loop in parts "
      "(begin_ascent, end_ascent, finish) cannot express; call engine.train_batch(closure), or "
      "choose scope \"global\", \"local\" or \"group\"");
}

int64_t SamAdapter::begin_ascent(int64_t micro_batches, double loss_scale) {
  check_has_parts();
  return open_boundary(micro_batches, loss_scale);
}

int64_t SamAdapter::open_boundary(int64_t micro_batches, double loss_scale) {
  abandon();
  // A skipped step has not made the orthogonal part that its k − 1 successors want.
  if (std::exchange(kept_pending_, false)) kept_valid_ = base_.outcome().applied;
  ascends_ = next_step_perturbs();
  descent_ = plan_descent();
  micro_batches_ = micro_batches;
  loss_scale_ = loss_scale;
  first_pass_ = ascends_ ? ascent_micro_batches(config_, micro_batches) : micro_batches;
  if (ascends_ && !scratch_) {
    if (config_.same_rng) rng_.emplace(base_.device());
    only_masked_.emplace(base_.flat_groups(), ascent_->mask());
  }
  base_.begin(ascends_ && !scratch_ ? Pass::kAscent : Pass::kDescent);
  return first_pass_;
}

bool SamAdapter::end_ascent() {
  only_masked_.reset();
  if (!ascends_) return false;
  reduce_ascent();
  ascent_->measure(unscale(first_pass_));
  if (config_.variant == SamVariant::kAeSam && !trigger()) {
    base_.promote_ascent();
    descent_ = Descent::kPromoted;
    return false;
  }
  ascent_->perturb(numbers());
  base_.clear_gradients();
  base_.set_pass(Pass::kDescent);
  if (ascent_->shared() && base_.skip_is_certain()) return false;  // the same on every rank
  if (config_.freeze_bn) buffers_.emplace(context_.buffers);
  if (rng_) rng_->restore();
  return true;
}

void SamAdapter::reduce_ascent() {
  if (!ascent_->shared()) return base_.reduce_gradients_within(group_.get());
  base_.reduce_gradients();
  if (kept_) kept_->keep();
}

/// AE-SAM (Jiang et al. 2023, section 4.2): a second pass where ‖g‖² lies c standard deviations
/// above its mean. The host must know ‖g‖², so it waits for the device.
bool SamAdapter::trigger() {
  StepSums& sums = base_.ascent_sums();
  sums.start_readback();
  sums.wait_readback();
  if (sums.slot(StepSums::kNonFinite) > 0) return true;  // ends in a skip
  const double square = sums.slot(StepSums::kSumSquares) * std::pow(unscale(first_pass_), 2);
  const double kept = observed_++ == 0 ? 0.0 : config_.decay;
  mean_square_ = kept * mean_square_ + (1 - kept) * square;
  variance_ = kept * variance_ + (1 - kept) * std::pow(square - mean_square_, 2);
  return square >=
         mean_square_ + sam_threshold(config_, steps_, context_.total_steps) * std::sqrt(variance_);
}

void SamAdapter::finish() {
  if (buffers_) buffers_->restore();
  if (momentum_) momentum_->set(in_active_steps() ? rho() : 0.0, static_cast<uint64_t>(steps_));
  ++steps_;
  if (descent_ == Descent::kPromoted) {
    base_.step(unscale(first_pass_));
  } else {
    update();
  }
  kept_pending_ = descent_ == Descent::kKeep;
  abandon();
}

void SamAdapter::update() {
  base_.reduce_gradients();
  if (kept_ && (ascends_ || descent_ == Descent::kReuse)) kept_->measure();
  base_.count_squares();
  base_.reduce_sums();
  if (descent_ == Descent::kOrthogonal) kept_->subtract_orthogonal(config_.alpha);
  if (descent_ == Descent::kKeep) kept_->keep_orthogonal();
  if (descent_ == Descent::kReuse) kept_->add_kept(config_.alpha);
  base_.step(unscale(micro_batches_));
}

/// Every micro-batch finds clean weights, is perturbed by its own gradient and leaves clean
/// weights.
void SamAdapter::micro_step(PassFailure& failure, const PassClosure& closure) {
  scratch_->save_weights();
  for (int64_t micro = 0; micro < micro_batches_; ++micro) {
    if (config_.same_rng) rng_.emplace(base_.device());
    scratch_->swap_accumulators();
    base_.set_pass(Pass::kAscent);
    base_.ascent_sums().clear();
    base_.clear_gradients();
    {
      const OnlyMasked only_masked(base_.flat_groups(), ascent_->mask());
      failure.run(base_, closure, {micro, 0, false}, micro + 1, loss_scale_);
    }
    base_.reduce_gradients_within(nullptr);
    ascent_->measure(unscale(1));
    ascent_->perturb(numbers(micro));
    scratch_->swap_accumulators();
    base_.set_pass(Pass::kDescent);

    if (config_.freeze_bn) buffers_.emplace(context_.buffers);
    if (rng_) rng_->restore();
    failure.run(base_, closure, {micro, 1, true}, micro + 1, loss_scale_);
    if (buffers_) buffers_->restore();
    buffers_.reset();
    scratch_->restore_weights();
  }
}

AscentNumbers SamAdapter::numbers(int64_t micro) const {
  return {rho(), static_cast<uint64_t>(steps_), static_cast<uint64_t>(micro)};
}

double SamAdapter::unscale(int64_t micro_batches) const {
  return 1.0 / (static_cast<double>(micro_batches) * loss_scale_);
}

/// Drops what belongs to a boundary, finished or not.
void SamAdapter::abandon() noexcept {
  only_masked_.reset();
  rng_.reset();
  buffers_.reset();
}

void SamAdapter::publish_clean() {
  if (momentum_) momentum_->publish_clean();
}

void SamAdapter::publish_perturbed() {
  if (momentum_) momentum_->publish_perturbed();
}

SamState SamAdapter::state() {
  if (std::exchange(kept_pending_, false)) kept_valid_ = base_.outcome().applied;
  SamState state{steps_, kept_valid_, mean_square_, variance_, observed_, {}};
  if (config_.variant == SamVariant::kLookSam) state.vectors = copies(kept_->shards());
  if (!ascent_->mean().empty()) state.vectors = copies(ascent_->mean());
  return state;
}

void SamAdapter::load_state(const SamState& state) {
  std::vector<at::Tensor>& own =
      config_.variant == SamVariant::kLookSam ? kept_->shards() : ascent_->mean();
  const bool fits =
      std::equal(own.begin(), own.end(), state.vectors.begin(), state.vectors.end(),
                 [](const at::Tensor& a, const at::Tensor& b) { return a.sizes() == b.sizes(); });
  if (!fits) {
    fail_shape("the SAM state holds ", state.vectors.size(), " kept shards that do not fit the ",
               own.size(), " of sam.variant \"", sam_variant_name(config_.variant),
               "\" here; load a state of the same variant and sharding");
  }
  steps_ = state.steps;
  kept_valid_ = state.kept_valid;
  kept_pending_ = false;
  mean_square_ = state.mean_square;
  variance_ = state.variance;
  observed_ = state.observed;
  for (size_t g = 0; g < own.size(); ++g) own[g].copy_(state.vectors[g]);
}

int64_t SamAdapter::bytes() const {
  return ascent_->bytes() + (kept_ ? kept_->bytes() : 0) + (scratch_ ? scratch_->bytes() : 0);
}

void SamAdapter::observe(const StepOutcome& outcome) {
  const double rise = outcome.loss_perturbed - outcome.loss;
  const bool readable = outcome.perturbed && outcome.applied && config_.ascent_fraction == 1.0 &&
                        outcome.expected_gap > kReadableRise * std::abs(outcome.loss);
  if (!readable) return;
  inactive_steps_ = rise < kInactiveShare * outcome.expected_gap ? inactive_steps_ + 1 : 0;
  if (inactive_steps_ != kInactiveSteps) return;
  warnings_.push_back(inactive_warning(outcome));
}

}  // namespace zerosharp
