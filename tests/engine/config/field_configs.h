// Configuration files as people post them, each with the fault it was posted for.
#pragma once

namespace zerosharp::testing {

/// Hugging Face's, nearly everything left to the trainer (accelerate #1644).
inline constexpr char kAutoEverywhere[] = R"({
  "fp16": {
    "enabled": "auto",
    "loss_scale": 0,
    "loss_scale_window": 1000,
    "initial_scale_power": 16,
    "hysteresis": 2,
    "min_loss_scale": 1
  },
  "bf16": {
    "enabled": "auto"
  },
  "optimizer": {
    "type": "AdamW",
    "params": {
      "lr": "auto",
      "betas": "auto",
      "eps": "auto",
      "weight_decay": "auto"
    }
  },
  "scheduler": {
    "type": "WarmupDecayLR",
    "params": {
      "warmup_min_lr": "auto",
      "warmup_max_lr": "auto",
      "warmup_num_steps": "auto",
      "total_num_steps": "auto"
    }
  },
  "zero_optimization": {
    "stage": 2,
    "allgather_partitions": true,
    "allgather_bucket_size": 2e8,
    "overlap_comm": true,
    "reduce_scatter": true,
    "reduce_bucket_size": 2e8,
    "contiguous_gradients": true
  },
  "gradient_accumulation_steps": "auto",
  "gradient_clipping": "auto",
  "steps_per_print": 2000,
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "wall_clock_breakdown": false
})";

/// The offload block beside zero_optimization in place of inside it (DeepSpeed #1935).
inline constexpr char kOffloadAtTopLevel[] = R"({
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {
        "type": "AdamW",
        "params": { "lr": 3e-5, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01 }
    },
    "zero_optimization": {
        "stage": 1,
        "allgather_partitions": true,
        "allgather_bucket_size": 1e7,
        "reduce_scatter": true,
        "reduce_bucket_size": 1e7,
        "contiguous_gradients": true
    },
    "offload_optimizer": {
        "device": "cpu",
        "pin_memory": true,
        "buffer_count": 4,
        "fast_init": false
    }
})";

/// The old spelling of offload (gpt-neox #469).
inline constexpr char kDeprecatedCpuOffload[] = R"({
  "train_batch_size": 4,
  "train_micro_batch_size_per_gpu": 2,
  "optimizer": {
    "type": "Adam",
    "params": { "lr": 0.00015 }
  },
  "zero_optimization": {
    "stage": 1,
    "cpu_offload": true,
    "contiguous_gradients": true,
    "overlap_comm": false,
    "reduce_bucket_size": 50000000
  },
  "zero_allow_untested_optimizer": false,
  "wall_clock_breakdown": false
})";

/// Every kind of comment, trailing commas, comment signs inside a string (DeepSpeed #7303).
inline constexpr char kCommentsAndTrailingCommas[] = R"({
    # effective batch = 2 * 2 * ranks
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2, // keep in step with the script
    "bf16": {
        "enabled": true, # no loss scale needed
    },
    "zero_optimization": {
        "stage": 1,
        "allgather_partitions": true,
        "allgather_bucket_size": 2e8,
        "overlap_comm": true,
        "reduce_scatter": true,
        "reduce_bucket_size": 2e8,
    },
    /* optimizer block,
       rate is the peak */
    "optimizer": {
        "type": "AdamW",
        "params": {
            "lr": 5e-5,
            "betas": [
                0.8,
                0.999,
            ],
            "eps": 1e-8,
            "weight_decay": 3e-7,
        },
    },
    "gradient_clipping": 1.0,
    "tensorboard": {
        "enabled": false,
        "output_path": "logs/", # slash matters
        "job_name": "run#1 // a",
    },
})";

/// A size worked out as 0.9 · hidden² (DeepSpeed #6525).
inline constexpr char kFractionalInteger[] = R"({
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 4,
    "bf16": { "enabled": true },
    "optimizer": { "type": "AdamW", "params": { "lr": 1e-5 } },
    "zero_optimization": {
        "stage": 1,
        "reduce_bucket_size": 16777216,
        "stage3_prefetch_bucket_size": 15099494.4,
        "stage3_param_persistence_threshold": 40960
    }
})";

/// Booleans in quotes (LlamaFactory #3493).
inline constexpr char kStringBooleans[] = R"({
  "train_batch_size": 4,
  "train_micro_batch_size_per_gpu": 2,
  "gradient_clipping": 1.0,
  "zero_allow_untested_optimizer": true,
  "bf16": {
    "enabled": "true"
  },
  "fp16": {
    "enabled": "false"
  },
  "optimizer": { "type": "AdamW", "params": { "lr": 1e-4 } },
  "zero_optimization": {
    "stage": 1,
    "overlap_comm": true,
    "contiguous_gradients": true,
    "reduce_bucket_size": 5e8
  }
})";

