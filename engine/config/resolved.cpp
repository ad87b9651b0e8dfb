#include "engine/config/resolved.h"

#include <nlohmann/json.hpp>

#include "engine/config/composer_section.h"
#include "engine/config/sam_section.h"

namespace zerosharp {
namespace {

using Json = nlohmann::ordered_json;

Json optimizer_json(const OptimizerConfig& o) {
  using Kind = kernels::OptimizerKind;
  Json params = {{"lr", o.lr}, {"weight_decay", o.weight_decay}};
  std::string type = "AdamW";
  switch (o.kind) {
    case Kind::kAdam:
      params["adam_w_mode"] = false;
      type = "Adam";
      [[fallthrough]];
    case Kind::kAdamW:
      params["betas"] = {o.beta1, o.beta2};
      params["eps"] = o.eps;
      params["bias_correction"] = o.bias_correction;
      break;
    case Kind::kSgd:
      type = "SGD";
      params["momentum"] = o.momentum;
      params["dampening"] = o.dampening;
      params["nesterov"] = o.nesterov;
      params["decoupled_decay"] = o.decoupled_decay;
      break;
    case Kind::kLion:
      type = "Lion";
      params["betas"] = {o.beta1, o.beta2};
      break;
    case Kind::kAdagrad:
      type = "Adagrad";
      params["eps"] = o.eps;
      params["lr_decay"] = o.lr_decay;
      break;
  }
  if (o.scheduled_decay) {
    type = o.kind == Kind::kAdamW ? "decoupled_adamw"
           : o.kind == Kind::kSgd ? "decoupled_sgdw"
                                  : "decoupled_lionw";
    params.erase("bias_correction");
    params.erase("decoupled_decay");
  }
  return {{"type", type}, {"params", params}};
}

Json one_cycle_json(const SchedulerConfig& s) {
  Json params = {{"cycle_min_lr", s.cycle_min_lr},
                 {"cycle_max_lr", s.cycle_max_lr},
                 {"decay_lr_rate", s.decay_lr_rate},
                 {"cycle_first_step_size", s.cycle_first_step_size},
                 {"cycle_first_stair_count", s.cycle_first_stair_count},
                 {"decay_step_size", s.decay_step_size},
                 {"cycle_momentum", s.cycle_momentum},
                 {"cycle_min_mom", s.cycle_min_mom},
                 {"cycle_max_mom", s.cycle_max_mom},
                 {"decay_mom_rate", s.decay_mom_rate}};
  if (s.cycle_second_step_size) params["cycle_second_step_size"] = *s.cycle_second_step_size;
  if (s.cycle_second_stair_count) params["cycle_second_stair_count"] = *s.cycle_second_stair_count;
  return params;
}

Json scheduler_json(const SchedulerConfig& s) {
  const auto composer = [&](const char* type) {
    return Json{{"type", type},
                {"params",
                 {{"warmup_steps", s.warmup_steps},
                  {"total_steps", s.total_steps},
                  {"alpha_f", s.alpha_f}}}};
  };
  Json warmup = {{"warmup_num_steps", s.warmup_num_steps},
                 {"warmup_type", s.warmup_log ? "log" : "linear"}};
  switch (s.kind) {
    case ScheduleKind::kConstant:
      return {{"type", "constant"}, {"params", {{"warmup_steps", s.warmup_steps}}}};
    case ScheduleKind::kLinear:
      return composer("linear");
    case ScheduleKind::kCosine:
      return composer("cosine");
    case ScheduleKind::kWarmupLR:
    case ScheduleKind::kWarmupDecayLR:
      warmup["warmup_min_lr"] = s.warmup_min_lr;
      if (s.warmup_max_lr) warmup["warmup_max_lr"] = *s.warmup_max_lr;
      if (s.kind == ScheduleKind::kWarmupLR) return {{"type", "WarmupLR"}, {"params", warmup}};
      warmup["total_num_steps"] = s.total_num_steps;
      return {{"type", "WarmupDecayLR"}, {"params", warmup}};
    case ScheduleKind::kWarmupCosineLR:
      warmup["total_num_steps"] = s.total_num_steps;
      warmup["warmup_min_ratio"] = s.warmup_min_ratio;
      warmup["cos_min_ratio"] = s.cos_min_ratio;
      return {{"type", "WarmupCosineLR"}, {"params", warmup}};
    case ScheduleKind::kOneCycle:
      return {{"type", "OneCycle"}, {"params", one_cycle_json(s)}};
    case ScheduleKind::kComposer:
      return composer_schedule_json(s.composer);
  }
  return {};
}

Json fp16_json(const Config& config) {
  const Fp16Config& f = config.fp16;
  return {{"enabled", config.precision == DType::kF16},
          {"loss_scale", f.loss_scale},
          {"initial_scale_power", f.initial_scale_power},
          {"loss_scale_window", f.loss_scale_window},
          {"hysteresis", f.hysteresis},
          {"consecutive_hysteresis", f.consecutive_hysteresis},
          {"min_loss_scale", f.min_loss_scale}};
}

/// The coefficients that the variant reads.
void add_coefficients(const SamConfig& s, Json& json) {
  if (s.variant == SamVariant::kAsam) json["eta"] = s.eta;
  if (s.variant == SamVariant::kGsam) json["alpha"] = s.alpha;
  if (s.variant == SamVariant::kFsam) json.update({{"sigma", s.sigma}, {"decay", s.decay}});
  if (s.variant == SamVariant::kVasso) json["theta"] = s.theta;
  if (s.variant == SamVariant::kPreconditioned) json["delta"] = s.delta;
  if (s.variant == SamVariant::kLookSam) json.update({{"alpha", s.alpha}, {"k", s.k}});
  if (s.variant == SamVariant::kAeSam) {
    json.update({{"decay", s.decay},
                 {"threshold_start", s.threshold_start},
                 {"threshold_end", s.threshold_end}});
  }
}

Json rho_scheduler_json(const RhoScheduleConfig& s) {
  if (!s.linear_in_lr) return composer_schedule_json(s.schedule);
  Json json = {{"name", "linear_in_lr"}, {"rho_min", s.rho_min}, {"lr_min", s.lr_min}};
  if (s.lr_max) json["lr_max"] = *s.lr_max;
  return json;
}

Json sam_json(const SamConfig& s) {
  Json json = {{"enabled", s.enabled},
               {"rho", s.rho},
               {"epsilon", s.epsilon},
               {"interval", s.interval},
               {"scope", sam_scope_name(s.scope)},
               {"variant", sam_variant_name(s.variant)},
               {"rounding", sam_rounding_name(s.rounding)},
               {"same_rng", s.same_rng},
               {"freeze_bn", s.freeze_bn},
               {"ascent_fraction", s.ascent_fraction},
               {"start_step", s.start_step},
               {"end_step", s.end_step},
               {"report_cosine", s.report_cosine}};
  if (s.start) {
    json.erase("start_step");
    json["start"] = time_text(*s.start);
  }
  if (s.end) {
    json.erase("end_step");
    json["end"] = time_text(*s.end);
  }
  if (s.skip_when_lr_zero) json["skip_when_lr_zero"] = true;
  if (s.rho_scheduler) json["rho_scheduler"] = rho_scheduler_json(*s.rho_scheduler);
  if (s.scope == SamScope::kGroup && s.group_size > 0) json["group_size"] = s.group_size;
  if (!s.params.empty()) json["params"] = s.params;
  add_coefficients(s, json);
  return json;
}

Json model_json(const ModelConfig& m) {
  if (m.type == "mlp") return {{"type", m.type}, {"hidden_sizes", m.hidden_sizes}};
  if (m.type == "resnet") {
    return {{"type", m.type}, {"width", m.width}, {"blocks_per_stage", m.blocks_per_stage}};
  }
  return {{"type", m.type},
          {"n_layer", m.n_layer},
          {"n_head", m.n_head},
          {"n_embd", m.n_embd},
          {"block_size", m.block_size},
          {"vocab_size", m.vocab_size},
          {"dropout", m.dropout},
          {"bias", m.bias},
          {"tied_head", m.tied_head}};
}

Json train_json(const TrainConfig& t) {
  Json json = {{"seed", t.seed},
               {"eval_interval", t.eval_interval},
               {"eval_batches", t.eval_batches},
               {"device", t.device},
               {"threads", t.threads},
               {"log_interval", t.log_interval},
               {"sample_length", t.sample_length}};
  if (t.steps > 0) json["steps"] = t.steps;
  return json;
}

}  // namespace

std::string resolved_json(const Config& config) {
  Json json;
  json["train_batch_size"] = config.batch.train_batch_size;
  json["train_micro_batch_size_per_gpu"] = config.batch.micro_batch_size;
  json["gradient_accumulation_steps"] = config.batch.accumulation_steps;
  json["gradient_clipping"] = config.gradient_clipping;
  json["bf16"] = {{"enabled", config.precision == DType::kBF16}};
  json["fp16"] = fp16_json(config);
  if (config.grad_accum_dtype) {
    json["data_types"] = {{"grad_accum_dtype", dtype_name(*config.grad_accum_dtype)}};
  }
  if (config.communication_dtype) {
    json["communication_data_type"] = dtype_name(*config.communication_dtype);
  }
  json["zero_optimization"] = {
      {"stage", config.zero_stage},
      {"offload_optimizer", {{"device", config.offload_optimizer_device}}}};
  json["optimizer"] = optimizer_json(config.optimizer);
  if (config.scheduler) {
    json["scheduler"] = scheduler_json(*config.scheduler);
    if (config.scheduler->composer_lag) json["scheduler"]["lr_compat"] = "composer";
  }
  json["sam"] = sam_json(config.sam);
  json["model"] = model_json(config.model);
  json["data"] = {{"type", config.data.type},
                  {"test_path", config.data.test_path},
                  {"validation_fraction", config.data.validation_fraction},
                  {"shuffle", config.data.shuffle}};
  if (!config.data.paths.empty()) json["data"]["path"] = config.data.paths;
  json["train"] = train_json(config.train);
  if (config.train.max_duration) {
    json["max_duration"] = time_text(*config.train.max_duration);
    json["scale_schedule_ratio"] = config.train.scale_schedule_ratio;
  }
  // Paths are whatever bytes the command line held; a file of the run must still be valid UTF-8.
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace zerosharp
