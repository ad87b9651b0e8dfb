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

#include "zero/communicator.h"
#include "zero/flat_group.h"
#include "zero/gradient_reducer.h"
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
  int stage = 1;                       ///< 0: everything replicated; 1: master and states sharded
  DType working = DType::kBF16;        ///< dtype the model computes in
  DType accumulator = DType::kBF16;    ///< dtype gradients are accumulated in
  std::optional<DType> communication;  ///< … and sent in; empty: the accumulator's
  double max_grad_norm = 0.0;          ///< ≤ 0: no clipping
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
  double rho = 0;          ///< radius that was asked for
  double loss_perturbed = 0;
  double ascent_norm = 0;  ///< the norm ρ was measured by: ‖g‖ of the first pass for plain SAM
  double expected_gap = 0;  ///< ⟨g, e⟩, the first-order rise of the loss: ρ‖g‖ for plain SAM
  double e_norm = 0;        ///< ‖e‖ as computed in fp32
  double realised_norm = 0;  ///< ‖weights − round(master)‖ after rounding
  double moved = 0;          ///< share of the perturbed parameters whose working weight changed
  double cosine = 0;         ///< of the two passes' gradients; NaN where the first was not kept
};

/// Bytes this rank holds for training state, exactly as allocated.
struct MemoryBytes {
  int64_t weights = 0;
  int64_t gradients = 0;
  int64_t master = 0;
  int64_t states = 0;
  int64_t other = 0;  ///< step sums, workspace, gradients being sent, foreign gradients

  int64_t total() const noexcept { return weights + gradients + master + states + other; }
};

