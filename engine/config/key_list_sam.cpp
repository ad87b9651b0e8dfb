#include "engine/config/key_list.h"

namespace zerosharp {
namespace {

using T = KeyType;
using Keys = std::vector<KeySpec>;
constexpr double kInf = std::numeric_limits<double>::infinity();

KeySpec choice(std::string_view path, std::string_view fallback, std::string_view choices,
               std::string_view meaning) {
  return {path, T::kChoice, fallback, meaning, -kInf, kInf, choices};
}

Keys protocol_keys() {
  return {
      {"sam", T::kSection, "", "sharpness-aware minimization"},
      {"sam.enabled", T::kBool, "false", "two passes a step: gradient at w, then at w + e"},
      {"sam.rho", T::kNumber, "0.05", "‖e‖", 0},
      {"sam.epsilon", T::kNumber, "1e-12", "added to the gradient norm", 0},
      {"sam.interval", T::kInteger, "1", "perturb every k-th step", 1},
      choice("sam.scope", "\"global\"", "global|group|local|micro",
             "e from the gradient of the whole batch, of group_size ranks, of each rank or of each "
             "micro-batch"),
      {"sam.group_size", T::kInteger, "", "ranks of a group; default: those of a machine (group)",
       1},
      choice("sam.variant", "\"sam\"", "sam|asam|msam|gsam|fsam|vasso|preconditioned|aesam|looksam",
             "member of the family (docs/sam.md)"),
      choice("sam.rounding", "\"auto\"", "auto|nearest|stochastic",
             "of w + e to the working dtype; auto: stochastic where w is a value of that dtype"),
      {"sam.same_rng", T::kBool, "true", "the second pass draws the same random numbers"},
      {"sam.freeze_bn", T::kBool, "true",
       "buffers (batch-norm statistics) move in the first pass only"},
      {"sam.ascent_fraction", T::kNumber, "1", "share of the micro-batches in the first pass", 0,
       1},
      {"sam.params", T::kStrings, "",
       "what is perturbed: \"norm\" or regular expressions for names; default: all"},
      {"sam.start_step", T::kInteger, "0", "first step, from 0, that may perturb", 0},
      {"sam.end_step", T::kInteger, "0", "first step that no longer does; 0: none", 0},
      {"sam.start", T::kTime, "", "the same as a time, \"0.75dur\""},
      {"sam.end", T::kTime, "", "… and the end"},
      {"sam.skip_when_lr_zero", T::kBool, "false", "one pass where every group's lr is 0"},
      {"sam.report_cosine", T::kBool, "false",
       "report cos(g, g₂); keeps one more fp32 shard (global)"},
  };
}

Keys variant_keys() {
  return {
      {"sam.eta", T::kNumber, "0.01", "e is scaled by (|w| + eta)² (asam)", 0},
      {"sam.alpha", T::kNumber, "",
       "weight of the orthogonal part; default: 0.4 (gsam), 0.7 (looksam)", 0},
      {"sam.sigma", T::kNumber, "1", "share of the mean gradient that is taken out (fsam)", 0},
      {"sam.decay", T::kNumber, "0.9", "decay of the means (fsam, aesam)", 0, 1},
      {"sam.theta", T::kNumber, "0.4", "weight of the new gradient in the mean (vasso)", 0, 1},
      {"sam.delta", T::kNumber, "1e-8",
       "added to the root of Adam's second moment (preconditioned)", 0},
      {"sam.threshold_start", T::kNumber, "1",
       "first threshold on ‖g‖², in standard deviations above its mean (aesam)"},
      {"sam.threshold_end", T::kNumber, "-1", "last threshold, reached at train.steps (aesam)"},
      {"sam.k", T::kInteger, "5", "two passes every k-th step (looksam)", 1},
  };
}

}  // namespace

std::vector<KeySpec> sam_keys() {
  Keys all = protocol_keys();
  for (const KeySpec& key : variant_keys()) all.push_back(key);
  return all;
}

}  // namespace zerosharp
