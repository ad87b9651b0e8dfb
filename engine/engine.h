// The engine: one object that trains a module with partitioned optimizer state.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/config/config.h"
#include "engine/loss_scaler.h"
#include "engine/lr_scheduler.h"
#include "engine/sam/sam_adapter.h"
#include "engine/train_pass.h"
#include "zero/bf16_optimizer.h"

namespace torch::nn {
class Module;
}

namespace zerosharp {

/// What the user may give beside the configuration.
struct EngineOptions {
  /// Empty: one group with every parameter and the configured hyper-parameters.
  std::vector<ParamGroupSpec> groups;
  /// If set, updates are made by the optimizer it builds over the shards.
  ForeignOptimizerFactory foreign_optimizer;
  /// Ranks of this machine, the groups of sam.scope "group" where sam.group_size is not set; 0:
  /// unknown (RankInfo::local_world_size).
  int local_ranks = 0;
  /// Optimizer steps of an epoch, for times in epochs ("2ep"); 0: unknown, such times are refused.
  int64_t batches_per_epoch = 0;
  /// For times in tokens ("1e9tok"); 0: unknown, such times are refused.
  int64_t tokens_per_sample = 0;
};

/// Figures of the last boundary; equal on all ranks.
struct StepReport {
  int64_t step = 0;  ///< boundaries so far, applied or skipped
  double lr = 0;     ///< rate of group 0 that this boundary used
  double loss_scale = 1;
  StepOutcome outcome;
};

class Engine;
class EvalScope;
class FullParamsScope;

/// One boundary of SAM in a loop that cannot give a closure:
///
///   SplitStep step = engine.begin_ascent();
///   for (i = 0; i < step.micro_batches(); ++i) step.backward(loss of micro-batch i);
///   if (step.end_ascent()) {                      // weights are w + e now
///     for (each micro-batch) step.backward(its loss again);
///   }
///   step.finish();
///
/// Without SAM, and on steps that do not perturb, end_ascent() returns false. If it ends before
/// finish(), by an exception, this rank has failed: all ranks skip the step, as with a closure.
class SplitStep {
 public:
  explicit SplitStep(Engine& engine);
  ~SplitStep();
  SplitStep(const SplitStep&) = delete;
  SplitStep& operator=(const SplitStep&) = delete;

  /// Micro-batches of the first pass.
  int64_t micro_batches() const noexcept { return micro_batches_; }
  void backward(const at::Tensor& loss);
  bool end_ascent();
  const StepReport& finish();

