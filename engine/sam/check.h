// What a SAM configuration must satisfy, its derived numbers, and its warnings.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "engine/config/config.h"
#include "engine/sam/ascent.h"
#include "zero/bf16_optimizer.h"

namespace zerosharp {

/// Throws ConfigError for numbers out of range, and for a scope or an option that the variant does
/// not have.
void check_sam(const SamConfig& config);

/// Ranks of a group of scope "group" among `world`. Throws ConfigError unless it divides them.
int64_t sam_group_size(const SamConfig& config, int world, int local_ranks);

/// Micro-batches of the first pass: `ascent_fraction` of them to the nearest, at least one. Throws
/// ConfigError where the fraction cannot leave out a single one.
int64_t ascent_micro_batches(const SamConfig& config, int64_t micro_batches);

/// AE-SAM's threshold c at `step` of `total`, in standard deviations.
double sam_threshold(const SamConfig& config, int64_t step, int64_t total) noexcept;

/// A perturbation that rounding to nearest will mostly drop (sam.rounding "nearest" on weights that
/// are values of the working dtype): ρ/‖w‖ below 2⁻⁹ for bf16, 2⁻¹² for fp16.
std::optional<std::string> radius_warning(const SamConfig& config, DType working,
                                          const WeightSurvey& survey);

/// A run of `total_steps` (0: unknown) that ends before its first perturbed step.
std::optional<std::string> never_active_warning(const SamConfig& config, int64_t total_steps);

/// The loss does not rise along e.
std::string inactive_warning(const StepOutcome& outcome);

}  // namespace zerosharp
