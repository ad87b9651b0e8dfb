// SAM's perturbation e on flat buffers: which direction, how long, and written where.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "engine/config/config.h"
#include "engine/sam/parameter_mask.h"
#include "kernels/perturb.h"
#include "zero/bf16_optimizer.h"

namespace zerosharp {

/// The weights as they are at construction, over all ranks.
struct WeightSurvey {
  double norm = 0;           ///< ‖w‖
  double rounded_share = 0;  ///< of the non-zero masters, how many are values of the working dtype
};

/// One ascent step's numbers.
struct AscentNumbers {
  double rho = 0;
  uint64_t step = 0;  ///< counts boundaries; with `salt` it keys the random bits
  uint64_t salt = 0;  ///< micro-batch (scope micro)
};

/// e = ρ·t²·d / ‖t·d‖, where d is made from the first pass's gradient g:
/// - sam: d = g, t = 1 (Foret et al. 2021, eq. 2)
/// - asam: t = |w| + η (Kwon et al. 2021, eq. 7)
/// - preconditioned: t² = 1 / (√v + δ), v Adam's second moment (ascent in Adam's metric; Singh et
///   al. 2025), with e = ρ·t²·d / ‖t²·d‖ instead: where v is still 0, ‖e‖ stays ρ
/// - fsam: d = g − σ·m, m ← λ·m + (1−λ)·g (Li et al. 2024, Friendly SAM; the mean of earlier steps)
/// - vasso: d = m ← (1−θ)·m + θ·g (Li & Giannakis 2023, eq. 5)
/// where means start with the first gradient. Weights are working weights; the base of owned
/// elements is their fp32 master, added to in fp32 and rounded once. The whole is written once for
/// runs of elements, whatever stage made them a rank's own.
class Ascent {
 public:
  /// Collective. `seed` keys stochastic rounding. Throws ConfigError where the variant needs what
  /// the optimizer or the scope does not have.
  Ascent(Bf16Optimizer& base, const SamConfig& config, ParameterMask mask, uint64_t seed);

  /// After the first pass's gradients were reduced: makes d and adds up ‖t·d‖² in the optimizer's
  /// ascent_sums(). `unscale`: 1 / (micro-batches of the first pass · loss scale). Collective for
  /// the shared scope (global), not for the others.
  void measure(double unscale);
  /// Working weights ← round(base + e). Collective for the shared scope. `scale`'s NaN (something
  /// was not finite) leaves the weights as they are.
  void perturb(const AscentNumbers& numbers);

  /// True where one e is made by all ranks together, each for its share.
  bool shared() const noexcept { return config_.scope == SamScope::kGlobal; }
  const ParameterMask& mask() const noexcept { return mask_; }
  /// Of owned elements. sam.rounding "auto" is stochastic where most masters are values of the
  /// working dtype: they have no remainder that could carry an e below half a spacing, so rounding
  /// to nearest would drop it.
  kernels::Rounding rounding() const noexcept { return rounding_; }
  const WeightSurvey& survey() const noexcept { return survey_; }
  /// The running mean of gradients (fsam, vasso), one fp32 shard a group; empty for others.
  std::vector<at::Tensor>& mean() noexcept { return mean_; }
  int64_t bytes() const;

 private:
  kernels::PerturbShard shard_of(size_t group, ShardRange run, bool owned) const;
  void add_dots();
  void update_mean(double unscale);
  void add_norms();
  void perturb_runs(size_t group, ShardRange range, bool owned, kernels::PerturbStep step,
                    double* stats);

  Bf16Optimizer& base_;
  SamConfig config_;
  ParameterMask mask_;
  uint64_t seed_;
  kernels::Weighting weighting_;
  float shift_;
  WeightSurvey survey_;
  kernels::Rounding rounding_;
  std::vector<at::Tensor> mean_;
  double unscale_ = 1;  // of d
  at::Tensor along_;    // ⟨g, e⟩ times the norm over ρ, where that is not the norm's square
};

}  // namespace zerosharp
