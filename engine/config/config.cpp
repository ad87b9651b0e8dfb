#include "engine/config/config.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "engine/config/batch.h"
#include "engine/config/composer_section.h"
#include "engine/config/key_values.h"
#include "engine/config/resolved.h"
#include "engine/config/sam_section.h"
#include "engine/config/scheduler_section.h"
#include "kernels/error.h"

namespace zerosharp {
namespace {

std::string number_text(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

DType dtype_named(const std::string& name) {
  if (name == "bf16" || name == "bfloat16") return DType::kBF16;
  if (name == "fp16" || name == "float16" || name == "half") return DType::kF16;
  return DType::kF32;
}

void read_precision(const KeyValues& v, Config& config, Complaints& complaints) {
  const std::string composer = v.string("precision", "");
  const bool bf16 =
      v.boolean("bf16.enabled", v.boolean("bfloat16.enabled", composer == "amp_bf16"));
  const bool fp16 = v.boolean("fp16.enabled", composer == "amp_fp16");
  for (const char* key : {"bf16.enabled", "bfloat16.enabled", "fp16.enabled"}) {
    if (!v.has("precision") || !v.has(key)) continue;
    complaints.add(v.where(key), key, "and precision both choose the type; remove one");
  }
  if (bf16 && fp16) {
    complaints.add(v.where("fp16.enabled"), "fp16.enabled",
                   "true, and bf16.enabled is true as well; enable one of the two");
  }
  config.precision = bf16 ? DType::kBF16 : fp16 ? DType::kF16 : DType::kF32;
  config.fp16.loss_scale = v.number("fp16.loss_scale", 0);
  config.fp16.initial_scale_power = v.integer("fp16.initial_scale_power", 16);
  config.fp16.loss_scale_window = v.integer("fp16.loss_scale_window", 1000);
  config.fp16.hysteresis = v.integer("fp16.hysteresis", 2);
  config.fp16.consecutive_hysteresis = v.boolean("fp16.consecutive_hysteresis", false);
  config.fp16.min_loss_scale = v.number("fp16.min_loss_scale", 1);
  if (v.has("data_types.grad_accum_dtype")) {
    config.grad_accum_dtype = dtype_named(v.string("data_types.grad_accum_dtype", ""));
  }
  if (v.has("communication_data_type")) {
    config.communication_dtype = dtype_named(v.string("communication_data_type", ""));
  }
}

/// Off in Composer's files unless asked for, as there.
void read_clipping(KeyValues& v, Config& config, Complaints& complaints) {
  const bool composer = speaks_composer(v);
  config.gradient_clipping = v.number("gradient_clipping", composer ? 0.0 : 1.0);
  const std::string type = "algorithms.gradient_clipping.clipping_type";
  if (v.string(type, "norm") != "norm") {
    complaints.add(v.where(type), type, v.text(type) + " clipping is not available; use \"norm\"");
  }
  if (v.was_written("algorithms.gradient_clipping") && !v.has("gradient_clipping")) {
    complaints.add(config.source, "algorithms.gradient_clipping.clipping_threshold",
                   "is missing; give the largest gradient norm");
  }
  if (composer && !v.has("gradient_clipping")) {
    v.warn(config.source +
           ": gradient_clipping is off, as in Composer where algorithms.gradient_clipping is not "
           "set");
  }
}

void read_zero(KeyValues& v, Config& config, Complaints& complaints) {
  config.zero_stage = v.integer("zero_optimization.stage", 0);
  if (config.zero_stage > 1) {
    complaints.add(v.where("zero_optimization.stage"), "zero_optimization.stage",
                   "stage " + std::to_string(config.zero_stage) +
                       " is not available; use 0 (replicated) or 1 (sharded optimizer state)");
  }
  for (const std::string section : {"offload_optimizer", "offload_param"}) {
    const std::string path = "zero_optimization." + section + ".device";
    const std::string device = v.string(path, "none");
    if (device == "nvme") {
      complaints.add(v.where(path), path, "nvme offload is not available; use none");
    } else if (device == "cpu") {
      v.warn(v.where(path) + ": " + path + ": cpu is where a CPU run keeps everything; on a GPU " +
             "offload is refused");
    }
    if (section == "offload_optimizer") config.offload_optimizer_device = device;
  }
}

struct NamedOptimizer {
  kernels::OptimizerKind kind;
  std::vector<std::string> keys;  // of optimizer.params that mean something to it
  bool scheduled_decay = false;   // Composer's Decoupled…W, with their defaults
};

NamedOptimizer composer_optimizer_named(const std::string& type) {
  using Kind = kernels::OptimizerKind;
  const std::vector<std::string> adam = {"lr", "betas", "eps", "weight_decay"};
  if (type.find("sgdw") != std::string::npos) {
    return {Kind::kSgd, {"lr", "weight_decay", "momentum", "dampening", "nesterov"}, true};
  }
  if (type.find("lionw") != std::string::npos) {
    return {Kind::kLion, {"lr", "betas", "weight_decay"}, true};
  }
  return {Kind::kAdamW, adam, true};
}

NamedOptimizer optimizer_named(const std::string& type, bool adam_w_mode) {
  using Kind = kernels::OptimizerKind;
  const std::vector<std::string> adam = {"lr",           "betas",           "eps",
                                         "weight_decay", "bias_correction", "adam_w_mode"};
  if (type.rfind("decoupled", 0) == 0) return composer_optimizer_named(type);
  if (type == "sgd") {
    return {Kind::kSgd,
            {"lr", "weight_decay", "momentum", "dampening", "nesterov", "decoupled_decay"}};
  }
  if (type == "lion" || type == "fusedlion") return {Kind::kLion, {"lr", "betas", "weight_decay"}};
  if (type == "adagrad") return {Kind::kAdagrad, {"lr", "eps", "weight_decay", "lr_decay"}};
  if (type == "adamw") return {Kind::kAdamW, adam};
  return {adam_w_mode ? Kind::kAdamW : Kind::kAdam, adam};
}

/// Composer's and LLM Foundry's defaults, and the SGD form whose rate has none.
OptimizerConfig composer_defaults(const KeyValues& v, kernels::OptimizerKind kind,
                                  Complaints& complaints) {
  OptimizerConfig o;
  o.scheduled_decay = true;
  if (kind == kernels::OptimizerKind::kSgd) {
    o.decoupled_decay = true;
    if (!v.has("optimizer.params.lr")) {
      complaints.add(v.where("optimizer.type"), "optimizer.lr",
                     "is required by " + v.string("optimizer.type", "") + "; add it");
    }
  } else if (kind == kernels::OptimizerKind::kLion) {
    o.lr = 1e-4;
    o.beta2 = 0.99;
  } else {
    o.beta2 = 0.95;
    o.weight_decay = 1e-5;
  }
  return o;
}

/// Which of AdamW and Adam with L2 a file means is easily mistaken; says so where it may be.
void warn_about_decay(KeyValues& v, const std::string& source, const std::string& type) {
  const std::string mode = "optimizer.params.adam_w_mode";
  if (type == "adam" && !v.has(mode)) {
    v.warn(source +
           ": optimizer.type Adam means decoupled weight decay (AdamW), as in DeepSpeed; " +
           "set " + mode + "=false for L2");
  }
  if (type == "adamw" && !v.boolean(mode, true)) {
    v.warn(v.where(mode) + ": " + mode + ": optimizer.type AdamW always decouples weight decay; " +
           "write type Adam for L2");
  }
}

void read_betas(const KeyValues& v, OptimizerConfig& o, Complaints& complaints) {
  const std::string path = "optimizer.params.betas";
  if (!v.has(path)) return;
  const auto betas = v.numbers(path);
  if (betas.size() != 2 || betas[0] >= 1 || betas[1] >= 1) {
    complaints.add(v.where(path), path, "must be two numbers in [0, 1), got " + v.text(path));
    return;
  }
  o.beta1 = betas[0];
  o.beta2 = betas[1];
}

void read_optimizer(KeyValues& v, Config& config, Complaints& complaints) {
  const std::string p = "optimizer.params.";
  const std::string type = v.string("optimizer.type", "adamw");
  if (v.has_section("optimizer.params") && !v.has("optimizer.type")) {
    complaints.add(config.source, "optimizer.type",
                   "is missing; name the update rule, for example \"AdamW\"");
    return;
  }
  const NamedOptimizer named = optimizer_named(type, v.boolean(p + "adam_w_mode", true));
  v.check_used(p, "optimizer.type", type, named.keys);
  warn_about_decay(v, config.source, type);
  OptimizerConfig& o = config.optimizer;
  if (named.scheduled_decay) o = composer_defaults(v, named.kind, complaints);
  o.kind = named.kind;
  o.lr = v.number(p + "lr", type == "adagrad" ? 0.01 : o.lr);
  read_betas(v, o, complaints);
  o.eps = v.number(p + "eps", o.kind == kernels::OptimizerKind::kAdagrad ? 1e-10 : 1e-8);
  o.weight_decay = v.number(p + "weight_decay", o.weight_decay);
  o.bias_correction = v.boolean(p + "bias_correction", true);
  o.momentum = v.number(p + "momentum", 0);
  o.dampening = v.number(p + "dampening", 0);
  o.nesterov = v.boolean(p + "nesterov", false);
  o.decoupled_decay = v.boolean(p + "decoupled_decay", o.decoupled_decay);
  o.lr_decay = v.number(p + "lr_decay", 0);
  if (o.nesterov && (o.momentum == 0 || o.dampening != 0)) {
    complaints.add(v.where(p + "nesterov"), p + "nesterov",
                   "true needs momentum > 0 and dampening 0, got momentum " +
                       number_text(o.momentum) + " and dampening " + number_text(o.dampening));
  }
}

std::vector<std::string> keys_of_model(const std::string& type) {
  if (type == "mlp") return {"hidden_sizes"};
  if (type == "resnet") return {"width", "blocks_per_stage"};
  return {"n_layer",    "n_head",  "n_embd", "block_size",
          "vocab_size", "dropout", "bias",   "tied_head"};
}

void read_model(KeyValues& v, Config& config, Complaints& complaints) {
  ModelConfig& m = config.model;
  m.type = v.string("model.type", "gpt");
  v.check_used("model.", "model.type", m.type, keys_of_model(m.type));
  m.n_layer = v.integer("model.n_layer", 4);
  m.n_head = v.integer("model.n_head", 4);
  m.n_embd = v.integer("model.n_embd", 128);
  m.block_size = v.integer("model.block_size", 128);
  m.vocab_size = v.integer("model.vocab_size", 256);
  m.dropout = v.number("model.dropout", 0);
  m.bias = v.boolean("model.bias", true);
  m.tied_head = v.boolean("model.tied_head", true);
  if (v.has("model.hidden_sizes")) {
    m.hidden_sizes.clear();
    for (const double size : v.numbers("model.hidden_sizes")) {
      m.hidden_sizes.push_back(static_cast<int64_t>(size));
    }
  }
  m.width = v.integer("model.width", 16);
  m.blocks_per_stage = v.integer("model.blocks_per_stage", 2);
  if (m.type == "gpt" && m.n_embd % m.n_head != 0) {
    complaints.add(v.where("model.n_embd"), "model.n_embd",
                   std::to_string(m.n_embd) + " is not a multiple of model.n_head " +
                       std::to_string(m.n_head) + "; change one of them");
  }
  const bool image = config.data.type == "fashion_mnist";
  if (image == (m.type == "gpt")) {
    complaints.add(v.where("data.type"), "data.type",
                   config.data.type + " does not fit model.type " + m.type +
                       "; gpt reads text, mlp and resnet read fashion_mnist");
  }
}

void read_run(const KeyValues& v, Config& config) {
  config.data.type = v.string("data.type", "text");
  config.data.paths = v.strings("data.path");
  config.data.test_path = v.string("data.test_path", "");
  config.data.validation_fraction = v.number("data.validation_fraction", 0.05);
  config.data.shuffle = v.boolean("data.shuffle", true);
  TrainConfig& t = config.train;
  t.steps = v.integer("train.steps", 0);
  t.seed = v.integer("train.seed", 0);
  t.eval_interval = v.integer("train.eval_interval", 0);
  t.eval_batches = v.integer("train.eval_batches", 16);
  t.device = v.string("train.device", "auto");
  t.threads = v.integer("train.threads", 0);
  t.log_interval = v.integer("train.log_interval", 1);
  t.sample_length = v.integer("train.sample_length", 200);
}

void read_batch(const KeyValues& v, Config& config, Complaints& complaints, int world_size) {
  BatchConfig given;
  given.train_batch_size = v.integer("train_batch_size", 0);
  given.micro_batch_size = v.integer("train_micro_batch_size_per_gpu", 0);
  given.accumulation_steps = v.integer("gradient_accumulation_steps", 0);
  if (!complaints.empty()) return;  // a wrong number elsewhere would only add noise
  try {
    config.batch = derive_batch(given, world_size);
  } catch (const ConfigError& error) {
    const char* set = "gradient_accumulation_steps";
    for (const char* key : {"train_micro_batch_size_per_gpu", "train_batch_size"}) {
      if (v.has(key)) set = key;
    }
    complaints.add(v.where(set), "", error.what());
  }
}

}  // namespace

Config parse_config(const std::string& text, const std::string& source,
                    const std::vector<std::string>& overrides, int world_size) {
  const JsonNode root = read_json(text, source);
  Complaints complaints;
  KeyValues values(root, source, overrides, complaints);
  Config config;
  config.source = source;
  read_clipping(values, config, complaints);
  read_run(values, config);
  read_duration(values, config, complaints);
  read_precision(values, config, complaints);
  read_zero(values, config, complaints);
  read_optimizer(values, config, complaints);
  config.scheduler = read_scheduler(values, config, complaints);
  config.sam = read_sam(values, complaints);
  read_model(values, config, complaints);
  read_batch(values, config, complaints, world_size);
  complaints.throw_if_any();
  config.warnings = values.warnings();
  config.resolved_json = resolved_json(config);
  return config;
}

Config load_config(const std::string& path, const std::vector<std::string>& overrides,
                   int world_size) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail_config(path, ": the configuration file cannot be opened; check the path");
  std::ostringstream text;
  text << file.rdbuf();
  if (file.bad()) fail_config(path, ": the configuration file cannot be read");
  return parse_config(text.str(), path, overrides, world_size);
}

}  // namespace zerosharp
