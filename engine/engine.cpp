#include "engine/engine.h"

#include <torch/torch.h>

#include <exception>

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
  options.max_grad_norm = config.gradient_clipping;
  if (config.communication_dtype && *config.communication_dtype != options.accumulator) {
    fail_config("communication_data_type ", dtype_name(*config.communication_dtype),
                " differs from the gradient accumulator's type ", dtype_name(options.accumulator),
                "; gradients are reduced in the type they are accumulated in: set "
                "data_types.grad_accum_dtype to the same type, or leave it out");
  }
  return options;
}

void broadcast_buffers(const torch::nn::Module& module, Communicator& communicator) {
  if (communicator.size() == 1) return;
  const at::NoGradGuard no_grad;
  for (const auto& buffer : module.buffers()) {
    if (buffer.numel() == 0) continue;
    at::Tensor bytes = buffer.detach().to(buffer.is_floating_point() ? at::kDouble : at::kLong);
    bytes = bytes.contiguous().view({-1}).clone();
    communicator.broadcast(span_of(bytes), 0, current_stream(bytes.device()));
    buffer.copy_(bytes.view(buffer.sizes()));
  }
}

void broadcast_frozen(const torch::nn::Module& module, Communicator& communicator) {
  if (communicator.size() == 1) return;
  const at::NoGradGuard no_grad;
  for (const auto& parameter : module.parameters()) {
    if (parameter.requires_grad() || parameter.numel() == 0) continue;
    at::Tensor values = parameter.detach().contiguous().view({-1}).clone();
    communicator.broadcast(span_of(values), 0, current_stream(values.device()));
    parameter.copy_(values.view(parameter.sizes()));
  }
}

}  // namespace

Engine::Engine(std::shared_ptr<torch::nn::Module> module, const Config& config,
               Communicator& communicator, EngineOptions options)
    : module_(std::move(module)), config_(config), comm_(communicator) {
  if (!module_) fail_shape("Engine: the module is null");
  auto groups = groups_of(*module_, config, std::move(options.groups));
  const OptimizerOptions optimizer_options = options_from(config);
  if (options.foreign_optimizer) {
    optimizer_ = std::make_unique<Bf16Optimizer>(std::move(groups), optimizer_options, comm_,
                                                 options.foreign_optimizer);
  } else {
    optimizer_ = std::make_unique<Bf16Optimizer>(std::move(groups), optimizer_options, comm_);
  }
  broadcast_buffers(*module_, comm_);
  broadcast_frozen(*module_, comm_);
  optimizer_->initialize_states();
  if (config.sam.enabled) {
    sam_ = std::make_unique<SamAdapter>(
        *optimizer_, config.sam, static_cast<uint64_t>(config.train.seed), module_->buffers());
  }
  if (config.scheduler) {
    const SchedulerConfig schedule = checked_schedule(*config.scheduler, config.train.steps);
    scheduler_ = std::make_unique<LrScheduler>(optimizer_->param_groups(), schedule);
  }
  optimizer_->set_before_update([this](int64_t applied) {
    if (scheduler_) scheduler_->update(applied);
    step_lr_ = optimizer_->param_groups()[0].lr;
  });
  if (config.precision == DType::kF16) scaler_ = LossScaler(config.fp16);
}

Engine::~Engine() = default;

double Engine::train_batch(const LossClosure& closure) {
  if (!closure) {
    fail_config("train_batch needs a closure that returns the loss of micro-batch i");
  }
  if (micro_steps_ % config_.batch.accumulation_steps != 0) {
    fail_config("train_batch was called inside an accumulation window (",
                micro_steps_ % config_.batch.accumulation_steps, " of ",
                config_.batch.accumulation_steps,
                " micro-batches done with backward/step); finish it first");
  }
  ++steps_;
  micro_steps_ += config_.batch.accumulation_steps;
  if (sam_) {
    sam_->step(closure, config_.batch.accumulation_steps, scaler_.scale());
  } else {
    plain_step(closure);
  }
  finish_boundary();
  return report_.outcome.loss;
}

void Engine::plain_step(const LossClosure& closure) {
  const int64_t micro_batches = config_.batch.accumulation_steps;
  PassFailure failure;
  optimizer_->begin();
  failure.run(*optimizer_, closure, micro_batches, scaler_.scale());
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
  if (config_.precision == DType::kF16) scaler_.update(!report_.outcome.applied);
}

void Engine::refuse_with_sam(const char* call) const {
  if (!sam_) return;
  fail_config("Engine::", call,
              " cannot be used with SAM, which evaluates each micro-batch twice; call "
              "engine.train_batch(closure) with a closure that returns the loss of micro-batch i");
}

void Engine::backward(const at::Tensor& loss) {
  refuse_with_sam("backward");
  check_loss(loss);
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

EvalScope Engine::eval() {
  if (optimizer_->weights_perturbed()) {
    fail_config(
        "Engine::eval was called between SAM's two passes, while the weights are perturbed");
  }
  return EvalScope(*module_);
}

FullParamsScope Engine::full_params(bool modify) { return {*optimizer_, modify}; }

EvalScope::EvalScope(torch::nn::Module& module)
    : module_(module),
      was_training_(module.is_training()),
      grad_was_enabled_(at::GradMode::is_enabled()) {
  module_.eval();
  at::GradMode::set_enabled(false);
}

EvalScope::~EvalScope() {
  at::GradMode::set_enabled(grad_was_enabled_);
  module_.train(was_training_);
}

FullParamsScope::FullParamsScope(Bf16Optimizer& optimizer, bool modify)
    : optimizer_(optimizer), modify_(modify), exceptions_(std::uncaught_exceptions()) {
  if (optimizer.weights_perturbed()) {
    fail_config(
        "Engine::full_params was called between SAM's two passes, while the weights are perturbed");
  }
}

FullParamsScope::~FullParamsScope() noexcept(false) {
  if (modify_ && std::uncaught_exceptions() == exceptions_) optimizer_.adopt_weights();
}

}  // namespace zerosharp
