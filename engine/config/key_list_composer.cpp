#include <deque>

#include "engine/config/composer_section.h"
#include "engine/config/key_list.h"

namespace zerosharp {
namespace {

using T = KeyType;
constexpr double kInf = std::numeric_limits<double>::infinity();

/// Text that lives as long as the table, which only looks at it.
std::string_view kept(std::string text) {
  static std::deque<std::string> texts;
  return texts.emplace_back(std::move(text));
}

void add_schedule(std::vector<KeySpec>& keys, const std::string& prefix) {
  const auto add = [&](const char* name, T type, std::string_view fallback,
                       std::string_view meaning, double least = -kInf) {
    keys.push_back({kept(prefix + name), type, fallback, meaning, least});
  };
  add("t_warmup", T::kTime, "", "length of the warm-up from 0 (…_with_warmup)");
  add("scale_warmup", T::kBool, "false",
      "stretch the warm-up's slope by scale_schedule_ratio (…_with_warmup)");
  add("t_max", T::kTime, "\"1dur\"",
      "end (constant, linear, cosine, polynomial, inv_sqrt_with_warmup)");
  add("alpha", T::kNumber, "1", "multiplier (constant)", 0);
  add("alpha_i", T::kNumber, "1", "first multiplier (linear)", 0);
  add("alpha_f", T::kNumber, "0", "last multiplier (linear, cosine, polynomial, warm restarts)", 0);
  add("gamma", T::kNumber, "0.1",
      "factor of a step (step, multistep; exponential, which has no default)", 0);
  add("step_size", T::kTime, "", "time between steps (step)");
  add("milestones", T::kTimes, "", "times of the steps (multistep)");
  add("decay_period", T::kTime, "\"1ep\"", "time in which the rate falls by gamma (exponential)");
  add("t_0", T::kTime, "", "length of the first cycle (cosine_warmrestart)");
  add("t_mult", T::kNumber, "1", "factor from a cycle to the next (cosine_warmrestart)", 0);
  add("power", T::kNumber, "", "exponent; with warm-up 2 (polynomial)", 0);
  add("t_scale", T::kTime, "", "time scale of the decay (inv_sqrt_with_warmup)");
  add("t_cooldown", T::kTime, "", "length of the linear end (inv_sqrt_with_warmup)");
  add("alpha_f_decay", T::kNumber, "0", "limit of the decay (inv_sqrt_with_warmup)", 0);
  add("alpha_f_cooldown", T::kNumber, "0", "last multiplier (inv_sqrt_with_warmup)", 0);
}

void add_aliases(std::vector<KeySpec>& keys) {
  const auto alias = [&](std::string_view name, std::string_view target) {
    keys.push_back({name, T::kAny, {}, target, -kInf, kInf, {}, KeyEffect::kAlias, {}});
  };
  alias("global_train_batch_size", "train_batch_size");
  alias("device_train_microbatch_size", "train_micro_batch_size_per_gpu");
  alias("seed", "train.seed");
  alias("optimizer.name", "optimizer.type");
  alias("optimizer.lr", "optimizer.params.lr");
  alias("optimizer.betas", "optimizer.params.betas");
  alias("optimizer.eps", "optimizer.params.eps");
  alias("optimizer.weight_decay", "optimizer.params.weight_decay");
  alias("optimizer.momentum", "optimizer.params.momentum");
  alias("optimizer.dampening", "optimizer.params.dampening");
  alias("optimizer.nesterov", "optimizer.params.nesterov");
  alias("algorithms.gradient_clipping.clipping_threshold", "gradient_clipping");
  alias("algorithms.sam.rho", "sam.rho");
  alias("algorithms.sam.epsilon", "sam.epsilon");
  alias("algorithms.sam.interval", "sam.interval");
}

KeySpec choice(std::string_view path, std::string_view fallback, std::string_view choices,
               std::string_view meaning) {
  return {path, T::kChoice, fallback, meaning, -kInf, kInf, choices};
}

}  // namespace

std::vector<KeySpec> composer_keys() {
  const std::string_view names = kept(schedule_names());
  std::vector<KeySpec> keys = {
      {"max_duration", T::kTime, "",
       "length of the run, \"2ep\", \"4800ba\", \"1e9tok\"; a bare number counts epochs", -kInf,
       kInf, "ep"},
      {"scale_schedule_ratio", T::kNumber, "1", "factor on max_duration and the schedules' times",
       1e-9, 1e9},
      choice("precision", "\"fp32\"", "fp32|amp_bf16|amp_fp16",
             "amp_bf16: bf16.enabled, amp_fp16: fp16.enabled"),
      {"algorithms", T::kSection, "", "Composer's algorithms"},
      {"algorithms.sam", T::kSection, "", "turns SAM on; all of its settings are in sam"},
      {"algorithms.gradient_clipping", T::kSection, "", "clipping of gradients"},
      choice("algorithms.gradient_clipping.clipping_type", "\"norm\"", "norm|value|adaptive",
             "norm: of the global gradient; the others are refused"),
      choice("scheduler.name", "", names, "Composer's schedule, its settings beside it"),
      choice("scheduler.lr_compat", "\"exact\"", "exact|composer",
             "composer: batch b trains with the rate of batch b − 1, as there"),
  };
  add_schedule(keys, "scheduler.");
  const std::vector<KeySpec> rho = {
      {"sam.rho_scheduler", T::kSection, "", "ρ over the run; its times are as in scheduler"},
      choice("sam.rho_scheduler.name", "", kept("linear_in_lr|" + std::string(names)),
             "shape: ρ = rho·multiplier, or between rho_min and rho as the rate between lr_min and "
             "lr_max"),
      {"sam.rho_scheduler.rho_min", T::kNumber, "0", "ρ at lr_min (linear_in_lr)", 0},
      {"sam.rho_scheduler.lr_min", T::kNumber, "0", "rate at which ρ is rho_min (linear_in_lr)", 0},
      {"sam.rho_scheduler.lr_max", T::kNumber, "",
       "rate at which ρ is rho; default: the optimizer's lr (linear_in_lr)", 0},
  };
  keys.insert(keys.end(), rho.begin(), rho.end());
  add_schedule(keys, "sam.rho_scheduler.");
  add_aliases(keys);
  return keys;
}

}  // namespace zerosharp
