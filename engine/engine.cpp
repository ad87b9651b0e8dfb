#include "engine/engine.h"

#include <torch/torch.h>

#include <algorithm>
#include <exception>
#include <set>

#include "kernels/error.h"
#include "zero/device.h"

namespace zerosharp {
namespace {

ParamGroup group_from(const OptimizerConfig& config) {
  ParamGroup group;
  group.kind = config.kind;
  group.lr = config.lr;
  group.initial_lr = config.lr;
  group.beta1 = config.beta1;
  group.beta2 = config.beta2;
  group.eps = config.eps;
  group.weight_decay = config.weight_decay;
  group.momentum = config.momentum;
  group.dampening = config.dampening;
  group.nesterov = config.nesterov;
  group.decoupled_decay = config.decoupled_decay;
  group.lr_decay = config.lr_decay;
  group.scheduled_decay = config.scheduled_decay;
  group.bias_correction = config.bias_correction;
  return group;
}

std::vector<ParamGroupSpec> groups_of(const torch::nn::Module& module, const Config& config,
                                      std::vector<ParamGroupSpec> given) {
  if (!given.empty()) return given;
  ParamGroupSpec all;
  all.options = group_from(config.optimizer);
  for (const auto& item : module.named_parameters()) {
    all.parameters.push_back({item.key(), item.value()});
  }
  return {std::move(all)};
}

/// One micro-batch: the gradient is its own accumulator. Several: fp32 unless configured.
DType accumulator_dtype(const Config& config) {
  if (config.grad_accum_dtype) return *config.grad_accum_dtype;
  return config.batch.accumulation_steps > 1 ? DType::kF32 : config.precision;
}

OptimizerOptions options_from(const Config& config) {
  OptimizerOptions options;
  options.stage = static_cast<int>(config.zero_stage);
  options.working = config.precision;
  options.accumulator = accumulator_dtype(config);
  options.communication = config.communication_dtype;
  options.max_grad_norm = config.gradient_clipping;
  return options;
}

/// Rank 0's values to all ranks, whatever the type: as bytes, in words of eight.
void broadcast_values(const at::Tensor& tensor, Communicator& communicator) {
  if (tensor.numel() == 0) return;
  const at::NoGradGuard no_grad;
  const at::Tensor real =
      (tensor.is_complex() ? at::view_as_real(tensor.detach()) : tensor.detach()).contiguous();
  const at::Tensor bytes = real.view({-1}).view(at::kByte);
  const int64_t words = (bytes.numel() + 7) / 8;
  at::Tensor padded = at::zeros({8 * words}, bytes.options());
  padded.narrow(0, 0, bytes.numel()).copy_(bytes);
  communicator.broadcast(span_of(padded.view(at::kLong)), 0, current_stream(tensor.device()));
  const at::Tensor received =
      padded.narrow(0, 0, bytes.numel()).view(real.scalar_type()).view(real.sizes());
  (tensor.is_complex() ? at::view_as_real(tensor.detach()) : tensor.detach()).copy_(received);
}

/// Buffers, and parameters that are no part of the optimizer or frozen in it.
void broadcast_rest(const torch::nn::Module& module, Bf16Optimizer& optimizer,
                    Communicator& communicator) {
  if (communicator.size() == 1) return;
  std::set<const c10::TensorImpl*> sharded;
  for (const auto& group : optimizer.flat_groups()) {
    for (const auto& parameter : group->parameters()) {
      sharded.insert(parameter.tensor.unsafeGetTensorImpl());
    }
  }
  for (const auto& buffer : module.buffers()) broadcast_values(buffer, communicator);
  for (const auto& parameter : module.parameters()) {
    if (sharded.count(parameter.unsafeGetTensorImpl()) == 0) {
      broadcast_values(parameter, communicator);
    }
  }
}

void check_batch(const BatchConfig& batch) {
  if (batch.accumulation_steps >= 1) return;
  fail_config("gradient_accumulation_steps must be at least 1, got ", batch.accumulation_steps,
              "; load_config and parse_config set it");
}

/// Resolves what the configuration says in times, once the length of an epoch is known.
RunClock clock_of(Config& config, const EngineOptions& options) {
  RunClock clock;
  TrainConfig& train = config.train;
  clock.scale_schedule_ratio = train.scale_schedule_ratio;
  clock.batches_per_epoch = options.batches_per_epoch;
  clock.samples_per_batch = config.batch.train_batch_size;
  clock.tokens_per_batch = config.batch.train_batch_size * options.tokens_per_sample;
  if (!train.max_duration) {
    if (train.steps > 0) {
      clock.max_duration = Time{static_cast<double>(train.steps), TimeUnit::kBatch};
    }
    return clock;
  }
  clock.max_duration = scaled_duration(*train.max_duration, train.scale_schedule_ratio);
  const Time end = clock.concrete("max_duration", *clock.max_duration);
  train.steps = clock.first_batch_at(end);
  return clock;
}

/// sam.start and sam.end in steps.
void resolve_sam_times(SamConfig& sam, const RunClock& clock, int64_t total_steps) {
  if (sam.start) sam.start_step = clock.first_batch_at(clock.concrete("sam.start", *sam.start));
  if (!sam.end) return;
  sam.end_step = clock.first_batch_at(clock.concrete("sam.end", *sam.end));
  if (sam.end_step == 0 || (total_steps > 0 && sam.start_step >= sam.end_step)) {
    fail_config("sam.end \"", time_text(*sam.end), "\" comes to step ", sam.end_step,
                " and sam.start to step ", sam.start_step, ", so SAM would never be active");
  }
}

std::optional<ComposerSchedule> composer_schedule(const Config& config, const RunClock& clock) {
  if (!config.scheduler || config.scheduler->kind != ScheduleKind::kComposer) return std::nullopt;
  return ComposerSchedule(config.scheduler->composer, clock, "scheduler.");
}

/// ρ by step; `groups` must outlive it.
std::function<double(int64_t)> rho_schedule(const SamConfig& sam, const RunClock& clock,
                                            const ParamGroups& groups) {
  const RhoScheduleConfig& schedule = *sam.rho_scheduler;
  const double rho = sam.rho;
  if (!schedule.linear_in_lr) {
    return [rho, shape = ComposerSchedule(schedule.schedule, clock, "sam.rho_scheduler.")](
               int64_t step) { return rho * shape.multiplier(step); };
  }
  const double lr_max = schedule.lr_max.value_or(groups[0].initial_lr);
  if (lr_max <= schedule.lr_min) {
    fail_config("sam.rho_scheduler.lr_min ", schedule.lr_min, " must lie below lr_max, ", lr_max);
  }
  return [rho, schedule, lr_max, &groups](int64_t) {
    const double share = (groups[0].lr - schedule.lr_min) / (lr_max - schedule.lr_min);
    return std::max(0.0, schedule.rho_min + (rho - schedule.rho_min) * share);
  };
}

}  // namespace

Engine::Engine(std::shared_ptr<torch::nn::Module> module, const Config& config,
               Communicator& communicator, EngineOptions options)
    : module_(std::move(module)), config_(config), comm_(communicator) {
  if (!module_) fail_shape("Engine: the module is null");
  check_batch(config.batch);
  const RunClock clock = clock_of(config_, options);
  std::optional<ComposerSchedule> composer = composer_schedule(config_, clock);
  if (config_.sam.enabled) resolve_sam_times(config_.sam, clock, config_.train.steps);
  auto groups = groups_of(*module_, config, std::move(options.groups));
  const OptimizerOptions optimizer_options = options_from(config);
  if (options.foreign_optimizer) {
    optimizer_ = std::make_unique<Bf16Optimizer>(std::move(groups), optimizer_options, comm_,
                                                 options.foreign_optimizer);
  } else {
    optimizer_ = std::make_unique<Bf16Optimizer>(std::move(groups), optimizer_options, comm_);
  }
  broadcast_rest(*module_, *optimizer_, comm_);
  optimizer_->initialize_states();
  if (config.sam.enabled) {
    SamContext context;
    context.seed = static_cast<uint64_t>(config.train.seed);
    context.buffers = module_->buffers();
    context.norm_parameters = norm_parameter_names(*module_);
    context.local_ranks = options.local_ranks;
    context.total_steps = config_.train.steps;
    sam_ = std::make_unique<SamAdapter>(*optimizer_, config_.sam, std::move(context));
    if (config_.sam.rho_scheduler) {
      sam_->set_rho_schedule(rho_schedule(config_.sam, clock, optimizer_->param_groups()));
    }
  }
  if (config_.scheduler) {
    const SchedulerConfig schedule = checked_schedule(*config_.scheduler, config_.train.steps);
    scheduler_ =
        std::make_unique<LrScheduler>(optimizer_->param_groups(), schedule, std::move(composer));
  }
  optimizer_->set_before_update([this](int64_t applied) {
    if (scheduler_) scheduler_->update(applied);
    step_lr_ = optimizer_->param_groups()[0].lr;
  });
  if (config.precision == DType::kF16) scaler_ = LossScaler(config.fp16);
}

Engine::~Engine() = default;

double Engine::train_batch(const LossClosure& closure) {
  if (!closure) return train_batch(PassClosure());
  return train_batch([&closure](const PassContext& context) { return closure(context.micro); });
}

double Engine::train_batch(const PassClosure& closure) {
  if (!closure) {
    fail_config("train_batch needs a closure that returns the loss of micro-batch i");
  }
  start_boundary("train_batch");
  try {
    if (sam_) {
      sam_->step(closure, config_.batch.accumulation_steps, scaler_.scale());
    } else {
      plain_step(closure);
    }
  } catch (...) {
    // A closure that failed somewhere has cost a step, which the report tells of.
    if (optimizer_->boundaries() == steps_) finish_boundary();
    throw;
  }
  finish_boundary();
  return report_.outcome.loss;
}

void Engine::start_boundary(const char* call) {
  if (micro_steps_ % config_.batch.accumulation_steps != 0) {
    fail_config(call, " was called inside an accumulation window (",
                micro_steps_ % config_.batch.accumulation_steps, " of ",
                config_.batch.accumulation_steps,
                " micro-batches done with backward/step); finish it first");
  }
  ++steps_;
  micro_steps_ += config_.batch.accumulation_steps;
  // ρ and the choice of passes may depend on the rate that this step will use.
  if (scheduler_ && sam_) scheduler_->update(optimizer_->applied_steps());
}

void Engine::plain_step(const PassClosure& closure) {
  const int64_t micro_batches = config_.batch.accumulation_steps;
  PassFailure failure;
  optimizer_->begin();
  failure.run(*optimizer_, closure, {}, micro_batches, scaler_.scale());
  optimizer_->reduce();
  optimizer_->step(1.0 / (static_cast<double>(micro_batches) * scaler_.scale()));
  failure.rethrow();
}

void Engine::finish_boundary() {
  report_ = {};
  report_.step = steps_;
  report_.lr = step_lr_;
  report_.loss_scale = scaler_.scale();
  report_.outcome = optimizer_->outcome();
  if (sam_) sam_->observe(report_.outcome);
  const bool failed = report_.outcome.num_failed > 0;  // no sign of an overflow
  if (config_.precision == DType::kF16 && !failed) scaler_.update(!report_.outcome.applied);
}

void Engine::refuse_with_sam(const char* call) const {
  if (!sam_) return;
  fail_config("Engine::", call,
              " cannot be used with SAM, which evaluates each micro-batch twice; call "
              "engine.train_batch(closure) with a closure that returns the loss of micro-batch i, "
              "or engine.begin_ascent() for a loop without closures");
}

void Engine::backward(const at::Tensor& loss) {
  refuse_with_sam("backward");
  check_loss(loss);
  for (const auto& group : optimizer_->flat_groups()) group->check_bound();
  if (backward_done_) {
    fail_config("Engine::backward was called twice without step(); call step() after each");
  }
  if (micro_steps_ % config_.batch.accumulation_steps == 0) optimizer_->begin();
  (scaler_.scale() == 1.0 ? loss : loss * scaler_.scale()).backward();
  optimizer_->add_loss(loss);
  backward_done_ = true;
}

void Engine::step() {
  refuse_with_sam("step");
  if (!backward_done_) {
    fail_config("Engine::step needs backward(loss) of this micro-batch first");
  }
  backward_done_ = false;
  const bool boundary = is_gradient_accumulation_boundary();
  ++micro_steps_;
  if (!boundary) return;
  ++steps_;
  optimizer_->reduce();
  optimizer_->step(1.0 / (static_cast<double>(config_.batch.accumulation_steps) * scaler_.scale()));
  finish_boundary();
}

bool Engine::is_gradient_accumulation_boundary() const noexcept {
  return (micro_steps_ + 1) % config_.batch.accumulation_steps == 0;
}

double Engine::lr() {
  if (scheduler_) scheduler_->update(optimizer_->applied_steps());
  return optimizer_->param_groups()[0].lr;
}

const StepReport& Engine::report() { return report_; }

void Engine::wrong_module_type() const {
  fail_shape("Engine: the module is a ", module_->name(), ", not of the type that was asked for");
}

std::vector<std::string> Engine::take_warnings() {
  return sam_ ? sam_->take_warnings() : std::vector<std::string>{};
}

void Engine::refuse_perturbed(const char* call) const {
  const bool between_passes =
      optimizer_->weights_perturbed() && !(sam_ && sam_->config().variant == SamVariant::kMsam);
  if (!between_passes) return;
  fail_config("Engine::", call,
              " was called between SAM's two passes, while the weights are perturbed");
}

EvalScope Engine::eval() {
  refuse_perturbed("eval");
  return {*module_, sam_.get()};
}

FullParamsScope Engine::full_params(bool modify) {
  refuse_perturbed("full_params");
  return {*optimizer_, sam_.get(), modify};
}

SplitStep Engine::begin_ascent() { return SplitStep(*this); }

SplitStep::SplitStep(Engine& engine) : engine_(engine) {
  if (engine.sam_) engine.sam_->check_has_parts();
  engine.start_boundary("begin_ascent");
  micro_batches_ = engine.config_.batch.accumulation_steps;
  if (engine.sam_) {
    micro_batches_ = engine.sam_->begin_ascent(micro_batches_, engine.scaler_.scale());
  } else {
    engine.optimizer_->begin();
  }
}

void SplitStep::backward(const at::Tensor& loss) {
  check_loss(loss);
  for (const auto& group : engine_.optimizer_->flat_groups()) group->check_bound();
  const double scale = engine_.scaler_.scale();
  (scale == 1.0 ? loss : loss * scale).backward();
  engine_.optimizer_->add_loss(loss);
}

bool SplitStep::end_ascent() {
  if (ascent_over_) fail_config("SplitStep::end_ascent was called twice");
  ascent_over_ = true;
  return engine_.sam_ && engine_.sam_->end_ascent();
}

const StepReport& SplitStep::finish() {
  if (!ascent_over_) {
    fail_config(
        "SplitStep::finish needs end_ascent() first, and where that returns true a second pass");
  }
  if (finished_) fail_config("SplitStep::finish was called twice");
  finished_ = true;
  if (engine_.sam_) {
    engine_.sam_->finish();
  } else {
    engine_.optimizer_->reduce();
    engine_.optimizer_->step(1.0 / (static_cast<double>(micro_batches_) * engine_.scaler_.scale()));
  }
  engine_.finish_boundary();
  return engine_.report_;
}

SplitStep::~SplitStep() {
  if (finished_) return;
  try {
    // The other ranks are in, or on their way to, these calls.
    engine_.optimizer_->mark_failed();
    if (!ascent_over_) end_ascent();
    finish();
  } catch (...) {  // NOLINT(bugprone-empty-catch): the exception in flight says more
  }
}

EvalScope::EvalScope(torch::nn::Module& module, SamAdapter* sam)
    : module_(module), sam_(sam), grad_was_enabled_(at::GradMode::is_enabled()) {
  if (sam_ != nullptr) sam_->publish_clean();
  for (const auto& each : module.modules()) modes_.emplace_back(each.get(), each->is_training());
  module_.eval();
  at::GradMode::set_enabled(false);
}

EvalScope::~EvalScope() {
  at::GradMode::set_enabled(grad_was_enabled_);
  for (const auto& [each, training] : modes_) each->train(training);  // parents before children
  if (sam_ == nullptr) return;
  try {
    sam_->publish_perturbed();
  } catch (...) {  // NOLINT(bugprone-empty-catch): the next collective reports the lost rank
  }
}

FullParamsScope::FullParamsScope(Bf16Optimizer& optimizer, SamAdapter* sam, bool modify)
    : optimizer_(optimizer), sam_(sam), modify_(modify), exceptions_(std::uncaught_exceptions()) {
  if (sam_ != nullptr) sam_->publish_clean();
}

FullParamsScope::~FullParamsScope() noexcept(false) {
  if (std::uncaught_exceptions() != exceptions_) return;
  if (modify_) optimizer_.adopt_weights();
  if (sam_ != nullptr) sam_->publish_perturbed();
}

}  // namespace zerosharp
