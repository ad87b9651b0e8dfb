#include "engine/sam/check.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "engine/config/sam_section.h"
#include "kernels/error.h"

namespace zerosharp {
namespace {

void check_at_least(const char* key, double value, double least) {
  if (value >= least && std::isfinite(value)) return;
  fail_config("sam.", key, " must be a finite number of at least ", least, ", got ", value);
}

void check_share(const char* key, double value) {
  if (value >= 0 && value <= 1) return;
  fail_config("sam.", key, " must lie between 0 and 1, got ", value);
}

/// Variants whose vectors live on shards, one set for all ranks together.
bool needs_global(SamVariant variant) {
  return variant != SamVariant::kSam && variant != SamVariant::kAsam;
}

void check_combination(const SamConfig& c) {
  const std::string variant = std::string("sam.variant \"") + sam_variant_name(c.variant) + "\"";
  if (needs_global(c.variant) && c.scope != SamScope::kGlobal) {
    fail_config(variant, " works with sam.scope \"global\" only, got \"", sam_scope_name(c.scope),
                "\"; \"sam\" and \"asam\" have every scope");
  }
  if (c.report_cosine && c.scope != SamScope::kGlobal) {
    fail_config("sam.report_cosine works with sam.scope \"global\" only, got \"",
                sam_scope_name(c.scope), "\"");
  }
  const bool momentum = c.variant == SamVariant::kMsam;
  if ((momentum || c.variant == SamVariant::kLookSam) && c.interval != 1) {
    fail_config(variant, " has no sam.interval, got ", c.interval,
                momentum ? "; it perturbs at every step for free" : "; use sam.k");
  }
  const bool combines = c.variant == SamVariant::kGsam || c.variant == SamVariant::kLookSam;
  if ((momentum || combines || c.variant == SamVariant::kAeSam) && c.ascent_fraction != 1) {
    fail_config(variant, " needs the whole batch in the first pass, got sam.ascent_fraction ",
                c.ascent_fraction);
  }
  if (c.scope == SamScope::kMicro && c.ascent_fraction != 1) {
    fail_config("sam.scope \"micro\" perturbs every micro-batch, got sam.ascent_fraction ",
                c.ascent_fraction);
  }
  if ((momentum || combines || c.variant == SamVariant::kAeSam) && !c.params.empty()) {
    fail_config(variant, " perturbs all parameters; leave sam.params out");
  }
  if (momentum && c.report_cosine) {
    fail_config(variant, " has one gradient a step; leave sam.report_cosine out");
  }
}

}  // namespace

void check_sam(const SamConfig& c) {
  check_at_least("rho", c.rho, 0);
  check_at_least("epsilon", c.epsilon, 0);
  check_at_least("interval", static_cast<double>(c.interval), 1);
  check_at_least("k", static_cast<double>(c.k), 1);
  check_at_least("start_step", static_cast<double>(c.start_step), 0);
  check_at_least("end_step", static_cast<double>(c.end_step), 0);
  check_at_least("eta", c.eta, 0);
  check_at_least("alpha", c.alpha, 0);
  check_at_least("sigma", c.sigma, 0);
  check_at_least("delta", c.delta, 0);
  check_share("decay", c.decay);
  check_share("theta", c.theta);
  if (!(c.ascent_fraction > 0 && c.ascent_fraction <= 1)) {
    fail_config("sam.ascent_fraction must be above 0 and at most 1, got ", c.ascent_fraction);
  }
  if (c.end_step != 0 && c.end_step <= c.start_step) {
    fail_config("sam.end_step ", c.end_step, " does not lie after sam.start_step ", c.start_step,
                ", so SAM would never be active; 0 means no end");
  }
  check_combination(c);
}

int64_t sam_group_size(const SamConfig& config, int world, int local_ranks) {
  const int64_t size = config.group_size > 0 ? config.group_size : local_ranks;
  if (size < 1) {
    fail_config(
        "sam.scope \"group\" needs sam.group_size, since the number of ranks of this machine is "
        "not known");
  }
  if (world % size != 0) {
    fail_config("sam.group_size ", size, " does not divide the ", world, " rank(s)",
                config.group_size > 0 ? "" : " (it is the number of ranks of this machine)",
                "; set a divisor of ", world);
  }
  return size;
}

int64_t ascent_micro_batches(const SamConfig& config, int64_t micro_batches) {
  const double share = config.ascent_fraction * static_cast<double>(micro_batches);
  const int64_t count = std::max<int64_t>(1, std::llround(share));
  if (config.ascent_fraction < 1 && count == micro_batches) {
    fail_config(
        "sam.ascent_fraction ", config.ascent_fraction, " of ", micro_batches,
        " micro-batch(es) is all of them; raise gradient_accumulation_steps (with a smaller "
        "train_micro_batch_size_per_gpu), or set the fraction to 1");
  }
  return count;
}

double sam_threshold(const SamConfig& config, int64_t step, int64_t total) noexcept {
  if (total <= 0) return config.threshold_start;
  const double progress = std::min(1.0, static_cast<double>(step) / static_cast<double>(total));
  return config.threshold_start + progress * (config.threshold_end - config.threshold_start);
}

std::optional<std::string> radius_warning(const SamConfig& config, DType working,
                                          const WeightSurvey& survey) {
  if (working == DType::kF32 || config.rounding != SamRounding::kNearest) return std::nullopt;
  const double least = working == DType::kBF16 ? 0x1p-9 : 0x1p-12;
  const double radius = survey.norm > 0 ? config.rho / survey.norm : 1.0;
  if (survey.rounded_share <= 0.5 || config.rho == 0 || radius >= least) return std::nullopt;
  std::ostringstream text;
  text << "sam.rounding \"nearest\": " << 100 * survey.rounded_share
       << " % of the weights are values of " << dtype_name(working) << " and rho/|w| is " << radius
       << ", below " << least
       << ": most of the perturbation will be lost in rounding; use \"auto\" or \"stochastic\"";
  return text.str();
}

std::optional<std::string> never_active_warning(const SamConfig& c, int64_t total_steps) {
  if (total_steps == 0) return std::nullopt;
  // interval k perturbs in steps k − 1, 2k − 1, …, from 0.
  const int64_t first = (c.start_step + c.interval) / c.interval * c.interval - 1;
  const int64_t end = c.end_step == 0 ? total_steps : std::min(c.end_step, total_steps);
  if (first < end) return std::nullopt;
  std::ostringstream text;
  text << "SAM is never active: its first perturbed step would be number " << first
       << " (from 0; sam.start_step " << c.start_step << ", sam.interval " << c.interval
       << "), but " << (end < total_steps ? "sam.end_step is " : "the run has only ") << end
       << (end < total_steps ? "" : " steps");
  return text.str();
}

std::string inactive_warning(const StepOutcome& outcome) {
  std::ostringstream text;
  text
      << "SAM seems to do nothing: at w + e the loss is " << outcome.loss_perturbed << ", at w "
      << outcome.loss << ", where a rise of " << outcome.expected_gap
      << " was expected, for several steps; does the closure compute the same loss in both passes, "
         "and is sam.rounding right for the precision?";
  return text.str();
}

}  // namespace zerosharp
