// Sharpness-aware minimization (Foret et al. 2021, arXiv 2010.01412) above a partitioned optimizer.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/config/config.h"
#include "engine/sam/ascent.h"
#include "engine/sam/kept_gradient.h"
#include "engine/sam/micro_scratch.h"
#include "engine/sam/momentum_ascent.h"
#include "engine/sam/rng_snapshot.h"
#include "engine/train_pass.h"
#include "zero/bf16_optimizer.h"

namespace zerosharp {

/// What the adapter needs to know beside the optimizer and its configuration.
struct SamContext {
  uint64_t seed = 0;                ///< of stochastic rounding
  std::vector<at::Tensor> buffers;  ///< what the second pass does to them is undone (freeze_bn)
  std::vector<std::string> norm_parameters;  ///< names that "norm" in sam.params stands for
  int local_ranks = 0;                       ///< ranks of this machine (scope group); 0: unknown
  int64_t total_steps = 0;                   ///< of the run (aesam); 0: unknown
};

/// What lives on from step to step; a checkpoint needs nothing else of SAM. e is never part of it.
struct SamState {
  int64_t steps = 0;
  bool kept_valid = false;          ///< LookSAM: `vectors` holds an orthogonal part
  double mean_square = 0;           ///< AE-SAM: mean of ‖g‖² …
  double variance = 0;              ///< … and its variance …
  int64_t observed = 0;             ///< … over so many steps
  std::vector<at::Tensor> vectors;  ///< copies of the kept fp32 shards, one a group
};

/// Wraps the finished, sharded optimizer: g at w, e written into the working weights only, g at
/// w + e, then the base optimizer's update from the untouched masters, which also publishes clean
/// weights. It is no torch::optim::Optimizer and owns no groups, so no scheduler can bind to copies
/// of them, and it cannot be built before the optimizer has sharded its parameters.
///
/// Scopes: global: e from the gradient averaged over ranks, equal everywhere, ‖e‖ = ρ at any number
/// of ranks and stage. group, local: e from the mean gradient of some ranks or from each rank's own
/// (m-sharpness); working weights differ between the passes and are equal again after. micro: each
/// micro-batch has its own e. The variants are described at Ascent, KeptGradient, MomentumAscent
/// and in docs/sam.md.
///
/// If any rank meets a non-finite loss or gradient in either pass, or throws, every rank skips,
/// weights are clean and equal, and the failing rank's exception is thrown there (CommError on the
/// others). Every branch is taken from numbers that all ranks share.
class SamAdapter {
 public:
  /// Collective. Throws ConfigError for values out of range and for what the variant or the scope
  /// does not have.
  SamAdapter(Bf16Optimizer& base, const SamConfig& config, SamContext context = {});
  ~SamAdapter();
  SamAdapter(const SamAdapter&) = delete;
  SamAdapter& operator=(const SamAdapter&) = delete;

  /// The base optimizer's groups themselves.
  ParamGroups& param_groups() noexcept { return base_.param_groups(); }
  /// The warm-up is exactly the base optimizer's; it needs no closure.
  void initialize_states() { base_.initialize_states(); }

  /// Always throws ConfigError: a training step of SAM evaluates the loss twice, so it needs the
  /// closure. The message shows both calls that have one.
  [[noreturn]] void step();

  /// One update from two passes over `micro_batches` micro-batches (one pass where this step does
  /// not perturb). Collective. Losses are multiplied by `loss_scale` for backward.
  const StepOutcome& step(const PassClosure& closure, int64_t micro_batches,
                          double loss_scale = 1.0);

  // The same in parts, for loops that cannot give a closure (see Engine::begin_ascent):

  /// Throws ConfigError for scope micro: its passes alternate within the boundary, so it has no
  /// parts.
  void check_has_parts() const;
  /// Starts a boundary and its first pass. Returns the number of micro-batches the first pass takes
  /// (all of them where this step does not perturb).
  int64_t begin_ascent(int64_t micro_batches, double loss_scale = 1.0);
  /// After the first pass. True: weights are w + e, evaluate all micro-batches again. False: finish
  /// at once. Collective.
  bool end_ascent();
  /// The update. Collective; the perturbation ends in every case.
  void finish();

  /// Whether the next step may perturb, as far as the shared step count tells.
  bool next_step_perturbs() const noexcept;
  /// Radius of the next step; a schedule may be set, which must be equal on all ranks.
  double rho() const;
  void set_rho_schedule(std::function<double(int64_t step)> schedule) {
    rho_schedule_ = std::move(schedule);
  }
  const SamConfig& config() const noexcept { return config_; }

  /// Momentum-SAM keeps working weights perturbed between steps: these make them clean for
  /// evaluation and saving, and perturbed again. Nothing for other variants. Collective.
  void publish_clean();
  void publish_perturbed();

  SamState state();
  /// Takes over a state of the same configuration and sharding. Throws ShapeError.
  void load_state(const SamState& state);
  /// Bytes of kept vectors and scratch on this rank; 0 for plain SAM in the scopes global and
  /// local.
  int64_t bytes() const;
  /// What the ranks of this one's group say among themselves (scope group); null for other scopes.
  const Communicator* group() const noexcept { return group_.get(); }

  /// Looks at the outcome of a step for signs that the perturbation does nothing.
  void observe(const StepOutcome& outcome);
  /// What the user should be warned of since the last call; each cause comes up once.
  std::vector<std::string> take_warnings() { return std::exchange(warnings_, {}); }

 private:
  /// What the update is made from.
  enum class Descent {
    kGradient,    ///< the last pass's gradient
    kPromoted,    ///< the first pass's, since AE-SAM saw no need for another
    kOrthogonal,  ///< GSAM
    kKeep,        ///< LookSAM with two passes
    kReuse        ///< LookSAM with one
  };

  int64_t open_boundary(int64_t micro_batches, double loss_scale);
  bool rests() const noexcept;
  bool in_active_steps() const noexcept;
  Descent plan_descent() const noexcept;
  void reduce_ascent();
  bool trigger();
  void update();
  void micro_step(PassFailure& failure, const PassClosure& closure);
  AscentNumbers numbers(int64_t micro = 0) const;
  double unscale(int64_t micro_batches) const;
  void abandon() noexcept;

  Bf16Optimizer& base_;
  SamConfig config_;
  SamContext context_;
  std::unique_ptr<Communicator> group_;  // scope group
  std::optional<Ascent> ascent_;
  std::optional<KeptGradient> kept_;
  std::optional<MomentumAscent> momentum_;
  std::optional<MicroScratch> scratch_;
  std::function<double(int64_t)> rho_schedule_;
  int64_t steps_ = 0;
  double mean_square_ = 0;  // AE-SAM
  double variance_ = 0;
  int64_t observed_ = 0;
  bool kept_valid_ = false;    // LookSAM
  bool kept_pending_ = false;  // … unless the step that made it was skipped

  // Of the boundary under way.
  int64_t micro_batches_ = 1;
  int64_t first_pass_ = 1;  // micro-batches
  double loss_scale_ = 1;
  bool ascends_ = false;
  Descent descent_ = Descent::kGradient;
  std::optional<RngSnapshot> rng_;
  std::optional<BufferSnapshot> buffers_;
  std::optional<OnlyMasked> only_masked_;

  int inactive_steps_ = 0;
  std::vector<std::string> warnings_;
};

}  // namespace zerosharp
