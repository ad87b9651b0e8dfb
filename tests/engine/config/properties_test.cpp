// What holds for every configuration: it survives being printed and read back, and no text, however
// damaged, does anything but parse or be refused with ConfigError.
#include <memory>
#include <random>

#include "tests/engine/config/field_configs.h"
#include "tests/engine/config/parse.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;

const std::vector<std::string>& valid_files() {
  static const std::vector<std::string> files = {
      with_batch(""),
      kCommentsAndTrailingCommas,
      kBf16WithFp16Keys,
      kWarmupWithoutPeak,
      kBooleanZero,
      with_batch(R"("optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9,
          "nesterov": true, "weight_decay": 1e-4, "decoupled_decay": true}},
          "scheduler": {"type": "linear", "params": {"warmup_steps": 10, "total_steps": 70,
          "alpha_f": 0.1}}, "gradient_clipping": 0)"),
      with_batch(R"("optimizer": {"type": "Lion", "params": {"betas": [0.95, 0.98]}},
          "fp16": {"enabled": true, "loss_scale": 128, "hysteresis": 3, "min_loss_scale": 0.5,
          "consecutive_hysteresis": true}, "zero_optimization": {"stage": 1})"),
      with_batch(R"("optimizer": {"type": "Adagrad", "params": {"lr_decay": 0.01}},
          "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1e-3, "cycle_max_lr": 0.1,
          "cycle_first_step_size": 7, "cycle_second_step_size": 9, "cycle_first_stair_count": 2,
          "cycle_second_stair_count": 3, "decay_step_size": 4, "decay_lr_rate": 0.5,
          "cycle_momentum": false, "decay_mom_rate": 0.125}})"),
      with_batch(R"("optimizer": {"type": "Adam", "params": {"adam_w_mode": false, "lr": 3e-4,
          "bias_correction": false}}, "scheduler": {"type": "WarmupCosineLR", "params":
          {"total_num_steps": 90, "warmup_num_steps": 5, "warmup_min_ratio": 0.1,
          "cos_min_ratio": 0.01, "warmup_type": "linear"}}, "data_types":
          {"grad_accum_dtype": "fp32"}, "bf16": {"enabled": true}, "communication_data_type":
          "fp32")"),
      with_batch(R"("scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 1e-5,
          "warmup_max_lr": 0.3, "warmup_num_steps": 4, "total_num_steps": 12}},
          "sam": {"enabled": true, "rho": 0.1, "scope": "local", "interval": 3, "epsilon": 1e-9,
          "rounding": "stochastic", "same_rng": false, "freeze_bn": false})"),
      with_batch(R"("model": {"type": "mlp", "hidden_sizes": [64, 32, 16]}, "data": {"type":
          "fashion_mnist", "path": "data/fashion", "shuffle": false}, "train": {"steps": 9,
          "seed": 7, "eval_interval": 3, "eval_batches": 2, "device": "cpu", "threads": 1,
          "log_interval": 5, "sample_length": 0}, "scheduler": {"type": "cosine"})"),
      with_batch(R"("model": {"type": "resnet", "width": 8, "blocks_per_stage": 1},
          "data": {"type": "fashion_mnist", "path": "d"}, "scheduler":
          {"type": "constant_with_warmup", "params": {"warmup_steps": 5}})"),
      with_batch(R"("model": {"n_layer": 2, "n_head": 3, "n_embd": 48, "block_size": 64,
          "vocab_size": 300, "dropout": 0.1, "bias": false, "tied_head": false}, "data":
          {"path": ["a.txt", "b\u00fc.txt"], "test_path": "t.txt", "validation_fraction": 0.125})"),
  };
  return files;
}

void expect_equal(const BatchConfig& a, const BatchConfig& b) {
  EXPECT_EQ(a.train_batch_size, b.train_batch_size);
  EXPECT_EQ(a.micro_batch_size, b.micro_batch_size);
  EXPECT_EQ(a.accumulation_steps, b.accumulation_steps);
}