/// Collectives are made by: the constructor, reduce() and its parts, step(), publish() and
/// gather_weights(). Every rank must call them in the same order; they run on the calling thread
/// and the device's current stream. On the CPU outcomes are known at once; on CUDA the host waits
/// for the previous step only, at the next step or when an accessor asks.
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
  bool uses_foreign_optimizer() const noexcept { return foreign_ != nullptr; }

  enum class Pass { kDescent, kAscent };
  /// Starts a boundary: forgets gradients, sums and failures. kAscent: SAM's first pass.
  void begin(Pass pass = Pass::kDescent);
  /// After each micro-batch's backward: its unscaled loss, a scalar on the parameters' device.
  void add_loss(const at::Tensor& loss);
  /// The sums of the current pass.
  StepSums& sums() noexcept { return pass_ == Pass::kAscent ? *ascent_sums_ : *step_sums_; }
  /// This rank could not finish its pass: every rank will skip the boundary, and step() throws
  /// CommError on the ranks that did not fail.
  void mark_failed();
  /// Averages the accumulated gradients over ranks and adds up norm, losses and flags: the three
  /// calls below.
  void reduce();
  /// Gradients ← their mean over ranks (stage ≥ 1: valid in this rank's share).
  void reduce_gradients();
  /// sums() += Σg² and the non-finite count over this rank's share.
  void count_squares();
  /// The one small all-reduce of the current pass's sums, or of `sums`.
  void reduce_sums() { reduce_sums_of(sums()); }
  void reduce_sums_of(StepSums& sums) { sums.all_reduce(comm_); }
  /// After reduce(): clip, one fused pass over the owned run, publish. Gradients are multiplied by
  /// `unscale` (1 / (micro-batches · loss scale)). If anything was non-finite on any rank, no rank
  /// changes anything but its skip counter. Ends SAM's perturbation in every case. Throws
  /// ConfigError for numbers in param_groups() that make no sense, on all ranks and with no change.
  /// CommError if another rank's closure failed.
  void step(double unscale = 1.0);
  /// Working weights ← round(master) everywhere; ends a perturbation.
  void publish();
  /// The reverse: rank 0's working weights become everybody's, and masters follow where a weight is
  /// no longer their rounding. Collective.
  void adopt_weights();
  bool weights_perturbed() const noexcept { return perturbed_; }
  /// Called in step() before learning rates are read, with the number of applied updates; this is
  /// where a schedule writes into param_groups().
  void set_before_update(std::function<void(int64_t applied)> schedule) {
    before_update_ = std::move(schedule);
  }

  // --- For SAM (engine/sam), which works on the shards between the calls above. -----------------

  /// The gradient on every rank of `group` ← its mean over them, the whole buffer; null: as it is.
  void reduce_gradients_within(Communicator* group);
  /// Sums of SAM's first pass, and of the update.
  StepSums& ascent_sums() noexcept { return *ascent_sums_; }
  StepSums& step_sums() noexcept { return *step_sums_; }
  /// Where gradients and losses go from now on, within the boundary; nothing is forgotten.
  void set_pass(Pass pass) noexcept { pass_ = pass; }
  /// Forgets accumulated gradients, not sums.
  void clear_gradients();
  /// Called after a perturbation was written; takes the first pass's non-finite count into the
  /// step's sums. `replicas`: ranks that counted an element's statistics; `num_perturbed`: elements
  /// that a rank or a shard set of ranks perturbs.
  void note_ascent(double rho, double replicas, int64_t num_perturbed);
  /// Makes the first pass's gradient and sums those of the update.
  void promote_ascent();
  /// Every rank's share of the working weights to all ranks (stage ≥ 1).
  void gather_weights();
  /// Whether working weights are something else than round(master).
  void set_perturbed(bool perturbed) noexcept { perturbed_ = perturbed; }
  /// True if the host already knows that this boundary will be skipped, so that a second pass would
  /// be wasted. Equal on all ranks after a first pass that was reduced; never true on CUDA.
  bool skip_is_certain() const;
  /// Called in step() between the update and the gathering of working weights.
  void set_before_publish(std::function<void()> hook) { before_publish_ = std::move(hook); }

  const StepOutcome& outcome();
  int64_t applied_steps();
  int64_t skipped_steps();
  /// Boundaries finished so far, applied or skipped; asks nobody.
  int64_t boundaries() const noexcept {
    return applied_steps_ + skipped_steps_ + (pending_ ? 1 : 0);
  }

  const std::vector<std::unique_ptr<FlatGroup>>& flat_groups() const noexcept { return flat_; }
  int64_t num_parameters() const noexcept;  ///< trainable elements, tied ones once
  Stream stream() const;                    ///< the device's current stream
  MemoryBytes memory() const;
  const OptimizerOptions& options() const noexcept { return options_; }
  Communicator& communicator() noexcept { return comm_; }
  at::Device device() const noexcept { return device_; }
  /// Things the user should know (a parameter was made contiguous, states are lazy…), one a line.
  const std::vector<std::string>& notes() const noexcept { return notes_; }

 private:
  /// What the host knows of one boundary.
  struct Boundary {
    int64_t micro_batches = 0;         ///< whose loss the update has seen …
    int64_t ascent_micro_batches = 0;  ///< … and SAM's first pass
    int64_t ascents = 0;               ///< perturbations
    double rho = 0;
    double replicas = 1;        ///< ranks that counted a perturbation's statistics
    int64_t num_perturbed = 0;  ///< elements
    bool failed_here = false;
  };

  Bf16Optimizer(BuiltGroups built, const OptimizerOptions& options, Communicator& communicator);
  void update_group(size_t index, const std::vector<char>& touched);
  void update_foreign();
  std::vector<char> touched_anywhere();
  std::vector<char> flags_of(size_t group, const std::vector<char>& all) const;
  void resolve();
  void report_failure() const;
  void resolve_ascent(const Boundary& boundary);
  void check_groups();
  void finish_pass();

  OptimizerOptions options_;
  Communicator& comm_;
  ParamGroups groups_;
  std::vector<kernels::OptimizerKind> kinds_;  // of the groups, at construction
  at::Device device_;
  std::vector<std::string> notes_;
  std::vector<std::unique_ptr<FlatGroup>> flat_;
  std::unique_ptr<GradientReducer> reducer_;
  std::unique_ptr<ForeignOptimizer> foreign_;
  std::unique_ptr<StepSums> step_sums_;
  std::unique_ptr<StepSums> ascent_sums_;
  Pass pass_ = Pass::kDescent;
  bool states_initialized_ = false;
  bool perturbed_ = false;
  std::function<void(int64_t)> before_update_;
  std::function<void()> before_publish_;
  Boundary boundary_;          // under way
  Boundary pending_boundary_;  // whose outcome the host has not read
  bool pending_ = false;       // a step was enqueued whose outcome the host has not read
  std::vector<char> pending_touched_;
  StepOutcome outcome_;
  int64_t applied_steps_ = 0;
  int64_t skipped_steps_ = 0;
};

}  // namespace zerosharp
