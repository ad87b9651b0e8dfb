#include "engine/config/key_list.h"

namespace zerosharp {
namespace {

using T = KeyType;
using Keys = std::vector<KeySpec>;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kManySteps = 1e15;  // sums of step counts stay in 64 bits

KeySpec choice(std::string_view path, std::string_view fallback, std::string_view choices,
               std::string_view meaning) {
  return {path, T::kChoice, fallback, meaning, -kInf, kInf, choices};
}

Keys batch_keys() {
  return {
      {"train_batch_size", T::kInteger, "", "samples per optimizer step over all ranks", 1},
      {"train_micro_batch_size_per_gpu", T::kInteger, "", "samples per rank and forward pass", 1},
      {"gradient_accumulation_steps", T::kInteger, "", "micro-batches per optimizer step", 1},
      {"gradient_clipping", T::kNumber, "1.0", "largest global gradient norm; 0: off", 0},
  };
}

Keys precision_keys() {
  return {
      {"bf16", T::kSection, "", "bfloat16 working weights with an fp32 master"},
      {"bf16.enabled", T::kBool, "false", "train in bf16"},
      {"bfloat16", T::kSection, "", "old spelling of bf16"},
      {"bfloat16.enabled", T::kBool, "false", "old spelling of bf16.enabled"},
      {"fp16", T::kSection, "", "float16 working weights with a loss scale"},
      {"fp16.enabled", T::kBool, "false", "train in fp16"},
      {"fp16.loss_scale", T::kNumber, "0", "static loss scale; 0: dynamic", 0},
      {"fp16.initial_scale_power", T::kInteger, "16", "dynamic scale starts at 2^this", 0, 127},
      {"fp16.loss_scale_window", T::kInteger, "1000", "clean steps before the scale doubles", 1},
      {"fp16.hysteresis", T::kInteger, "2", "overflows before the scale is halved", 1},
      {"fp16.consecutive_hysteresis", T::kBool, "false", "every clean step refills hysteresis"},
      {"fp16.min_loss_scale", T::kNumber, "1", "the scale does not fall below this", 0},
      {"data_types", T::kSection, "", "types of gradients"},
      choice("data_types.grad_accum_dtype", "",
             "fp32|float32|float|bf16|bfloat16|fp16|float16|half",
             "dtype gradients are accumulated in (default: the working dtype for one micro-batch, "
             "fp32 for several)"),
      choice("communication_data_type", "", "fp32|bf16|fp16",
             "dtype gradients are sent in (default: the accumulation dtype)"),
  };
}

Keys zero_keys() {
  constexpr std::string_view kDevice =
      "where it is kept: none, or cpu (which is where a CPU run keeps it)";
  return {
      {"zero_optimization", T::kSection, "", "partitioning of optimizer state"},
      {"zero_optimization.stage", T::kInteger, "0",
       "0: replicated; 1: masters and optimizer states sharded over ranks", 0, 3},
      {"zero_optimization.offload_optimizer", T::kSection, "", "where optimizer states are kept"},
      choice("zero_optimization.offload_optimizer.device", "\"none\"", "none|cpu|nvme", kDevice),
      {"zero_optimization.offload_param", T::kSection, "", "where parameters are kept"},
      choice("zero_optimization.offload_param.device", "\"none\"", "none|cpu|nvme", kDevice),
      {"zero_optimization.cpu_offload", T::kBool, "false",
       "deprecated: write offload_optimizer.device"},
  };
}

Keys optimizer_keys() {
  return {
      {"optimizer", T::kSection, "", "the update rule"},
      choice(
          "optimizer.type", "\"AdamW\"",
          "AdamW|Adam|FusedAdam|SGD|Lion|FusedLion|Adagrad|decoupled_adamw|decoupled_sgdw|"
          "decoupled_lionw|DecoupledAdamW|DecoupledSGDW|DecoupledLionW",
          "update rule; \"Adam\" means AdamW unless adam_w_mode is false; decoupled_…: Composer's, "
          "whose decay is lr/initial_lr · weight_decay"),
      {"optimizer.params", T::kSection, "", "its parameters"},
      {"optimizer.params.lr", T::kNumber, "0.001", "learning rate (Adagrad: 0.01)", 0},
      {"optimizer.params.betas", T::kNumbers, "[0.9, 0.999]",
       "decay of the moments (AdamW, Adam, Lion)", 0, 1},
      {"optimizer.params.eps", T::kNumber, "1e-8",
       "added to the denominator (AdamW, Adam; Adagrad: 1e-10)", 0},
      {"optimizer.params.weight_decay", T::kNumber, "0", "weight decay", 0},
      {"optimizer.params.bias_correction", T::kBool, "true", "bias correction (AdamW, Adam)"},
      {"optimizer.params.adam_w_mode", T::kBool, "true", "decoupled decay for type Adam"},
      {"optimizer.params.momentum", T::kNumber, "0", "momentum (SGD)", 0, 1},
      {"optimizer.params.dampening", T::kNumber, "0", "dampening of momentum (SGD)", 0, 1},
      {"optimizer.params.nesterov", T::kBool, "false", "Nesterov momentum (SGD)"},
      {"optimizer.params.decoupled_decay", T::kBool, "false",
       "w ← w·(1 − lr·weight_decay) in place of L2 (SGD)"},
      {"optimizer.params.lr_decay", T::kNumber, "0", "decay of the rate (Adagrad)", 0},
  };
}

Keys scheduler_keys() {
  return {
      {"scheduler", T::kSection, "", "learning-rate schedule"},
      choice("scheduler.type", "",
             "constant|linear|cosine|constant_with_warmup|linear_decay_with_warmup|"
             "cosine_with_warmup|WarmupLR|WarmupDecayLR|WarmupCosineLR|OneCycle",
             "shape of the schedule"),
      {"scheduler.params", T::kSection, "", "its parameters"},
      {"scheduler.params.warmup_steps", T::kInteger, "0",
       "LR warm-up from 0, in steps (constant, linear, cosine)", 0},
      {"scheduler.params.total_steps", T::kInteger, "0",
       "end of the decay, in steps; 0: train.steps (linear, cosine)", 0},
      {"scheduler.params.alpha_f", T::kNumber, "0", "final multiplier of the rate (linear, cosine)",
       0},
      {"scheduler.params.warmup_min_lr", T::kNumber, "0",
       "rate at the start (WarmupLR, WarmupDecayLR)", 0},
      {"scheduler.params.warmup_max_lr", T::kNumber, "",
       "peak rate; default: the optimizer's lr (WarmupLR, WarmupDecayLR)", 0},
      {"scheduler.params.warmup_num_steps", T::kInteger, "1000",
       "steps of LR warm-up; 1 counts as 2, as in DeepSpeed (Warmup…LR)", 1},
      choice("scheduler.params.warmup_type", "\"log\"", "log|linear",
             "shape of the LR warm-up (Warmup…LR)"),
      {"scheduler.params.total_num_steps", T::kInteger, "",
       "end of the decay; default: train.steps (WarmupDecayLR, WarmupCosineLR)", 1},
      {"scheduler.params.warmup_min_ratio", T::kNumber, "0", "first multiplier (WarmupCosineLR)",
       0},
      {"scheduler.params.cos_min_ratio", T::kNumber, "0.0001", "last multiplier (WarmupCosineLR)",
       0},
  };
}

Keys one_cycle_keys() {
  return {
      {"scheduler.params.cycle_min_lr", T::kNumber, "", "lowest rate, required (OneCycle)", 0},
      {"scheduler.params.cycle_max_lr", T::kNumber, "", "highest rate, required (OneCycle)", 0},
      {"scheduler.params.decay_lr_rate", T::kNumber, "0", "decay after the cycle (OneCycle)", 0},
      {"scheduler.params.cycle_first_step_size", T::kInteger, "2000", "rising steps (OneCycle)", 1,
       kManySteps},
      {"scheduler.params.cycle_second_step_size", T::kInteger, "",
       "falling steps; default: as many as rise (OneCycle)", 0, kManySteps},
      {"scheduler.params.cycle_first_stair_count", T::kInteger, "0",
       "stairs while rising; 0: smooth (OneCycle)", 0},
      {"scheduler.params.cycle_second_stair_count", T::kInteger, "",
       "stairs while falling; default: as while rising (OneCycle)", 0},
      {"scheduler.params.decay_step_size", T::kInteger, "0",
       "steps of one decay; 0: none (OneCycle)", 0},
      {"scheduler.params.cycle_momentum", T::kBool, "true",
       "cycle beta1 against the rate (OneCycle)"},
      {"scheduler.params.cycle_min_mom", T::kNumber, "0.8", "lowest beta1 (OneCycle)", 0, 1},
      {"scheduler.params.cycle_max_mom", T::kNumber, "0.9", "highest beta1 (OneCycle)", 0, 1},
      {"scheduler.params.decay_mom_rate", T::kNumber, "0",
       "growth of beta1 after the cycle (OneCycle)", 0},
  };
}

Keys model_keys() {
  return {
      {"model", T::kSection, "", "the built-in models"},
      choice("model.type", "\"gpt\"", "gpt|mlp|resnet", "architecture"),
      {"model.n_layer", T::kInteger, "4", "blocks (gpt)", 1},
      {"model.n_head", T::kInteger, "4", "attention heads (gpt)", 1},
      {"model.n_embd", T::kInteger, "128", "width, a multiple of n_head (gpt)", 1},
      {"model.block_size", T::kInteger, "128", "tokens of context (gpt)", 1},
      {"model.vocab_size", T::kInteger, "256", "token kinds (gpt)", 1},
      {"model.dropout", T::kNumber, "0", "dropout probability (gpt)", 0, 1},
      {"model.bias", T::kBool, "true", "biases in linear layers and norms (gpt)"},
      {"model.tied_head", T::kBool, "true", "output layer shares the token embedding (gpt)"},
      {"model.hidden_sizes", T::kIntegers, "[128, 128]", "widths of hidden layers (mlp)", 1},
      {"model.width", T::kInteger, "16", "channels of the first stage (resnet)", 1},
      {"model.blocks_per_stage", T::kInteger, "2", "residual blocks in each of 3 stages (resnet)",
       1},
  };
}

Keys run_keys() {
  return {
      {"data", T::kSection, "", "training data"},
      choice("data.type", "\"text\"", "text|fashion_mnist",
             "text: bytes of files; fashion_mnist: idx files"),
      {"data.path", T::kStrings, "", "file(s) (text) or folder (fashion_mnist)"},
      {"data.test_path", T::kString, "\"\"", "separate evaluation text"},
      {"data.validation_fraction", T::kNumber, "0.05", "share of each text kept for evaluation", 0,
       0.9},
      {"data.shuffle", T::kBool, "true", "a new order every epoch"},
      {"train", T::kSection, "", "the run"},
      {"train.steps", T::kInteger, "", "optimizer steps", 1},
      {"train.seed", T::kInteger, "0", "of initial weights, data order and dropout", 0},
      {"train.eval_interval", T::kInteger, "0", "steps between evaluations; 0: only at the end", 0},
      {"train.eval_batches", T::kInteger, "16", "micro-batches a rank per evaluation", 1},
      choice("train.device", "\"auto\"", "auto|cpu|cuda", "where to train"),
      {"train.threads", T::kInteger, "0", "CPU threads a rank; 0: cores / ranks of the machine", 0,
       4096},
      {"train.log_interval", T::kInteger, "1", "steps between progress lines", 1},
      {"train.sample_length", T::kInteger, "200",
       "bytes of text generated at the end (gpt); 0: none", 0, 100000},
  };
}

}  // namespace

std::vector<KeySpec> honoured_keys() {
  Keys all;
  for (const Keys& section :
       {batch_keys(), precision_keys(), zero_keys(), optimizer_keys(), scheduler_keys(),
        one_cycle_keys(), sam_keys(), model_keys(), run_keys()}) {
    all.insert(all.end(), section.begin(), section.end());
  }
  return all;
}

}  // namespace zerosharp
