#include "engine/config/key_table.h"

#include <algorithm>
#include <sstream>

namespace zerosharp {
namespace {

using T = KeyType;
constexpr double kInf = std::numeric_limits<double>::infinity();

KeySpec honoured(std::string_view path, T type, std::string_view fallback, std::string_view meaning,
                 double least = -kInf, double most = kInf, std::string_view choices = {}) {
  return {path, type, fallback, meaning, least, most, choices, KeyEffect::kHonoured, {}};
}
KeySpec no_effect(std::string_view path, T type, std::string_view reason, double least = -kInf) {
  return {path, type, {}, reason, least, kInf, {}, KeyEffect::kNoEffect, {}};
}
KeySpec refused(std::string_view path, T type, std::string_view neutral, std::string_view reason) {
  return {path, type, {}, reason, -kInf, kInf, {}, KeyEffect::kRefused, neutral};
}

void add_batch_and_precision(std::vector<KeySpec>& t) {
  t.push_back(
      honoured("train_batch_size", T::kInteger, "", "samples per optimizer step over all ranks"));
  t.push_back(honoured("train_micro_batch_size_per_gpu", T::kInteger, "",
                       "samples per rank and forward pass"));
  t.push_back(
      honoured("gradient_accumulation_steps", T::kInteger, "", "micro-batches per optimizer step"));
  t.push_back(
      honoured("gradient_clipping", T::kNumber, "1.0", "largest global gradient norm; 0: off", 0));
  t.push_back(honoured("bf16", T::kSection, "", "bfloat16 working weights with an fp32 master"));
  t.push_back(honoured("bf16.enabled", T::kBool, "false", "train in bf16"));
  t.push_back(honoured("bfloat16", T::kSection, "", "old spelling of bf16"));
  t.push_back(honoured("bfloat16.enabled", T::kBool, "false", "old spelling of bf16.enabled"));
  t.push_back(no_effect("bf16.immediate_grad_update", T::kBool,
                        "gradients are always accumulated at once"));
  t.push_back(
      no_effect("bf16.check_grad_overflow", T::kBool, "non-finite gradients are always checked"));
  for (const char* key : {"bf16.loss_scale", "bf16.initial_scale_power", "bf16.loss_scale_window",
                          "bf16.hysteresis", "bf16.min_loss_scale"}) {
    t.push_back(no_effect(key, T::kNumber, "bf16 needs no loss scale"));
  }
  t.push_back(refused("bf16.bf16_master_weights_and_grads", T::kBool, "false",
                      "the master is always fp32"));
  t.push_back(
      refused("bf16.bf16_optimizer_states", T::kBool, "false", "optimizer states are always fp32"));
  t.push_back(honoured("fp16", T::kSection, "", "float16 working weights with a loss scale"));
  t.push_back(honoured("fp16.enabled", T::kBool, "false", "train in fp16"));
  t.push_back(honoured("fp16.loss_scale", T::kNumber, "0", "static loss scale; 0: dynamic", 0));
  t.push_back(honoured("fp16.initial_scale_power", T::kInteger, "16",
                       "dynamic scale starts at 2^this", 0, 127));
  t.push_back(honoured("fp16.loss_scale_window", T::kInteger, "1000",
                       "clean steps before the scale doubles", 1));
  t.push_back(
      honoured("fp16.hysteresis", T::kInteger, "2", "overflows before the scale is halved", 1));
  t.push_back(honoured("fp16.consecutive_hysteresis", T::kBool, "false",
                       "every clean step refills hysteresis"));
  t.push_back(
      honoured("fp16.min_loss_scale", T::kNumber, "1", "the scale does not fall below this", 0));
  t.push_back(no_effect("fp16.auto_cast", T::kBool, "inputs are cast by the model"));
  t.push_back(refused("fp16.fp16_master_weights_and_grads", T::kBool, "false",
                      "the master is always fp32"));
  t.push_back(honoured("data_types", T::kSection, "", ""));
  t.push_back(
      honoured("data_types.grad_accum_dtype", T::kChoice, "",
               "dtype gradients are accumulated and reduced in (default: the working dtype for "
               "one micro-batch, fp32 for several)",
               -kInf, kInf, "fp32|float32|float|bf16|bfloat16|fp16|float16|half"));
  t.push_back(
      no_effect("data_types.param_dtype", T::kString, "bf16.enabled and fp16.enabled decide"));
  t.push_back(no_effect("data_types.buffer_dtype", T::kString, "buffers keep their type"));
  t.push_back(honoured("communication_data_type", T::kChoice, "",
                       "dtype on the wire; must equal the accumulation dtype", -kInf, kInf,
                       "fp32|bf16|fp16"));
}

void add_zero(std::vector<KeySpec>& t) {
  t.push_back(honoured("zero_optimization", T::kSection, "", "partitioning of optimizer state"));
  t.push_back(honoured("zero_optimization.stage", T::kInteger, "0",
                       "0: replicated; 1: masters and optimizer states sharded over ranks", 0, 3));
  constexpr std::string_view kOneBuffer = "each group is reduced and gathered as one flat buffer";
  for (const char* key :
       {"zero_optimization.reduce_bucket_size", "zero_optimization.allgather_bucket_size",
        "zero_optimization.allgather_size"}) {
    t.push_back(no_effect(key, T::kInteger, kOneBuffer, 0));
  }
  for (const char* key :
       {"zero_optimization.contiguous_gradients", "zero_optimization.reduce_scatter",
        "zero_optimization.use_multi_rank_bucket_allreduce",
        "zero_optimization.allgather_partitions"}) {
    t.push_back(no_effect(key, T::kBool, kOneBuffer));
  }
  t.push_back(no_effect("zero_optimization.overlap_comm", T::kBool,
                        "stages 0 and 1 reduce after the last backward"));
  t.push_back(no_effect("zero_optimization.round_robin_gradients", T::kBool,
                        "the result does not depend on it"));
  t.push_back(no_effect("zero_optimization.ignore_unused_parameters", T::kBool,
                        "parameters without a gradient are always left alone"));
  t.push_back(no_effect("zero_optimization.load_from_fp32_weights", T::kBool,
                        "the fp32 master is always kept"));
  t.push_back(
      no_effect("zero_optimization.elastic_checkpoint", T::kBool, "there are no checkpoints yet"));
  t.push_back(no_effect("zero_optimization.legacy_stage1", T::kBool, "there is one stage 1"));
  t.push_back(no_effect("zero_optimization.grad_hooks", T::kBool, "gradients are always hooked"));
  for (const char* key :
       {"zero_optimization.sub_group_size", "zero_optimization.stage3_prefetch_bucket_size",
        "zero_optimization.stage3_param_persistence_threshold",
        "zero_optimization.stage3_model_persistence_threshold",
        "zero_optimization.stage3_max_live_parameters",
        "zero_optimization.stage3_max_reuse_distance",
        "zero_optimization.stage3_module_granularity_threshold"}) {
    t.push_back(no_effect(key, T::kInteger, "belongs to stage 3", 0));
  }
  for (const char* key :
       {"zero_optimization.stage3_gather_16bit_weights_on_model_save",
        "zero_optimization.stage3_gather_fp16_weights_on_model_save",
        "zero_optimization.stage3_use_all_reduce_for_fetch_params",
        "zero_optimization.stage3_allgather_sequential",
        "zero_optimization.memory_efficient_linear", "zero_optimization.override_module_apply",
        "zero_optimization.pipeline_loading_checkpoint",
        "zero_optimization.log_trace_cache_warnings", "zero_optimization.enable_sanity_checks",
        "zero_optimization.save_muon_momentum_buffer_in_memory"}) {
    t.push_back(no_effect(key, T::kBool, "belongs to stage 3"));
  }
  t.push_back(no_effect("zero_optimization.leaf_module", T::kAny, "belongs to stage 3"));
  t.push_back(refused("zero_optimization.zero_hpz_partition_size", T::kInteger, "1",
                      "ZeRO++ is not available"));
  for (const char* key : {"zero_optimization.zero_quantized_weights",
                          "zero_optimization.zero_quantized_nontrainable_weights",
                          "zero_optimization.zero_quantized_gradients",
                          "zero_optimization.mics_hierarchical_params_gather"}) {
    t.push_back(refused(key, T::kBool, "false",
                        "quantized and hierarchical communication is not available"));
  }
  t.push_back(
      refused("zero_optimization.mics_shard_size", T::kInteger, "-1", "MiCS is not available"));
  t.push_back(
      refused("zero_optimization.zeropp_loco_param", T::kAny, "null", "ZeRO++ is not available"));
  t.push_back(refused("zero_optimization.zenflow", T::kAny, "null", "ZenFlow is not available"));
  for (const char* key : {"zero_optimization.cpu_offload", "zero_optimization.cpu_offload_params",
                          "zero_optimization.cpu_offload_use_pin_memory"}) {
    t.push_back(no_effect(key, T::kBool, "deprecated: write offload_optimizer.device"));
  }
  for (const char* section :
       {"zero_optimization.offload_optimizer", "zero_optimization.offload_param"}) {
    t.push_back(honoured(section, T::kSection, "", "where states or parameters are kept"));
  }
  constexpr std::string_view kDevice =
      "where it is kept: none, or cpu (which is where a CPU run keeps it)";
  t.push_back(honoured("zero_optimization.offload_optimizer.device", T::kChoice, "\"none\"",
                       kDevice, -kInf, kInf, "none|cpu|nvme"));
  t.push_back(honoured("zero_optimization.offload_param.device", T::kChoice, "\"none\"", kDevice,
                       -kInf, kInf, "none|cpu|nvme"));
  for (const char* key : {"zero_optimization.offload_optimizer.nvme_path",
                          "zero_optimization.offload_param.nvme_path"}) {
    t.push_back(no_effect(key, T::kAny, "nothing is offloaded to NVMe"));
  }
  for (const char* key : {"zero_optimization.offload_optimizer.buffer_count",
                          "zero_optimization.offload_optimizer.ratio",
                          "zero_optimization.offload_optimizer.cpuadam_cores_perc"}) {
    t.push_back(no_effect(key, T::kNumber, "nothing is moved between devices", 0));
  }
  for (const char* key : {"zero_optimization.offload_optimizer.pin_memory",
                          "zero_optimization.offload_optimizer.pipeline_read",
                          "zero_optimization.offload_optimizer.pipeline_write",
                          "zero_optimization.offload_optimizer.pipeline",
                          "zero_optimization.offload_optimizer.fast_init",
                          "zero_optimization.offload_optimizer.super_offload",
                          "zero_optimization.offload_param.pin_memory"}) {
    t.push_back(no_effect(key, T::kBool, "nothing is moved between devices"));
  }
  for (const char* key : {"zero_optimization.offload_param.buffer_count",
                          "zero_optimization.offload_param.buffer_size",
                          "zero_optimization.offload_param.max_in_cpu"}) {
    t.push_back(no_effect(key, T::kInteger, "nothing is moved between devices", 0));
  }
}

void add_optimizer(std::vector<KeySpec>& t) {
  t.push_back(honoured("optimizer", T::kSection, "", "the update rule"));
  t.push_back(honoured("optimizer.type", T::kChoice, "\"AdamW\"",
                       "update rule; \"Adam\" means AdamW unless adam_w_mode is false", -kInf, kInf,
                       "AdamW|Adam|FusedAdam|SGD|Lion|FusedLion|Adagrad"));
  t.push_back(no_effect("optimizer.legacy_fusion", T::kBool, "the update is always fused"));
  t.push_back(honoured("optimizer.params", T::kSection, "", ""));
  t.push_back(honoured("optimizer.params.lr", T::kNumber, "0.001", "learning rate", 0));
  t.push_back(honoured("optimizer.params.betas", T::kNumbers, "[0.9, 0.999]",
                       "decay of the moments (AdamW, Adam, Lion)", 0, 1));
  t.push_back(honoured("optimizer.params.eps", T::kNumber, "1e-8",
                       "added to the denominator (AdamW, Adam; Adagrad: 1e-10)", 0));
  t.push_back(honoured("optimizer.params.weight_decay", T::kNumber, "0", "weight decay", 0));
  t.push_back(
      honoured("optimizer.params.bias_correction", T::kBool, "true", "Adam's bias correction"));
  t.push_back(
      honoured("optimizer.params.adam_w_mode", T::kBool, "true", "decoupled decay for type Adam"));
  t.push_back(
      no_effect("optimizer.params.torch_adam", T::kBool, "the update is the library's own"));
  t.push_back(
      no_effect("optimizer.params.fp32_optimizer_states", T::kBool, "states are always fp32"));
  t.push_back(refused("optimizer.params.amsgrad", T::kBool, "false", "AMSGrad is not available"));
  t.push_back(honoured("optimizer.params.momentum", T::kNumber, "0", "SGD momentum", 0, 1));
  t.push_back(honoured("optimizer.params.dampening", T::kNumber, "0", "SGD dampening", 0, 1));
  t.push_back(
      honoured("optimizer.params.nesterov", T::kBool, "false", "SGD with Nesterov momentum"));
  t.push_back(honoured("optimizer.params.decoupled_decay", T::kBool, "false",
                       "SGD: w ← w·(1 − lr·weight_decay)"));
  t.push_back(
      honoured("optimizer.params.lr_decay", T::kNumber, "0", "Adagrad's decay of the rate", 0));
}

void add_scheduler(std::vector<KeySpec>& t) {
  t.push_back(honoured("scheduler", T::kSection, "", "learning-rate schedule"));
  t.push_back(honoured("scheduler.type", T::kChoice, "", "shape of the schedule", -kInf, kInf,
                       "constant|linear|cosine|constant_with_warmup|linear_decay_with_warmup|"
                       "cosine_with_warmup|WarmupLR|WarmupDecayLR|WarmupCosineLR|OneCycle"));
  t.push_back(honoured("scheduler.params", T::kSection, "", ""));
  t.push_back(honoured("scheduler.params.warmup_steps", T::kInteger, "0",
                       "LR warm-up from 0, in steps (constant, linear, cosine)", 0));
  t.push_back(honoured("scheduler.params.total_steps", T::kInteger, "0",
                       "end of the decay, in steps; 0: train.steps", 0));
  t.push_back(honoured("scheduler.params.alpha_f", T::kNumber, "0",
                       "final multiplier of the rate (linear, cosine)", 0));
  t.push_back(honoured("scheduler.params.warmup_min_lr", T::kNumber, "0",
                       "rate at the start (WarmupLR, WarmupDecayLR)", 0));
  t.push_back(honoured("scheduler.params.warmup_max_lr", T::kNumber, "",
                       "peak rate; default: the optimizer's lr", 0));
  t.push_back(honoured("scheduler.params.warmup_num_steps", T::kInteger, "1000",
                       "steps of LR warm-up (1 counts as 2, as in DeepSpeed)"));
  t.push_back(honoured("scheduler.params.warmup_type", T::kChoice, "\"log\"",
                       "shape of the LR warm-up", -kInf, kInf, "log|linear"));
  t.push_back(honoured("scheduler.params.total_num_steps", T::kInteger, "",
                       "end of the decay (WarmupDecayLR, WarmupCosineLR)"));
  t.push_back(honoured("scheduler.params.warmup_min_ratio", T::kNumber, "0",
                       "first multiplier (WarmupCosineLR)", 0));
  t.push_back(honoured("scheduler.params.cos_min_ratio", T::kNumber, "0.0001",
                       "last multiplier (WarmupCosineLR)", 0));
  t.push_back(
      honoured("scheduler.params.cycle_min_lr", T::kNumber, "", "lowest rate (OneCycle)", 0));
  t.push_back(
      honoured("scheduler.params.cycle_max_lr", T::kNumber, "", "highest rate (OneCycle)", 0));
  t.push_back(honoured("scheduler.params.decay_lr_rate", T::kNumber, "0",
                       "decay after the cycle (OneCycle)", 0));
  t.push_back(honoured("scheduler.params.cycle_first_step_size", T::kInteger, "2000",
                       "rising steps (OneCycle)"));
  t.push_back(honoured("scheduler.params.cycle_second_step_size", T::kInteger, "",
                       "falling steps; default: the rising ones (OneCycle)"));
  t.push_back(honoured("scheduler.params.cycle_first_stair_count", T::kInteger, "0",
                       "stairs while rising; 0: smooth (OneCycle)", 0));
  t.push_back(honoured("scheduler.params.cycle_second_stair_count", T::kInteger, "",
                       "stairs while falling (OneCycle)", 0));
  t.push_back(honoured("scheduler.params.decay_step_size", T::kInteger, "0",
                       "steps of one decay; 0: none (OneCycle)", 0));
  t.push_back(honoured("scheduler.params.cycle_momentum", T::kBool, "true",
                       "cycle beta1 against the rate (OneCycle)"));
  t.push_back(honoured("scheduler.params.cycle_min_mom", T::kNumber, "0.8",
                       "lowest beta1 (OneCycle)", 0, 1));
  t.push_back(honoured("scheduler.params.cycle_max_mom", T::kNumber, "0.9",
                       "highest beta1 (OneCycle)", 0, 1));
  t.push_back(honoured("scheduler.params.decay_mom_rate", T::kNumber, "0",
                       "growth of beta1 after the cycle (OneCycle)", 0));
  t.push_back(no_effect("scheduler.params.last_batch_iteration", T::kInteger,
                        "a run starts at its first step"));
}

void add_own_sections(std::vector<KeySpec>& t) {
  t.push_back(honoured("sam", T::kSection, "", "sharpness-aware minimization"));
  t.push_back(honoured("sam.enabled", T::kBool, "false",
                       "two passes a step: gradient at w, then at w + e"));
  t.push_back(honoured("sam.rho", T::kNumber, "0.05", "‖e‖", 0));
  t.push_back(honoured("sam.epsilon", T::kNumber, "1e-12", "added to the gradient norm", 0));
  t.push_back(honoured("sam.interval", T::kInteger, "1", "perturb every k-th step", 1));
  t.push_back(honoured("sam.scope", T::kChoice, "\"global\"",
                       "e from the averaged gradient, or from each rank's own", -kInf, kInf,
                       "global|local"));
  t.push_back(
      honoured("sam.variant", T::kChoice, "\"sam\"", "member of the family", -kInf, kInf, "sam"));
  t.push_back(honoured("sam.rounding", T::kChoice, "\"nearest\"", "of w + e to the working dtype",
                       -kInf, kInf, "nearest|stochastic"));
  t.push_back(
      honoured("sam.same_rng", T::kBool, "true", "the second pass draws the same random numbers"));
  t.push_back(honoured("sam.freeze_bn", T::kBool, "true",
                       "buffers (batch-norm statistics) move in the first pass only"));
  t.push_back(honoured("model", T::kSection, "", "the built-in models"));
  t.push_back(
      honoured("model.type", T::kChoice, "\"gpt\"", "architecture", -kInf, kInf, "gpt|mlp|resnet"));
  t.push_back(honoured("model.n_layer", T::kInteger, "4", "blocks (gpt)", 1));
  t.push_back(honoured("model.n_head", T::kInteger, "4", "attention heads (gpt)", 1));
  t.push_back(honoured("model.n_embd", T::kInteger, "128", "width, a multiple of n_head (gpt)", 1));
  t.push_back(honoured("model.block_size", T::kInteger, "128", "tokens of context (gpt)", 1));
  t.push_back(honoured("model.vocab_size", T::kInteger, "256", "token kinds (gpt)", 1));
  t.push_back(honoured("model.dropout", T::kNumber, "0", "dropout probability (gpt)", 0, 1));
  t.push_back(honoured("model.bias", T::kBool, "true", "biases in linear layers and norms (gpt)"));
  t.push_back(honoured("model.tied_head", T::kBool, "true",
                       "output layer shares the token embedding (gpt)"));
  t.push_back(honoured("model.hidden_sizes", T::kIntegers, "[128, 128]",
                       "widths of hidden layers (mlp)", 1));
  t.push_back(
      honoured("model.width", T::kInteger, "16", "channels of the first stage (resnet)", 1));
  t.push_back(honoured("model.blocks_per_stage", T::kInteger, "2",
                       "residual blocks in each of 3 stages (resnet)", 1));
  t.push_back(honoured("data", T::kSection, "", "training data"));
  t.push_back(honoured("data.type", T::kChoice, "\"text\"",
                       "text: bytes of files; fashion_mnist: idx files", -kInf, kInf,
                       "text|fashion_mnist"));
  t.push_back(honoured("data.path", T::kStrings, "", "file(s) (text) or folder (fashion_mnist)"));
  t.push_back(honoured("data.test_path", T::kString, "\"\"", "separate evaluation text"));
  t.push_back(honoured("data.validation_fraction", T::kNumber, "0.05",
                       "share of each text kept for evaluation", 0, 0.9));
  t.push_back(honoured("data.shuffle", T::kBool, "true", "a new order every epoch"));
  t.push_back(honoured("train", T::kSection, "", "the run"));
  t.push_back(honoured("train.steps", T::kInteger, "", "optimizer steps", 1));
  t.push_back(
      honoured("train.seed", T::kInteger, "0", "of initial weights, data order and dropout", 0));
  t.push_back(honoured("train.eval_interval", T::kInteger, "0",
                       "steps between evaluations; 0: only at the end", 0));
  t.push_back(
      honoured("train.eval_batches", T::kInteger, "16", "micro-batches a rank per evaluation", 1));
  t.push_back(honoured("train.device", T::kChoice, "\"auto\"", "where to train", -kInf, kInf,
                       "auto|cpu|cuda"));
  t.push_back(honoured("train.threads", T::kInteger, "0",
                       "CPU threads a rank; 0: cores / ranks of the machine", 0, 4096));
  t.push_back(honoured("train.log_interval", T::kInteger, "1", "steps between progress lines", 1));
  t.push_back(honoured("train.sample_length", T::kInteger, "200",
                       "bytes of text generated at the end (gpt); 0: none", 0, 100000));
}

void add_other_deepspeed(std::vector<KeySpec>& t) {
  t.push_back(no_effect("$schema", T::kString, "for editors"));
  t.push_back(
      no_effect("steps_per_print", T::kInteger, "train.log_interval sets the progress line"));
  t.push_back(no_effect("gradient_predivide_factor", T::kNumber, "means are taken in fp32"));
  t.push_back(no_effect("prescale_gradients", T::kBool, "means are taken in fp32"));
  t.push_back(refused("gradient_allreduce_op", T::kString, "\"mean\"",
                      "gradients are always averaged over ranks"));
  t.push_back(no_effect("zero_allow_untested_optimizer", T::kBool, "there is no such restriction"));
  t.push_back(
      no_effect("zero_force_ds_cpu_optimizer", T::kBool, "the update is the library's own"));
  t.push_back(
      refused("managed_gradient_accumulation", T::kBool, "true", "boundaries are always counted"));
  for (const char* key :
       {"wall_clock_breakdown", "memory_breakdown", "dump_state", "dataloader_drop_last",
        "disable_allgather", "graph_harvesting", "use_data_before_expert_parallelism"}) {
    t.push_back(no_effect(key, T::kBool, "not used here"));
  }
  t.push_back(
      no_effect("allgather_size", T::kInteger, "each group is gathered as one flat buffer"));
  t.push_back(refused("sparse_gradients", T::kBool, "false", "gradients must be dense"));
  for (const char* key : {"log_level", "vocabulary_size", "seq_parallel_communication_data_type",
                          "data_parallel_size"}) {
    t.push_back(no_effect(key, T::kAny, "not used here"));
  }
  t.push_back(
      refused("sequence_parallel_size", T::kInteger, "1", "sequence parallelism is not available"));
  for (const char* key :
       {"checkpoint", "aio", "nebula", "datastates_ckpt", "autotuning", "flops_profiler",
        "comms_logger", "tensorboard", "wandb", "csv_monitor", "comet", "activation_checkpointing",
        "timers", "compile", "hybrid_engine", "pipeline", "eigenvalue"}) {
    t.push_back(no_effect(key, T::kAny, "not available here; results are the same without it"));
  }
  for (const char* key :
       {"amp", "torch_autocast", "elasticity", "tensor_parallel", "expert_parallel",
        "weight_quantization", "compression_training", "quantize_training", "sparse_attention",
        "progressive_layer_drop", "curriculum_learning", "data_efficiency"}) {
    t.push_back(refused(key, T::kAny, "null", "it changes what is trained and is not available"));
  }
}

std::vector<KeySpec> build_table() {
  std::vector<KeySpec> table;
  add_batch_and_precision(table);
  add_zero(table);
  add_optimizer(table);
  add_scheduler(table);
  add_own_sections(table);
  add_other_deepspeed(table);
  return table;
}

std::string_view last_part(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}

/// Edit distance (insert, delete, replace, swap of neighbours).
size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

const std::vector<KeySpec>& key_table() {
  static const std::vector<KeySpec> table = build_table();
  return table;
}

const KeySpec* find_key(std::string_view path) {
  for (const KeySpec& key : key_table()) {
    if (key.path == path) return &key;
  }
  return nullptr;
}

std::string suggest_key(const std::string& path) {
  const std::string_view name = last_part(path);
  if (name == "max_grad_norm") return "set gradient_clipping at the top level instead";
  for (const KeySpec& key : key_table()) {
    if (last_part(key.path) == name) return "it belongs at " + std::string(key.path);
  }
  if (name.size() > 100) return "no known key is like it";
  const KeySpec* nearest = nullptr;
  size_t best = std::max<size_t>(2, name.size() / 3) + 1;
  for (const KeySpec& key : key_table()) {
    // A sibling of the same name counts a little nearer than one elsewhere.
    const bool sibling =
        key.path.size() - last_part(key.path).size() == path.size() - name.size() &&
        path.compare(0, path.size() - name.size(), key.path, 0, path.size() - name.size()) == 0;
    const size_t far = 2 * distance(name, last_part(key.path)) + (sibling ? 0 : 1);
    if (far >= 2 * best) continue;
    best = (far + 1) / 2;
    nearest = &key;
  }
  if (nearest == nullptr) return "no known key is like it; see `zerosharp help train`";
  return "did you mean " + std::string(nearest->path) + "?";
}

std::string describe_keys() {
  std::ostringstream text;
  for (const KeySpec& key : key_table()) {
    if (key.effect != KeyEffect::kHonoured) continue;
    if (key.type == KeyType::kSection) {
      text << "\n" << key.path << ": " << key.meaning << "\n";
      continue;
    }
    text << "  " << key.path;
    if (!key.fallback.empty()) text << " = " << key.fallback;
    text << "  " << key.meaning;
    if (!key.choices.empty()) text << " [" << key.choices << "]";
    if (key.least > -kInf && key.most < kInf) {
      text << " [" << key.least << " … " << key.most << "]";
    } else if (key.least > -kInf) {
      text << " [≥ " << key.least << "]";
    }
    text << "\n";
  }
  return text.str();
}

}  // namespace zerosharp
