#include "engine/config/scheduler_section.h"

#include <sstream>

#include "engine/config/composer_section.h"
#include "engine/schedule.h"
#include "kernels/error.h"

namespace zerosharp {
namespace {

ScheduleKind schedule_named(const std::string& type) {
  if (type == "linear" || type == "linear_decay_with_warmup") return ScheduleKind::kLinear;
  if (type == "cosine" || type == "cosine_with_warmup") return ScheduleKind::kCosine;
  if (type == "warmuplr") return ScheduleKind::kWarmupLR;
  if (type == "warmupdecaylr") return ScheduleKind::kWarmupDecayLR;
  if (type == "warmupcosinelr") return ScheduleKind::kWarmupCosineLR;
  if (type == "onecycle") return ScheduleKind::kOneCycle;
  return ScheduleKind::kConstant;
}

/// The scheduler.params that mean something to `kind`.
std::vector<std::string> keys_of(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kConstant:
      return {"warmup_steps"};
    case ScheduleKind::kLinear:
    case ScheduleKind::kCosine:
      return {"warmup_steps", "total_steps", "alpha_f"};
    case ScheduleKind::kWarmupLR:
      return {"warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type"};
    case ScheduleKind::kWarmupDecayLR:
      return {"warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type",
              "total_num_steps"};
    case ScheduleKind::kWarmupCosineLR:
      return {"warmup_min_ratio", "warmup_num_steps", "warmup_type", "total_num_steps",
              "cos_min_ratio"};
    case ScheduleKind::kComposer:
      break;
    case ScheduleKind::kOneCycle:
      return {"cycle_min_lr",           "cycle_max_lr",
              "decay_lr_rate",          "cycle_first_step_size",
              "cycle_second_step_size", "cycle_first_stair_count",
              "decay_step_size",        "cycle_second_stair_count",
              "cycle_momentum",         "cycle_min_mom",
              "cycle_max_mom",          "decay_mom_rate"};
  }
  return {};
}

template <class T>
std::optional<T> optional_of(bool set, T value) {
  return set ? std::optional<T>(value) : std::nullopt;
}

SchedulerConfig read_schedule(const KeyValues& v) {
  const std::string p = "scheduler.params.";
  SchedulerConfig s;
  s.kind = schedule_named(v.string("scheduler.type", ""));
  s.warmup_steps = v.integer(p + "warmup_steps", 0);
  s.total_steps = v.integer(p + "total_steps", 0);
  s.alpha_f = v.number(p + "alpha_f", 0);
  s.warmup_min_lr = v.number(p + "warmup_min_lr", 0);
  s.warmup_max_lr = optional_of(v.has(p + "warmup_max_lr"), v.number(p + "warmup_max_lr", 0));
  s.warmup_num_steps = v.integer(p + "warmup_num_steps", 1000);
  s.warmup_log = v.string(p + "warmup_type", "log") == "log";
  s.total_num_steps = v.integer(p + "total_num_steps", 0);
  s.warmup_min_ratio = v.number(p + "warmup_min_ratio", 0);
  s.cos_min_ratio = v.number(p + "cos_min_ratio", 1e-4);
  s.cycle_min_lr = v.number(p + "cycle_min_lr", 0);
  s.cycle_max_lr = v.number(p + "cycle_max_lr", 0);
  s.decay_lr_rate = v.number(p + "decay_lr_rate", 0);
  s.cycle_first_step_size = v.integer(p + "cycle_first_step_size", 2000);
  s.cycle_second_step_size =
      optional_of(v.has(p + "cycle_second_step_size"), v.integer(p + "cycle_second_step_size", 0));
  s.cycle_first_stair_count = v.integer(p + "cycle_first_stair_count", 0);
  s.cycle_second_stair_count = optional_of(v.has(p + "cycle_second_stair_count"),
                                           v.integer(p + "cycle_second_stair_count", 0));
  s.decay_step_size = v.integer(p + "decay_step_size", 0);
  s.cycle_momentum = v.boolean(p + "cycle_momentum", true);
  s.cycle_min_mom = v.number(p + "cycle_min_mom", 0.8);
  s.cycle_max_mom = v.number(p + "cycle_max_mom", 0.9);
  s.decay_mom_rate = v.number(p + "decay_mom_rate", 0);
  return s;
}

/// Schedules that are legal but probably not what was meant.
void warn_about_schedule(KeyValues& v, const SchedulerConfig& s, double lr) {
  const std::string p = "scheduler.params.";
  const std::string at = v.where("scheduler.type") + ": ";
  const bool warmup_lr =
      s.kind == ScheduleKind::kWarmupLR || s.kind == ScheduleKind::kWarmupDecayLR;
  if (warmup_lr && !s.warmup_max_lr) {
    std::ostringstream text;
    text << at << p << "warmup_max_lr is not given; the rate rises to the optimizer's own, " << lr;
    v.warn(text.str());
  }
  const bool ours = s.kind == ScheduleKind::kLinear || s.kind == ScheduleKind::kCosine;
  const bool theirs =
      s.kind == ScheduleKind::kWarmupDecayLR || s.kind == ScheduleKind::kWarmupCosineLR;
  const int64_t warmup = ours ? s.warmup_steps : s.warmup_num_steps;
  const int64_t total = ours ? s.total_steps : s.total_num_steps;
  if ((ours || theirs) && total <= warmup) {
    v.warn(at + "the LR warm-up of " + std::to_string(warmup) + " steps leaves nothing of " +
           std::to_string(total) + " for the decay");
  }
}

/// Settings that only go with scheduler.name.
void refuse_composer_keys(const KeyValues& v, const SchedulerConfig& s, Complaints& complaints) {
  for (const KeySpec& key : key_table()) {
    const std::string path(key.path);
    const bool direct = path.rfind("scheduler.", 0) == 0 && path.find('.', 10) == std::string::npos;
    if (!direct || !v.has(path) || path == "scheduler.type" || path == "scheduler.lr_compat") {
      continue;
    }
    complaints.add(v.where(path), path,
                   "goes with scheduler.name; beside scheduler.type the settings are in "
                   "scheduler.params");
  }
  const bool ramp = s.kind == ScheduleKind::kConstant || s.kind == ScheduleKind::kLinear ||
                    s.kind == ScheduleKind::kCosine;
  if (s.composer_lag && !ramp) {
    complaints.add(v.where("scheduler.lr_compat"), "scheduler.lr_compat",
                   "\"composer\" goes with Composer's schedules; " + v.text("scheduler.type") +
                       " steps as DeepSpeed does");
  }
}

/// Composer's form: scheduler.name with its settings beside it.
SchedulerConfig read_composer_form(KeyValues& v, Complaints& complaints) {
  SchedulerConfig s;
  s.kind = ScheduleKind::kComposer;
  s.composer = read_composer_schedule(v, "scheduler.", {"lr_compat"}, complaints);
  s.composer_lag = v.string("scheduler.lr_compat", "exact") == "composer";
  return s;
}

}  // namespace

