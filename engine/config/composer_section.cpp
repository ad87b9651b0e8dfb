#include "engine/config/composer_section.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/error.h"

namespace zerosharp {
namespace {

struct ScheduleEntry {
  const char* name;
  ComposerShape shape;
  bool warmup;
};

using Shape = ComposerShape;

/// The first name of a form is the one it is written with; the others are older spellings.
constexpr ScheduleEntry kSchedules[] = {
    {"step", Shape::kStep, false},
    {"multistep", Shape::kMultiStep, false},
    {"multistep_with_warmup", Shape::kMultiStep, true},
    {"constant", Shape::kConstant, false},
    {"constant_with_warmup", Shape::kConstant, true},
    {"linear", Shape::kLinear, false},
    {"linear_decay", Shape::kLinear, false},
    {"linear_decay_with_warmup", Shape::kLinear, true},
    {"linear_with_warmup", Shape::kLinear, true},
    {"exponential", Shape::kExponential, false},
    {"cosine", Shape::kCosine, false},
    {"cosine_decay", Shape::kCosine, false},
    {"cosine_with_warmup", Shape::kCosine, true},
    {"cosine_decay_with_warmup", Shape::kCosine, true},
    {"cosine_warmrestart", Shape::kWarmRestarts, false},
    {"polynomial", Shape::kPolynomial, false},
    {"polynomial_with_warmup", Shape::kPolynomial, true},
    {"inv_sqrt_with_warmup", Shape::kInverseSqrt, true},
};

const ScheduleEntry& schedule_named(const std::string& name) {
  for (const ScheduleEntry& entry : kSchedules) {
    if (name == entry.name) return entry;
  }
  fail_config("no schedule is named ", name);  // other names have been complained about
}

/// Keys of the shape without a default.
std::vector<std::string> required_keys(const ComposerScheduleConfig& s) {
  std::vector<std::string> keys;
  if (s.warmup) keys = {"t_warmup"};
  if (s.shape == Shape::kStep) keys.emplace_back("step_size");
  if (s.shape == Shape::kMultiStep) keys.emplace_back("milestones");
  if (s.shape == Shape::kExponential) keys.emplace_back("gamma");
  if (s.shape == Shape::kWarmRestarts) keys.emplace_back("t_0");
  if (s.shape == Shape::kPolynomial && !s.warmup) keys.emplace_back("power");
  if (s.shape == Shape::kInverseSqrt) keys.insert(keys.end(), {"t_scale", "t_cooldown"});
  return keys;
}

std::vector<std::string> optional_keys(const ComposerScheduleConfig& s) {
  std::vector<std::string> keys;
  switch (s.shape) {
    case Shape::kStep:
    case Shape::kMultiStep:
      keys = {"gamma"};
      break;
    case Shape::kConstant:
      keys = {"alpha", "t_max"};
      break;
    case Shape::kLinear:
      keys = {"alpha_i", "alpha_f", "t_max"};
      break;
    case Shape::kExponential:
      keys = {"decay_period"};
      break;
    case Shape::kCosine:
      keys = {"alpha_f", "t_max"};
      break;
    case Shape::kWarmRestarts:
      keys = {"t_mult", "alpha_f"};
      break;
    case Shape::kPolynomial:
      keys = {"power", "alpha_f", "t_max"};
      break;
    case Shape::kInverseSqrt:
      return {"t_max", "alpha_f_decay", "alpha_f_cooldown"};
  }
  if (s.warmup) keys.emplace_back("scale_warmup");
  return keys;
}

}  // namespace

std::string schedule_names() {
  std::string names;
  for (const ScheduleEntry& entry : kSchedules)
    names += (names.empty() ? "" : "|") + std::string(entry.name);
  return names;
}

ComposerScheduleConfig read_composer_schedule(KeyValues& v, const std::string& prefix,
                                              std::vector<std::string> allowed,
                                              Complaints& complaints) {
  ComposerScheduleConfig s;
  s.name = v.string(prefix + "name", "constant");
  const ScheduleEntry& entry = schedule_named(s.name);
  s.shape = entry.shape;
  s.warmup = entry.warmup;
  const auto required = required_keys(s);
  for (const auto& keys : {required, optional_keys(s)}) {
    allowed.insert(allowed.end(), keys.begin(), keys.end());
  }
  v.check_used(prefix, prefix + "name", s.name, allowed);
  for (const std::string& key : required) {
    if (v.has(prefix + key)) continue;
    complaints.add(v.where(prefix + "name"), prefix + key, "is required by " + s.name + "; add it");
  }
  s.t_warmup = v.time(prefix + "t_warmup", s.t_warmup);
  s.scale_warmup = v.boolean(prefix + "scale_warmup", false);
  s.t_max = v.time(prefix + "t_max", s.t_max);
  s.alpha = v.number(prefix + "alpha", s.alpha);
  s.alpha_i = v.number(prefix + "alpha_i", s.alpha_i);
  s.alpha_f = v.number(prefix + "alpha_f", s.alpha_f);
  s.gamma = v.number(prefix + "gamma", s.gamma);
  s.step_size = v.time(prefix + "step_size", s.step_size);
  s.milestones = v.times(prefix + "milestones");
  s.decay_period = v.time(prefix + "decay_period", s.decay_period);
  s.t_0 = v.time(prefix + "t_0", s.t_0);
  s.t_mult = v.number(prefix + "t_mult", s.t_mult);
  s.power = v.number(prefix + "power", 2);
  s.t_scale = v.time(prefix + "t_scale", s.t_scale);
  s.t_cooldown = v.time(prefix + "t_cooldown", s.t_cooldown);
  s.alpha_f_decay = v.number(prefix + "alpha_f_decay", 0);
  s.alpha_f_cooldown = v.number(prefix + "alpha_f_cooldown", 0);
  return s;
}

nlohmann::ordered_json composer_schedule_json(const ComposerScheduleConfig& s) {
  std::vector<std::string> milestones;
  for (const Time& milestone : s.milestones) milestones.push_back(time_text(milestone));
  const nlohmann::ordered_json all = {{"t_warmup", time_text(s.t_warmup)},
                                      {"scale_warmup", s.scale_warmup},
                                      {"t_max", time_text(s.t_max)},
                                      {"alpha", s.alpha},
                                      {"alpha_i", s.alpha_i},
                                      {"alpha_f", s.alpha_f},
                                      {"gamma", s.gamma},
                                      {"step_size", time_text(s.step_size)},
                                      {"milestones", milestones},
                                      {"decay_period", time_text(s.decay_period)},
                                      {"t_0", time_text(s.t_0)},
                                      {"t_mult", s.t_mult},
                                      {"power", s.power},
                                      {"t_scale", time_text(s.t_scale)},
                                      {"t_cooldown", time_text(s.t_cooldown)},
                                      {"alpha_f_decay", s.alpha_f_decay},
                                      {"alpha_f_cooldown", s.alpha_f_cooldown}};
  nlohmann::ordered_json json = {{"name", s.name}};
  for (const auto& keys : {required_keys(s), optional_keys(s)}) {
    for (const std::string& key : keys) json[key] = all[key];
  }
  return json;
}

void read_duration(KeyValues& v, Config& config, Complaints& complaints) {
  const double ratio = v.number("scale_schedule_ratio", 1);
  config.train.scale_schedule_ratio = ratio;
  if (!v.has("max_duration")) {
    if (v.has("scale_schedule_ratio")) {
      complaints.add(v.where("scale_schedule_ratio"), "scale_schedule_ratio",
                     "scales max_duration, which is not set; set it, or leave the ratio out");
    }
    return;
  }
  if (v.has("train.steps")) {
    const bool overridden =
        v.where("train.steps") == "(override)" && v.where("max_duration") != v.where("train.steps");
    if (overridden) {
      v.warn(v.where("max_duration") + ": max_duration: no effect with train.steps=" +
             v.text("train.steps") + " from the command line");
    } else {
      complaints.add(v.where("train.steps"), "train.steps",
                     "and max_duration both say how long to train; remove one");
    }
    return;
  }
  try {
    config.train.max_duration = v.time("max_duration", {});
    scaled_duration(*config.train.max_duration, ratio);
  } catch (const ConfigError& error) {
    complaints.add(v.where("max_duration"), "", error.what());
  }
}

bool speaks_composer(const KeyValues& v) {
  return v.has("scheduler.name") || v.was_written("optimizer.name") || v.was_written("algorithms");
}

}  // namespace zerosharp