 private:
  Engine& engine_;
  int64_t micro_batches_ = 0;
  bool ascent_over_ = false;
  bool finished_ = false;
};

/// Order of construction: the module's parameters are cast, flattened and sharded, the optimizer is
/// warmed up, SAM wraps the finished optimizer, the schedule binds to the optimizer's groups.
/// After construction every rank holds rank 0's weights and buffers. One thread uses an engine;
/// all ranks make the same calls in the same order.
class Engine {
 public:
  /// Collective. `module` must already be on its device; it is changed in place (names and shapes
  /// stay). `config` and `communicator` as load_config and connect made them; the communicator must
  /// outlive the engine. Throws ConfigError, ShapeError or CommError before any weight is changed.
  Engine(std::shared_ptr<torch::nn::Module> module, const Config& config,
         Communicator& communicator, EngineOptions options = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// One optimizer step over `gradient_accumulation_steps` micro-batches; `closure(i)` returns the
  /// loss of micro-batch i. With SAM each micro-batch is evaluated twice. Collective. Returns the
  /// mean loss over ranks and micro-batches (SAM: at the unperturbed weights).
  double train_batch(const LossClosure& closure);
  /// The same with a closure that is told which pass it serves.
  double train_batch(const PassClosure& closure);
  /// The same in parts; collective where its calls say so. Throws ConfigError for sam.scope
  /// "micro".
  SplitStep begin_ascent();

  /// DeepSpeed's loop without SAM, once a micro-batch: `loss = engine.forward<M>(x…);
  /// backward(loss); step();`. step() updates at the accumulation boundary and does nothing before
  /// it. With SAM both throw ConfigError naming train_batch.
  template <class M, class... Args>
  auto forward(Args&&... args) {
    return module_as<M>().forward(std::forward<Args>(args)...);
  }
  void backward(const at::Tensor& loss);
  void step();
  /// True if the next step() will update.
  bool is_gradient_accumulation_boundary() const noexcept;

  /// The module as what it is. Throws ShapeError if it is no M.
  template <class M>
  M& module_as() {
    auto* typed = dynamic_cast<M*>(module_.get());
    if (typed == nullptr) wrong_module_type();
    return *typed;
  }
  const std::shared_ptr<torch::nn::Module>& module() const noexcept { return module_; }

  /// Full working weights readable on this rank; with `modify` rank 0's changes are taken into the
  /// masters of all ranks when the scope ends. Collective when `modify`, and for Momentum-SAM.
  FullParamsScope full_params(bool modify = false);
  /// Evaluation mode without gradients until the scope ends. Refuses to begin between SAM's passes.
  /// Collective for Momentum-SAM, whose weights are clean as long as it lasts.
  EvalScope eval();

  ParamGroups& param_groups() noexcept { return optimizer_->param_groups(); }
  Bf16Optimizer& optimizer() noexcept { return *optimizer_; }
  SamAdapter* sam() noexcept { return sam_.get(); }
  const Config& config() const noexcept { return config_; }

  /// Rate of group 0 that the next update will use.
  double lr();
  double loss_scale() const noexcept { return scaler_.scale(); }
  /// Global L2 norm before clipping, of the last boundary.
  double global_grad_norm() { return report().outcome.grad_norm; }
  bool was_step_applied() { return report().outcome.applied; }
  int64_t global_steps() const noexcept { return steps_; }
  int64_t global_samples() const noexcept { return steps_ * config_.batch.train_batch_size; }
  int64_t skipped_steps() { return optimizer_->skipped_steps(); }
  int64_t micro_steps() const noexcept { return micro_steps_; }
  const StepReport& report();

  const std::vector<std::string>& notes() const noexcept { return optimizer_->notes(); }
  /// What the user should be warned of since the last call.
  std::vector<std::string> take_warnings();

 private:
  friend class SplitStep;
  [[noreturn]] void wrong_module_type() const;
  void refuse_with_sam(const char* call) const;
  void refuse_perturbed(const char* call) const;
  void start_boundary(const char* call);
  void finish_boundary();
  void plain_step(const PassClosure& closure);

  std::shared_ptr<torch::nn::Module> module_;
  Config config_;
  Communicator& comm_;
  std::unique_ptr<Bf16Optimizer> optimizer_;
  std::unique_ptr<SamAdapter> sam_;
  std::unique_ptr<LrScheduler> scheduler_;
  LossScaler scaler_;
  int64_t steps_ = 0;
  int64_t micro_steps_ = 0;
  bool backward_done_ = false;
  double step_lr_ = 0;
  StepReport report_;
};

/// Restores the modes of all submodules and gradient recording when it ends.
class EvalScope {
 public:
  EvalScope(torch::nn::Module& module, SamAdapter* sam);
  ~EvalScope();
  EvalScope(const EvalScope&) = delete;
  EvalScope& operator=(const EvalScope&) = delete;

 private:
  torch::nn::Module& module_;
  SamAdapter* sam_;
  std::vector<std::pair<torch::nn::Module*, bool>> modes_;  // of the module and its submodules
  bool grad_was_enabled_;
};

/// See Engine::full_params.
class FullParamsScope {
 public:
  FullParamsScope(Bf16Optimizer& optimizer, SamAdapter* sam, bool modify);
  /// Takes changes over unless an exception is in flight.
  ~FullParamsScope() noexcept(false);
  FullParamsScope(const FullParamsScope&) = delete;
  FullParamsScope& operator=(const FullParamsScope&) = delete;

 private:
  Bf16Optimizer& optimizer_;
  SamAdapter* sam_;
  bool modify_;
  int exceptions_;
};

}  // namespace zerosharp
