// The BF16 master-weight optimizer: what happens to gradients, masters and working weights at an
// accumulation boundary. It owns the only copy of the parameter groups.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/perturb.h"
#include "zero/communicator.h"
#include "zero/flat_group.h"
#include "zero/param_groups.h"
#include "zero/step_sums.h"

namespace torch::optim {
class Optimizer;
}

namespace zerosharp {

class ForeignOptimizer;
struct BuiltGroups;

/// One group as the user hands it over: hyper-parameters and the parameters they hold for. Frozen
/// parameters (requires_grad false) are cast to the working dtype and otherwise left alone.
struct ParamGroupSpec {
  ParamGroup options;
  std::vector<NamedParameter> parameters;
};

struct OptimizerOptions {
  int stage = 1;                     ///< 0: everything replicated; 1: master and states sharded
  DType working = DType::kBF16;      ///< dtype the model computes in
  DType accumulator = DType::kBF16;  ///< dtype gradients are accumulated and reduced in
  double max_grad_norm = 0.0;        ///< ≤ 0: no clipping
};

/// Builds a LibTorch optimizer over the fp32 shard tensors it is given (one per group, in order).
using ForeignOptimizerFactory =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor> shards)>;

/// What one boundary did; equal on all ranks.
struct StepOutcome {
  bool applied = false;    ///< false: something was non-finite and every rank skipped
  int num_failed = 0;      ///< ranks whose closure threw
  int failed_rank = -1;    ///< which, when it was one
  double loss = 0;         ///< mean over ranks and micro-batches (SAM: of the unperturbed pass)
  double grad_norm = 0;    ///< global L2 norm before clipping
  bool perturbed = false;  ///< SAM's fields below are set
  double loss_perturbed = 0;
  double ascent_norm = 0;    ///< ‖g‖ of the first pass
  double e_norm = 0;         ///< ‖e‖ as computed in fp32
  double realised_norm = 0;  ///< ‖weights − round(master)‖ after rounding
  double moved = 0;          ///< share of parameters whose working weight changed
};

/// SAM's ascent step (kernels/perturb.h, kernels/norm.h).
struct Ascent {
  double rho = 0.05;
  double epsilon = 1e-12;
  double unscale = 1.0;  ///< as in step()
  bool local = false;    ///< each rank along its own gradient, without communication
  kernels::Rounding rounding = kernels::Rounding::kNearest;
  uint64_t seed = 0;
  uint64_t step = 0;
};

/// Bytes this rank holds for training state, exactly as allocated.
struct MemoryBytes {
  int64_t weights = 0;
  int64_t gradients = 0;
  int64_t master = 0;
  int64_t states = 0;
  int64_t other = 0;  ///< step sums, reduction workspace, foreign gradients

  int64_t total() const noexcept { return weights + gradients + master + states + other; }
};

/// Collectives are made by: the constructor, reduce(), ascend() (global scope), step() and
/// publish(). Every rank must call them in the same order; they run on the calling thread and the
/// device's current stream. On the CPU outcomes are known at once; on CUDA the host waits for the
/// previous step only, at the next step or when an accessor asks.
class Bf16Optimizer {
 public:
  /// Flattens and shards the parameters; every rank ends with rank 0's values. Throws ShapeError
  /// (a parameter in two groups, nothing trainable, mixed devices…), ConfigError (stage), CommError
  /// (ranks hold different parameters).
  Bf16Optimizer(std::vector<ParamGroupSpec> groups, const OptimizerOptions& options,
                Communicator& communicator);
  /// The same, but updates are made by a LibTorch optimizer over the shards. Its own groups'
  /// learning rate is overwritten from param_groups() before each step; its other options are its
  /// own.
  Bf16Optimizer(std::vector<ParamGroupSpec> groups, const OptimizerOptions& options,
                Communicator& communicator, const ForeignOptimizerFactory& factory);
  ~Bf16Optimizer();
  Bf16Optimizer(const Bf16Optimizer&) = delete;
  Bf16Optimizer& operator=(const Bf16Optimizer&) = delete;

  ParamGroups& param_groups() noexcept { return groups_; }
  const ParamGroups& param_groups() const noexcept { return groups_; }

  /// The warm-up: allocates every optimizer state of the shard without a step, a closure or a
  /// collective. Inert: weights, masters, counters, learning rates and RNGs stay as they are, and
  /// training after it is bitwise what it is without it. A second call does nothing.
  void initialize_states();
  bool states_initialized() const noexcept { return states_initialized_; }