std::optional<SchedulerConfig> read_scheduler(KeyValues& v, const Config& config,
                                              Complaints& complaints) {
  if (!v.has_section("scheduler")) return std::nullopt;
  if (v.has("scheduler.name")) return read_composer_form(v, complaints);
  if (!v.has("scheduler.type")) {
    complaints.add(config.source, "scheduler.type",
                   "is missing; name the schedule, for example \"cosine\"");
    return std::nullopt;
  }
  const std::string p = "scheduler.params.";
  SchedulerConfig s = read_schedule(v);
  s.composer_lag = v.string("scheduler.lr_compat", "exact") == "composer";
  refuse_composer_keys(v, s, complaints);
  v.check_used(p, "scheduler.type", v.string("scheduler.type", ""), keys_of(s.kind));
  if (s.kind == ScheduleKind::kOneCycle) {
    for (const char* key : {"cycle_min_lr", "cycle_max_lr"}) {
      if (!v.has(p + key)) {
        complaints.add(v.where("scheduler.type"), p + key, "is required by OneCycle; add it");
      }
    }
  }
  if (!complaints.empty()) return std::nullopt;  // what is wrong already would only be repeated
  try {
    if (config.train.max_duration) {  // the engine fills in the number of steps and checks again
      checked_schedule(s, /*train_steps=*/int64_t{1} << 40);
      return s;
    }
    const SchedulerConfig checked = checked_schedule(s, config.train.steps);
    warn_about_schedule(v, checked, config.optimizer.lr);
    return checked;
  } catch (const ConfigError& error) {
    complaints.add(v.where("scheduler.type"), "", error.what());
    return std::nullopt;
  }
}

}  // namespace zerosharp