void expect_equal(const OptimizerConfig& a, const OptimizerConfig& b) {
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.lr, b.lr);
  EXPECT_EQ(a.beta1, b.beta1);
  EXPECT_EQ(a.beta2, b.beta2);
  EXPECT_EQ(a.eps, b.eps);
  EXPECT_EQ(a.weight_decay, b.weight_decay);
  EXPECT_EQ(a.momentum, b.momentum);
  EXPECT_EQ(a.dampening, b.dampening);
  EXPECT_EQ(a.nesterov, b.nesterov);
  EXPECT_EQ(a.decoupled_decay, b.decoupled_decay);
  EXPECT_EQ(a.lr_decay, b.lr_decay);
  EXPECT_EQ(a.bias_correction, b.bias_correction);
}

void expect_equal(const SchedulerConfig& a, const SchedulerConfig& b) {
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.warmup_steps, b.warmup_steps);
  EXPECT_EQ(a.total_steps, b.total_steps);
  EXPECT_EQ(a.alpha_f, b.alpha_f);
  EXPECT_EQ(a.warmup_min_lr, b.warmup_min_lr);
  EXPECT_EQ(a.warmup_max_lr, b.warmup_max_lr);
  EXPECT_EQ(a.warmup_num_steps, b.warmup_num_steps);
  EXPECT_EQ(a.warmup_log, b.warmup_log);
  EXPECT_EQ(a.total_num_steps, b.total_num_steps);
  EXPECT_EQ(a.warmup_min_ratio, b.warmup_min_ratio);
  EXPECT_EQ(a.cos_min_ratio, b.cos_min_ratio);
  EXPECT_EQ(a.cycle_min_lr, b.cycle_min_lr);
  EXPECT_EQ(a.cycle_max_lr, b.cycle_max_lr);
  EXPECT_EQ(a.decay_lr_rate, b.decay_lr_rate);
  EXPECT_EQ(a.cycle_first_step_size, b.cycle_first_step_size);
  EXPECT_EQ(a.cycle_second_step_size, b.cycle_second_step_size);
  EXPECT_EQ(a.cycle_first_stair_count, b.cycle_first_stair_count);
  EXPECT_EQ(a.cycle_second_stair_count, b.cycle_second_stair_count);
  EXPECT_EQ(a.decay_step_size, b.decay_step_size);
  EXPECT_EQ(a.cycle_momentum, b.cycle_momentum);
  EXPECT_EQ(a.cycle_min_mom, b.cycle_min_mom);
  EXPECT_EQ(a.cycle_max_mom, b.cycle_max_mom);
  EXPECT_EQ(a.decay_mom_rate, b.decay_mom_rate);
}

void expect_equal(const SamConfig& a, const SamConfig& b) {
  EXPECT_EQ(a.enabled, b.enabled);
  EXPECT_EQ(a.rho, b.rho);
  EXPECT_EQ(a.epsilon, b.epsilon);
  EXPECT_EQ(a.interval, b.interval);
  EXPECT_EQ(a.scope, b.scope);
  EXPECT_EQ(a.variant, b.variant);
  EXPECT_EQ(a.rounding, b.rounding);
  EXPECT_EQ(a.same_rng, b.same_rng);
  EXPECT_EQ(a.freeze_bn, b.freeze_bn);
}

void expect_equal(const Fp16Config& a, const Fp16Config& b) {
  EXPECT_EQ(a.loss_scale, b.loss_scale);
  EXPECT_EQ(a.initial_scale_power, b.initial_scale_power);
  EXPECT_EQ(a.loss_scale_window, b.loss_scale_window);
  EXPECT_EQ(a.hysteresis, b.hysteresis);
  EXPECT_EQ(a.consecutive_hysteresis, b.consecutive_hysteresis);
  EXPECT_EQ(a.min_loss_scale, b.min_loss_scale);
}

void expect_equal(const ModelConfig& a, const ModelConfig& b) {
  EXPECT_EQ(a.type, b.type);
  EXPECT_EQ(a.n_layer, b.n_layer);
  EXPECT_EQ(a.n_head, b.n_head);
  EXPECT_EQ(a.n_embd, b.n_embd);
  EXPECT_EQ(a.block_size, b.block_size);
  EXPECT_EQ(a.vocab_size, b.vocab_size);
  EXPECT_EQ(a.dropout, b.dropout);
  EXPECT_EQ(a.bias, b.bias);
  EXPECT_EQ(a.tied_head, b.tied_head);
  EXPECT_EQ(a.hidden_sizes, b.hidden_sizes);
  EXPECT_EQ(a.width, b.width);
  EXPECT_EQ(a.blocks_per_stage, b.blocks_per_stage);
}

