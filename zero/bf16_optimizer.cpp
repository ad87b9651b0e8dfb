#include "zero/bf16_optimizer.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "kernels/error.h"
#include "kernels/norm.h"
#include "kernels/optimizer_step.h"
#include "zero/device.h"
#include "zero/foreign_optimizer.h"
#include "zero/group_builder.h"

namespace zerosharp {
namespace {

kernels::OptimizerStep step_numbers(const ParamGroup& group, int64_t step,
                                    const float* grad_scale) {
  kernels::OptimizerStep numbers;
  numbers.kind = group.kind;
  numbers.lr = group.lr;
  numbers.beta1 = group.beta1;
  numbers.beta2 = group.beta2;
  numbers.eps = group.eps;
  numbers.weight_decay = group.weight_decay;
  numbers.momentum = group.momentum;
  numbers.dampening = group.dampening;
  numbers.nesterov = group.nesterov;
  numbers.decoupled_decay = group.decoupled_decay;
  numbers.lr_decay = group.lr_decay;
  if (group.scheduled_decay) {
    numbers.decay_rate = group.initial_lr > 0 ? group.lr / group.initial_lr : 1.0;
  }
  numbers.bias_correction = group.bias_correction;
  numbers.step = step;
  numbers.grad_scale = grad_scale;
  return numbers;
}

int64_t tensor_bytes(const at::Tensor& tensor) { return tensor.numel() * tensor.element_size(); }

}  // namespace

Bf16Optimizer::Bf16Optimizer(std::vector<ParamGroupSpec> specs, const OptimizerOptions& options,
                             Communicator& communicator)
    : Bf16Optimizer(build_groups(specs, options, communicator), options, communicator) {}

Bf16Optimizer::Bf16Optimizer(BuiltGroups built, const OptimizerOptions& options,
                             Communicator& communicator)
    : options_(options),
      comm_(communicator),
      groups_(std::move(built.options)),
      device_(built.device),
      notes_(std::move(built.notes)) {
  const FlatGroupOptions flat{options.working, options.accumulator, options.stage >= 1};
  int64_t count = 0;
  int64_t largest = 0;
  for (const ParamGroup& group : groups_) kinds_.push_back(group.kind);
  for (auto& group : built.parameters) {
    count += static_cast<int64_t>(group.size());
    flat_.push_back(std::make_unique<FlatGroup>(std::move(group), flat, communicator));
    largest = std::max(largest, flat_.back()->layout().padded_numel);
  }
  reducer_ = std::make_unique<GradientReducer>(options.accumulator,
                                               options.communication.value_or(options.accumulator),
                                               largest, communicator.size(), device_);
  step_sums_ = std::make_unique<StepSums>(count, device_);
  ascent_sums_ = std::make_unique<StepSums>(count, device_);
}

Bf16Optimizer::Bf16Optimizer(std::vector<ParamGroupSpec> specs, const OptimizerOptions& options,
                             Communicator& communicator, const ForeignOptimizerFactory& factory)
    : Bf16Optimizer(std::move(specs), options, communicator) {
  foreign_ = std::make_unique<ForeignOptimizer>(flat_, factory);
}

Bf16Optimizer::~Bf16Optimizer() = default;

Stream Bf16Optimizer::stream() const { return current_stream(device_); }

void Bf16Optimizer::initialize_states() {
  if (states_initialized_) return;
  states_initialized_ = true;
  if (foreign_) {
    notes_.push_back(foreign_->initialize_states());
    return;
  }
  for (size_t g = 0; g < flat_.size(); ++g) {
    flat_[g]->allocate_states(kernels::num_states(groups_[g].kind, groups_[g].momentum));
  }
}

void Bf16Optimizer::begin(Pass pass) {
  ascent_sums_->clear();
  step_sums_->clear();
  pass_ = pass;
  boundary_ = {};
  clear_gradients();
}

void Bf16Optimizer::clear_gradients() {
  for (auto& group : flat_) group->gradients().clear();
}

void Bf16Optimizer::add_loss(const at::Tensor& loss) {
  sums().add_loss(loss);
  ++(pass_ == Pass::kAscent ? boundary_.ascent_micro_batches : boundary_.micro_batches);
}

void Bf16Optimizer::mark_failed() {
  boundary_.failed_here = true;
  step_sums_->mark_failed(comm_.rank());
  if (pass_ == Pass::kAscent) ascent_sums_->mark_failed(comm_.rank());
}

void Bf16Optimizer::reduce() {
  reduce_gradients();
  count_squares();
  reduce_sums();
}

void Bf16Optimizer::reduce_gradients() {
  finish_pass();
  for (auto& group : flat_) {
    const at::Tensor& gradients = group->gradients().accumulator();
    if (options_.stage == 0) {
      reducer_->all_reduce(gradients, comm_);
    } else {
      reducer_->reduce_scatter(gradients, comm_);
    }
  }
}

void Bf16Optimizer::reduce_gradients_within(Communicator* among) {
  finish_pass();
  if (among == nullptr) return;
  for (auto& group : flat_) reducer_->all_reduce(group->gradients().accumulator(), *among);
}

void Bf16Optimizer::finish_pass() {
  if (pass_ == Pass::kAscent) {
    step_sums_->add_slot(StepSums::kAscentLoss, *ascent_sums_, StepSums::kLoss);
  }
  std::vector<char> touched;
  for (auto& group : flat_) {
    GradSink& gradients = group->gradients();
    gradients.fill_untouched();
    for (size_t i = 0; i < group->parameters().size(); ++i) {
      touched.push_back(gradients.touched(static_cast<int64_t>(i)) ? 1 : 0);
    }
  }
  sums().set_touched(touched);
}

void Bf16Optimizer::count_squares() {
  for (auto& group : flat_) {
    const at::Tensor& gradients = group->gradients().accumulator();
    kernels::sum_squares(address(gradients, group->share().begin),
                         dtype_of(gradients.scalar_type()), group->share().size(), sums().slots(),
                         sums().workspace(), stream());
  }
}

void Bf16Optimizer::note_ascent(double rho, double replicas, int64_t num_perturbed) {
  boundary_.rho = rho;
  boundary_.replicas = replicas;
  boundary_.num_perturbed = num_perturbed;
  ++boundary_.ascents;
  step_sums_->add_slot(StepSums::kNonFinite, *ascent_sums_, StepSums::kNonFinite);
}

void Bf16Optimizer::promote_ascent() {
  step_sums_->assign(*ascent_sums_);
  boundary_.micro_batches = boundary_.ascent_micro_batches;
  pass_ = Pass::kDescent;
}

bool Bf16Optimizer::skip_is_certain() const {
  return device_.is_cpu() && ascent_sums_->slot(StepSums::kNonFinite) > 0;
}

void Bf16Optimizer::step(double unscale) {
  resolve();
  initialize_states();
  if (before_update_) before_update_(applied_steps_);
  check_groups();
  kernels::clip_scale(step_sums_->slots(), unscale, options_.max_grad_norm,
                      step_sums_->factors(StepSums::kGradScale), stream());
  pending_touched_ = touched_anywhere();
  if (foreign_) {
    update_foreign();
  } else {
    for (size_t g = 0; g < flat_.size(); ++g) update_group(g, flags_of(g, pending_touched_));
  }
  perturbed_ = false;
  if (before_publish_) before_publish_();
  gather_weights();
  step_sums_->start_readback();
  pending_ = true;
  pending_boundary_ = boundary_;
  if (device_.is_cpu()) resolve();
}

/// Users write into the groups at any time. All ranks hold the same numbers, so all throw.
void Bf16Optimizer::check_groups() {
  try {
    for (size_t g = 0; g < groups_.size(); ++g) {
      check_numbers(groups_[g]);
      if (groups_[g].kind != kinds_[g]) {
        fail_config("parameter group ", groups_[g].name, ": its kind was ",
                    kernels::optimizer_name(kinds_[g]), " at construction and is now ",
                    kernels::optimizer_name(groups_[g].kind),
                    "; states do not carry over, so build a new engine");
      }
    }
  } catch (const ConfigError&) {
    if (perturbed_) publish();
    throw;
  }
  if (foreign_) return;
  for (size_t g = 0; g < flat_.size(); ++g) {
    flat_[g]->allocate_states(kernels::num_states(groups_[g].kind, groups_[g].momentum));
  }
}

void Bf16Optimizer::update_group(size_t index, const std::vector<char>& touched) {
  FlatGroup& group = *flat_[index];
  const at::Tensor& gradients = group.gradients().accumulator();
  const auto state = [&](size_t which, int64_t offset) -> float* {
    if (which >= group.states().size()) return nullptr;
    return static_cast<float*>(address(group.states()[which], offset));
  };
  for (const UpdateRun& run : group.update_runs(touched)) {
    const int64_t offset = run.begin - group.owned().begin;
    kernels::OptimizerShard shard;
    shard.numel = run.end - run.begin;
    shard.grad = address(gradients, run.begin);
    shard.grad_dtype = options_.accumulator;
    shard.master = static_cast<float*>(address(group.master(), offset));
    shard.state0 = state(0, offset);
    shard.state1 = state(1, offset);
    shard.weight = address(group.weights(), run.begin);
    shard.weight_dtype = options_.working;
    kernels::optimizer_step(
        shard, step_numbers(groups_[index], run.step, step_sums_->factors(StepSums::kGradScale)),
        stream());
  }
  if (boundary_.ascents == 0) return;
  for (const ShardRange& run : group.untouched_runs(touched)) group.cast_master(run);
}

void Bf16Optimizer::update_foreign() {
  step_sums_->start_readback();
  step_sums_->wait_readback();  // a foreign optimizer cannot be told to skip on the device
  const float grad_scale = step_sums_->factor(StepSums::kGradScale);
  if (!std::isnan(grad_scale)) foreign_->step(flat_, groups_, grad_scale);
  for (auto& group : flat_) group->cast_master(group->owned());
}

void Bf16Optimizer::publish() {
  for (auto& group : flat_) group->cast_master(group->owned());
  gather_weights();
  perturbed_ = false;
}

void Bf16Optimizer::adopt_weights() {
  for (auto& group : flat_) {
    group->rebind();
    const FlatSpan span = span_of(group->weights());
    if (span.numel > 0 && comm_.size() > 1) comm_.broadcast(span, 0, stream());
    group->adopt_weights();
  }
}

void Bf16Optimizer::gather_weights() {
  if (options_.stage == 0) return;
  for (auto& group : flat_) {
    const FlatSpan span = span_of(group->weights());
    if (span.numel > 0) comm_.all_gather(span, stream());
  }
}

std::vector<char> Bf16Optimizer::touched_anywhere() {
  bool all = true;
  for (auto& group : flat_) all = all && group->gradients().all_touched();
  // A rank that has every gradient knows the union without asking the device.
  if (all) {
    size_t count = 0;
    for (auto& group : flat_) count += group->parameters().size();
    return std::vector<char>(count, 1);
  }
  return step_sums_->read_touched();
}

std::vector<char> Bf16Optimizer::flags_of(size_t group, const std::vector<char>& all) const {
  size_t begin = 0;
  for (size_t g = 0; g < group; ++g) begin += flat_[g]->parameters().size();
  const auto first = all.begin() + static_cast<std::ptrdiff_t>(begin);
  return {first, first + static_cast<std::ptrdiff_t>(flat_[group]->parameters().size())};
}

void Bf16Optimizer::resolve() {
  if (!pending_) return;
  pending_ = false;
  step_sums_->wait_readback();
  const Boundary& boundary = pending_boundary_;
  const double count =
      static_cast<double>(std::max<int64_t>(boundary.micro_batches, 1)) * comm_.size();
  outcome_ = {};
  outcome_.applied = !std::isnan(step_sums_->factor(StepSums::kGradScale));
  outcome_.grad_norm = step_sums_->factor(StepSums::kNorm);
  outcome_.loss = step_sums_->slot(StepSums::kLoss) / count;
  if (boundary.ascents > 0) resolve_ascent(boundary);
  outcome_.num_failed = static_cast<int>(step_sums_->slot(StepSums::kNumFailed));
  if (outcome_.num_failed == 1) {
    outcome_.failed_rank = static_cast<int>(step_sums_->slot(StepSums::kFailedRanks));
  }
  if (!outcome_.applied) {
    ++skipped_steps_;
    report_failure();
    return;
  }
  ++applied_steps_;
  for (size_t g = 0; g < flat_.size(); ++g) flat_[g]->count_update(flags_of(g, pending_touched_));
}

/// Sums over ranks, ascents and micro-batches become means.
void Bf16Optimizer::resolve_ascent(const Boundary& boundary) {
  const auto slot = [&](StepSums::Slot which) { return step_sums_->slot(which); };
  const auto ascents = static_cast<double>(boundary.ascents);
  const double counted = boundary.replicas * ascents;
  outcome_.perturbed = true;
  outcome_.rho = boundary.rho;
  outcome_.loss_perturbed = boundary.micro_batches > 0 ? outcome_.loss : std::nan("");
  outcome_.loss =
      slot(StepSums::kAscentLoss) /
      static_cast<double>(std::max<int64_t>(boundary.ascent_micro_batches, 1) * comm_.size());
  outcome_.ascent_norm = slot(StepSums::kAscentNorm) / (ascents * comm_.size());
  outcome_.expected_gap = slot(StepSums::kExpectedGap) / (ascents * comm_.size());
  outcome_.e_norm = std::sqrt(slot(StepSums::kPerturbation) / counted);
  outcome_.realised_norm = std::sqrt(slot(StepSums::kRealised) / counted);
  outcome_.moved = slot(StepSums::kMoved) /
                   (counted * static_cast<double>(std::max<int64_t>(boundary.num_perturbed, 1)));
  outcome_.cosine = slot(StepSums::kDot) /
                    std::sqrt(slot(StepSums::kFirst) * slot(StepSums::kSecond));  // NaN: none kept
}

void Bf16Optimizer::report_failure() const {
  if (outcome_.num_failed == 0 || pending_boundary_.failed_here) return;
  fail_comm("the step was skipped on all ranks because the closure failed on ",
            outcome_.num_failed == 1 ? "rank " + std::to_string(outcome_.failed_rank)
                                     : std::to_string(outcome_.num_failed) + " ranks",
            "; see its message");
}

const StepOutcome& Bf16Optimizer::outcome() {
  resolve();
  return outcome_;
}

int64_t Bf16Optimizer::applied_steps() {
  resolve();
  return applied_steps_;
}

int64_t Bf16Optimizer::skipped_steps() {
  resolve();
  return skipped_steps_;
}

int64_t Bf16Optimizer::num_parameters() const noexcept {
  int64_t numel = 0;
  for (const auto& group : flat_) numel += group->layout().numel;
  return numel;
}

MemoryBytes Bf16Optimizer::memory() const {
  MemoryBytes bytes;
  for (const auto& group : flat_) {
    bytes.weights += tensor_bytes(group->weights());
    bytes.gradients += tensor_bytes(group->gradients().accumulator());
    bytes.master += tensor_bytes(group->master());
    for (const auto& state : group->states()) bytes.states += tensor_bytes(state);
  }
  bytes.other = step_sums_->bytes() + ascent_sums_->bytes() + reducer_->bytes();
  if (foreign_) bytes.other += foreign_->gradient_bytes();
  return bytes;
}

}  // namespace zerosharp
