#include <initializer_list>

#include "engine/config/key_list.h"

namespace zerosharp {
namespace {

using T = KeyType;
constexpr double kInf = std::numeric_limits<double>::infinity();

/// Collects keys that share type and reason.
class Keys {
 public:
  using Paths = std::initializer_list<const char*>;

  void no_effect(T type, std::string_view reason, const Paths& paths, double least = -kInf) {
    for (const char* path : paths) {
      keys_.push_back({path, type, {}, reason, least, kInf, {}, KeyEffect::kNoEffect, {}});
    }
  }
  /// Refused unless the value is null, `neutral` (JSON text) or a section that is not enabled.
  void refused(T type, std::string_view neutral, std::string_view reason, const Paths& paths) {
    for (const char* path : paths) {
      keys_.push_back({path, type, {}, reason, -kInf, kInf, {}, KeyEffect::kRefused, neutral});
    }
  }
  std::vector<KeySpec> take() { return std::move(keys_); }

 private:
  std::vector<KeySpec> keys_;
};

void add_precision(Keys& k) {
  k.no_effect(T::kBool, "gradients are always accumulated at once", {"bf16.immediate_grad_update"});
  k.no_effect(T::kBool, "non-finite gradients are always checked", {"bf16.check_grad_overflow"});
  k.no_effect(T::kNumber, "bf16 needs no loss scale",
              {"bf16.loss_scale", "bf16.initial_scale_power", "bf16.loss_scale_window",
               "bf16.hysteresis", "bf16.min_loss_scale"});
  k.refused(T::kBool, "false", "the master is always fp32",
            {"bf16.bf16_master_weights_and_grads", "fp16.fp16_master_weights_and_grads"});
  k.refused(T::kBool, "false", "optimizer states are always fp32", {"bf16.bf16_optimizer_states"});
  k.no_effect(T::kBool, "inputs are cast by the model", {"fp16.auto_cast"});
  k.no_effect(T::kString, "bf16.enabled and fp16.enabled decide", {"data_types.param_dtype"});
  k.no_effect(T::kString, "buffers keep their type", {"data_types.buffer_dtype"});
}

void add_zero(Keys& k) {
  constexpr std::string_view kOneBuffer = "each group is reduced and gathered as one flat buffer";
  k.no_effect(T::kInteger, kOneBuffer,
              {"zero_optimization.reduce_bucket_size", "zero_optimization.allgather_bucket_size",
               "zero_optimization.allgather_size"},
              0);
  k.no_effect(T::kBool, kOneBuffer,
              {"zero_optimization.contiguous_gradients", "zero_optimization.reduce_scatter",
               "zero_optimization.use_multi_rank_bucket_allreduce",
               "zero_optimization.allgather_partitions"});
  k.no_effect(T::kBool, "stages 0 and 1 reduce after the last backward",
              {"zero_optimization.overlap_comm"});
  k.no_effect(T::kBool, "the result does not depend on it",
              {"zero_optimization.round_robin_gradients"});
  k.no_effect(T::kBool, "parameters without a gradient are always left alone",
              {"zero_optimization.ignore_unused_parameters"});
  k.no_effect(T::kBool, "the fp32 master is always kept",
              {"zero_optimization.load_from_fp32_weights"});
  k.no_effect(T::kBool, "there are no checkpoints yet", {"zero_optimization.elastic_checkpoint"});
  k.no_effect(T::kBool, "there is one stage 1", {"zero_optimization.legacy_stage1"});
  k.no_effect(T::kBool, "gradients are always hooked", {"zero_optimization.grad_hooks"});
  k.refused(T::kInteger, "1", "ZeRO++ is not available",
            {"zero_optimization.zero_hpz_partition_size"});
  k.refused(T::kBool, "false", "quantized and hierarchical communication is not available",
            {"zero_optimization.zero_quantized_weights",
             "zero_optimization.zero_quantized_nontrainable_weights",
             "zero_optimization.zero_quantized_gradients",
             "zero_optimization.mics_hierarchical_params_gather"});
  k.refused(T::kInteger, "-1", "MiCS is not available", {"zero_optimization.mics_shard_size"});
  k.refused(T::kAny, "null", "ZeRO++ is not available", {"zero_optimization.zeropp_loco_param"});
  k.refused(T::kAny, "null", "ZenFlow is not available", {"zero_optimization.zenflow"});
}

void add_stage_3(Keys& k) {
  constexpr std::string_view kStage3 = "belongs to stage 3";
  k.no_effect(
      T::kInteger, kStage3,
      {"zero_optimization.sub_group_size", "zero_optimization.stage3_prefetch_bucket_size",
       "zero_optimization.stage3_param_persistence_threshold",
       "zero_optimization.stage3_model_persistence_threshold",
       "zero_optimization.stage3_max_live_parameters",
       "zero_optimization.stage3_max_reuse_distance",
       "zero_optimization.stage3_module_granularity_threshold",
       "zero_optimization.prefetch_bucket_size", "zero_optimization.param_persistence_threshold",
       "zero_optimization.model_persistence_threshold", "zero_optimization.max_live_parameters",
       "zero_optimization.max_reuse_distance", "zero_optimization.module_granularity_threshold"},
      0);
  k.no_effect(
      T::kBool, kStage3,
      {"zero_optimization.stage3_gather_16bit_weights_on_model_save",
       "zero_optimization.stage3_gather_fp16_weights_on_model_save",
       "zero_optimization.gather_16bit_weights_on_model_save",
       "zero_optimization.stage3_use_all_reduce_for_fetch_params",
       "zero_optimization.use_all_reduce_for_fetch_params",
       "zero_optimization.stage3_allgather_sequential", "zero_optimization.allgather_sequential",
       "zero_optimization.memory_efficient_linear", "zero_optimization.override_module_apply",
       "zero_optimization.pipeline_loading_checkpoint",
       "zero_optimization.log_trace_cache_warnings", "zero_optimization.enable_sanity_checks",
       "zero_optimization.save_muon_momentum_buffer_in_memory"});
  k.no_effect(T::kAny, kStage3, {"zero_optimization.leaf_module"});
}

void add_offload(Keys& k) {
  constexpr std::string_view kNothingMoves = "nothing is moved between devices";
  k.no_effect(T::kBool, "deprecated: write offload_param.device",
              {"zero_optimization.cpu_offload_param", "zero_optimization.cpu_offload_params"});
  k.no_effect(T::kBool, "deprecated: write offload_optimizer.pin_memory",
              {"zero_optimization.cpu_offload_use_pin_memory"});
  k.no_effect(T::kAny, "nothing is offloaded to NVMe",
              {"zero_optimization.offload_optimizer.nvme_path",
               "zero_optimization.offload_param.nvme_path"});
  k.no_effect(T::kNumber, kNothingMoves,
              {"zero_optimization.offload_optimizer.buffer_count",
               "zero_optimization.offload_optimizer.ratio",
               "zero_optimization.offload_optimizer.cpuadam_cores_perc"},
              0);
  k.no_effect(T::kBool, kNothingMoves,
              {"zero_optimization.offload_optimizer.pin_memory",
               "zero_optimization.offload_optimizer.pipeline_read",
               "zero_optimization.offload_optimizer.pipeline_write",
               "zero_optimization.offload_optimizer.pipeline",
               "zero_optimization.offload_optimizer.fast_init",
               "zero_optimization.offload_optimizer.super_offload",
               "zero_optimization.offload_param.pin_memory"});
  k.no_effect(
      T::kInteger, kNothingMoves,
      {"zero_optimization.offload_param.buffer_count",
       "zero_optimization.offload_param.buffer_size", "zero_optimization.offload_param.max_in_cpu"},
      0);
}

void add_optimizer_and_scheduler(Keys& k) {
  k.no_effect(T::kBool, "the update is always fused", {"optimizer.legacy_fusion"});
  k.no_effect(T::kBool, "the update is the library's own",
              {"optimizer.params.torch_adam", "zero_force_ds_cpu_optimizer"});
  k.no_effect(T::kBool, "states are always fp32", {"optimizer.params.fp32_optimizer_states"});
  k.refused(T::kBool, "false", "AMSGrad is not available", {"optimizer.params.amsgrad"});
  k.no_effect(T::kInteger, "a run starts at its first step",
              {"scheduler.params.last_batch_iteration"});
}

void add_top_level(Keys& k) {
  k.no_effect(T::kString, "for editors", {"$schema"});
  k.no_effect(T::kInteger, "train.log_interval sets the progress line", {"steps_per_print"});
  k.no_effect(T::kNumber, "means are taken in fp32", {"gradient_predivide_factor"});
  k.no_effect(T::kBool, "means are taken in fp32", {"prescale_gradients"});
  k.refused(T::kString, "\"mean\"", "gradients are always averaged over ranks",
            {"gradient_allreduce_op"});
  k.no_effect(T::kBool, "there is no such restriction", {"zero_allow_untested_optimizer"});
  k.refused(T::kBool, "true", "boundaries are always counted", {"managed_gradient_accumulation"});
  k.no_effect(T::kBool, "not used here",
              {"wall_clock_breakdown", "memory_breakdown", "dump_state", "dataloader_drop_last",
               "disable_allgather", "graph_harvesting", "use_data_before_expert_parallelism"});
  k.no_effect(T::kInteger, "each group is gathered as one flat buffer", {"allgather_size"});
  k.refused(T::kBool, "false", "gradients must be dense", {"sparse_gradients"});
  k.no_effect(T::kAny, "not used here",
              {"log_level", "vocabulary_size", "seq_parallel_communication_data_type",
               "data_parallel_size"});
  k.refused(T::kInteger, "1", "sequence parallelism is not available", {"sequence_parallel_size"});
  k.no_effect(
      T::kAny, "not available here; results are the same without it",
      {"checkpoint", "aio", "nebula", "datastates_ckpt", "autotuning", "flops_profiler",
       "comms_logger", "tensorboard", "wandb", "csv_monitor", "comet", "activation_checkpointing",
       "timers", "compile", "hybrid_engine", "pipeline", "eigenvalue"});
  k.refused(T::kAny, "null", "it changes what is trained and is not available",
            {"amp", "torch_autocast", "elasticity", "tensor_parallel", "expert_parallel",
             "weight_quantization", "compression_training", "quantize_training", "sparse_attention",
             "progressive_layer_drop", "curriculum_learning", "data_efficiency"});
}

}  // namespace

std::vector<KeySpec> deepspeed_keys() {
  Keys keys;
  add_precision(keys);
  add_zero(keys);
  add_stage_3(keys);
  add_offload(keys);
  add_optimizer_and_scheduler(keys);
  add_top_level(keys);
  return keys.take();
}

}  // namespace zerosharp