void expect_equal(const DataConfig& a, const DataConfig& b) {
  EXPECT_EQ(a.type, b.type);
  EXPECT_EQ(a.paths, b.paths);
  EXPECT_EQ(a.test_path, b.test_path);
  EXPECT_EQ(a.validation_fraction, b.validation_fraction);
  EXPECT_EQ(a.shuffle, b.shuffle);
}

void expect_equal(const TrainConfig& a, const TrainConfig& b) {
  EXPECT_EQ(a.steps, b.steps);
  EXPECT_EQ(a.seed, b.seed);
  EXPECT_EQ(a.eval_interval, b.eval_interval);
  EXPECT_EQ(a.eval_batches, b.eval_batches);
  EXPECT_EQ(a.device, b.device);
  EXPECT_EQ(a.threads, b.threads);
  EXPECT_EQ(a.log_interval, b.log_interval);
  EXPECT_EQ(a.sample_length, b.sample_length);
}

void expect_equal(const Config& a, const Config& b) {
  expect_equal(a.batch, b.batch);
  EXPECT_EQ(a.gradient_clipping, b.gradient_clipping);
  EXPECT_EQ(a.precision, b.precision);
  EXPECT_EQ(a.grad_accum_dtype, b.grad_accum_dtype);
  EXPECT_EQ(a.communication_dtype, b.communication_dtype);
  EXPECT_EQ(a.zero_stage, b.zero_stage);
  EXPECT_EQ(a.offload_optimizer_device, b.offload_optimizer_device);
  expect_equal(a.optimizer, b.optimizer);
  ASSERT_EQ(a.scheduler.has_value(), b.scheduler.has_value());
  if (a.scheduler) expect_equal(*a.scheduler, *b.scheduler);
  expect_equal(a.sam, b.sam);
  expect_equal(a.fp16, b.fp16);
  expect_equal(a.model, b.model);
  expect_equal(a.data, b.data);
  expect_equal(a.train, b.train);
}

TEST(ConfigProperties, ResolvedJsonReadsBackEqual) {
  for (const std::string& text : valid_files()) {
    SCOPED_TRACE(text);
    const Config config = parse(text);
    const Config again = parse(config.resolved_json);
    expect_equal(again, config);
    EXPECT_EQ(again.resolved_json, config.resolved_json);
  }
}

TEST(ConfigProperties, ResolvedJsonIsUtf8WhateverThePath) {
  const Config config = parse(with_batch(""), {"data.path=a\xFFz"});
  EXPECT_EQ(config.data.paths[0], "a\xFFz");
  expect_parts(config.resolved_json, {"a\xEF\xBF\xBDz"});  // U+FFFD in its place
}

/// Truncates, overwrites, inserts, or repeats a piece of `text`.
std::string mutated(std::string text, std::mt19937& random) {
  const auto below = [&](size_t n) { return static_cast<size_t>(random()) % n; };
  static const std::string kTokens = "{}[],:\"\\/*#-+.eE0123456789truefalsn \n\t\x01\xC3\xFF";
  const size_t at = below(text.size() + 1);
  switch (below(4)) {
    case 0:
      text.resize(at);
      break;
    case 1:
      if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
      break;
    case 2:
      text.insert(at, 1, kTokens[below(kTokens.size())]);
      break;
    default:
      text.insert(at, text.substr(below(text.size() + 1), below(20)));
  }
  return text;
}

TEST(ConfigProperties, DamagedFilesAreReadOrRefused) {
  std::mt19937 random(20240731);
  int accepted = 0, refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = valid_files()[random() % valid_files().size()];
    for (auto times = 1 + random() % 3; times > 0; --times) text = mutated(text, random);
    try {
      parse(text);
      ++accepted;
    } catch (const ConfigError& error) {
      ++refused;
      ASSERT_EQ(std::string(error.what()).rfind("run.json", 0), 0u) << error.what();
    } catch (const std::exception& error) {
      FAIL() << "not a ConfigError: " << error.what() << "\n" << text;
    }
  }
  EXPECT_GT(accepted, 200);  // changed digits, blanks and comments
  EXPECT_GT(refused, 5000);
}

}  // namespace
}  // namespace zerosharp