  enum class Pass { kDescent, kAscent };
  /// Starts accumulating for an update (or for SAM's first pass).
  void begin(Pass pass = Pass::kDescent);
  /// After each micro-batch's backward: its unscaled loss, a scalar on the parameters' device.
  void add_loss(const at::Tensor& loss);
  /// This rank could not finish its pass: every rank will skip the boundary, and step() throws
  /// CommError on the ranks that did not fail.
  void mark_failed();
  /// Averages the accumulated gradients over ranks and adds up norm, losses and flags. In an ascent
  /// pass with `local` nothing is communicated.
  void reduce(bool local = false);
  /// After reduce() of an ascent pass: working weights ← round(master + e), then `begin(kDescent)`.
  void ascend(const Ascent& ascent);
  /// After reduce(): clip, one fused pass over the owned run, publish. Gradients are multiplied by
  /// `unscale` (1 / (micro-batches · loss scale)). If anything was non-finite on any rank, no rank
  /// changes anything but its skip counter. Ends SAM's perturbation in every case. Throws CommError
  /// if another rank's closure failed.
  void step(double unscale = 1.0);
  /// Working weights ← round(master) everywhere; ends a perturbation.
  void publish();
  /// The reverse: rank 0's working weights become everybody's, and masters follow where a weight is
  /// no longer their rounding. Collective.
  void adopt_weights();
  bool weights_perturbed() const noexcept { return perturbed_; }
  /// After ascend(): true if the host already knows that this boundary will be skipped, so that the
  /// second pass would be wasted. Equal on all ranks (never true for local scope or on CUDA).
  bool skip_is_certain() const noexcept { return skip_certain_; }
  /// Called in step() before learning rates are read, with the number of applied updates; this is
  /// where a schedule writes into param_groups().
  void set_before_update(std::function<void(int64_t applied)> schedule) {
    before_update_ = std::move(schedule);
  }

  const StepOutcome& outcome();
  int64_t applied_steps();
  int64_t skipped_steps();

  const std::vector<std::unique_ptr<FlatGroup>>& flat_groups() const noexcept { return flat_; }
  int64_t num_parameters() const noexcept;  ///< trainable elements, tied ones once
  MemoryBytes memory() const;
  const OptimizerOptions& options() const noexcept { return options_; }
  Communicator& communicator() noexcept { return comm_; }
  at::Device device() const noexcept { return device_; }
  /// Things the user should know (a parameter was made contiguous, states are lazy…), one a line.
  const std::vector<std::string>& notes() const noexcept { return notes_; }

 private:
  Bf16Optimizer(BuiltGroups built, const OptimizerOptions& options, Communicator& communicator);
  void update_group(size_t index, const std::vector<char>& touched);
  void update_foreign();
  void perturb_group(size_t index, const Ascent& ascent, StepSums& stats);
  void gather_weights();
  std::vector<char> touched_anywhere();
  std::vector<char> flags_of(size_t group, const std::vector<char>& all) const;
  void resolve();
  void report_failure() const;
  StepSums& sums() { return pass_ == Pass::kAscent ? *ascent_sums_ : *step_sums_; }
  Stream stream() const;

  OptimizerOptions options_;
  Communicator& comm_;
  ParamGroups groups_;
  at::Device device_;
  std::vector<std::string> notes_;
  std::vector<std::unique_ptr<FlatGroup>> flat_;
  std::unique_ptr<ForeignOptimizer> foreign_;
  std::unique_ptr<StepSums> step_sums_;
  std::unique_ptr<StepSums> ascent_sums_;
  Pass pass_ = Pass::kDescent;
  int64_t micro_batches_ = 0;
  bool states_initialized_ = false;
  bool perturbed_ = false;
  bool failed_here_ = false;
  bool skip_certain_ = false;
  std::function<void(int64_t)> before_update_;
  bool ascended_ = false;      // this boundary had an ascent
  double stats_replicas_ = 1;  // ranks that counted the perturbation's statistics
  bool pending_ = false;       // a step was enqueued whose outcome the host has not read
  std::vector<char> pending_touched_;
  StepOutcome outcome_;
  int64_t applied_steps_ = 0;
  int64_t skipped_steps_ = 0;
};

}  // namespace zerosharp