/// The bf16 block copied from fp16 (LlamaFactory #1515).
inline constexpr char kBf16WithFp16Keys[] = R"({
  "train_batch_size": 4,
  "train_micro_batch_size_per_gpu": 2,
  "gradient_clipping": 1.0,
  "bf16": {
    "enabled": true,
    "loss_scale": 0,
    "initial_scale_power": 16,
    "loss_scale_window": 1000,
    "hysteresis": 2,
    "min_loss_scale": 1
  },
  "optimizer": { "type": "AdamW", "params": { "lr": 1e-4, "weight_decay": 0.01 } },
  "zero_optimization": {
    "stage": 1,
    "allgather_partitions": true,
    "allgather_bucket_size": 5e8,
    "reduce_scatter": true,
    "reduce_bucket_size": 5e8,
    "overlap_comm": false,
    "contiguous_gradients": true
  }
})";

/// A misspelt key beside a harmless block (DeepSpeed #1809).
inline constexpr char kTopLevelTypo[] = R"({
    "train_batch_size": 4,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_cliping": 1.0,
    "optimizer": { "type": "AdamW", "params": { "lr": 0.1 } },
    "zero_optimization": { "stage": 1 },
    "comms_logger": { "enabled": false }
})";

/// Clipping among the optimizer's parameters (DeepSpeed #756).
inline constexpr char kMaxGradNorm[] = R"({
  "train_batch_size": 4,
  "train_micro_batch_size_per_gpu": 2,
  "steps_per_print": 1,
  "zero_optimization": {
    "stage": 1,
    "allgather_partitions": true,
    "reduce_scatter": true,
    "allgather_bucket_size": 50000000,
    "reduce_bucket_size": 50000000,
    "overlap_comm": true
  },
  "optimizer": {
    "type": "Adam",
    "params": {
      "lr": 0.00015,
      "max_grad_norm": 1.0,
      "betas": [0.9, 0.95]
    }
  },
  "gradient_clipping": 1.0,
  "wall_clock_breakdown": false
})";

/// The offload block inside itself (Megatron-DeepSpeed #71).
inline constexpr char kDoubleNestedOffload[] = R"({
  "train_batch_size": 4,
  "train_micro_batch_size_per_gpu": 2,
  "optimizer": { "type": "AdamW", "params": { "lr": 1e-4 } },
  "zero_optimization": {
    "stage": 1,
    "offload_optimizer": {
      "offload_optimizer": {
        "device": "cpu",
        "nvme_path": "/local_nvme",
        "pin_memory": false,
        "buffer_count": 4,
        "fast_init": false
      }
    }
  }
})";

/// 8 = 2 · 1 · ranks needs four ranks (DeepSpeed #6914).
inline constexpr char kBatchTriad[] = R"({
  "train_batch_size": 8,
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 1,
  "optimizer": { "type": "AdamW", "params": { "lr": 1e-4 } },
  "zero_optimization": { "stage": 1 }
})";

/// The stage left to a trainer (accelerate #1644).
inline constexpr char kStageAuto[] = R"({
  "train_batch_size": 4,
  "train_micro_batch_size_per_gpu": 2,
  "bf16": { "enabled": true },
  "optimizer": { "type": "AdamW", "params": { "lr": 1e-4 } },
  "zero_optimization": {
    "stage": "auto",
    "reduce_bucket_size": "auto",
    "overlap_comm": "auto",
    "contiguous_gradients": true
  }
})";

/// The boolean form of the first releases.
inline constexpr char kBooleanZero[] = R"({
  "train_batch_size": 4,
  "train_micro_batch_size_per_gpu": 2,
  "optimizer": { "type": "Adam", "params": { "lr": 1e-4, "weight_decay": 0.01 } },
  "zero_optimization": true,
  "allgather_size": 500000000,
  "disable_allgather": true
})";

/// WarmupLR with a step count only (DeepSpeed #7303).
inline constexpr char kWarmupWithoutPeak[] = R"({
  "train_batch_size": 2,
  "train_micro_batch_size_per_gpu": 1,
  "optimizer": { "type": "AdamW", "params": { "lr": 5e-5, "betas": [0.9, 0.999], "eps": 1e-8 } },
  "scheduler": {
    "type": "WarmupLR",
    "params": { "warmup_num_steps": 2 }
  },
  "zero_optimization": { "stage": 1 }
})";

}  // namespace zerosharp::testing
