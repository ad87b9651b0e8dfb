// The resolved configuration: what a run will do, after the file, the overrides and the defaults
// have been merged and checked. Plain data; no tensor library.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/composer_schedule_config.h"
#include "engine/config/time_string.h"
#include "kernels/dtype.h"
#include "kernels/optimizer_step.h"
#include "kernels/perturb.h"

namespace zerosharp {

struct BatchConfig {
  int64_t train_batch_size =
      0;  ///< samples per optimizer step over all ranks = micro · accumulation · ranks
  int64_t micro_batch_size = 0;  ///< samples per rank and forward pass
  int64_t accumulation_steps = 1;
};

struct OptimizerConfig {
  kernels::OptimizerKind kind = kernels::OptimizerKind::kAdamW;
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  double momentum = 0.0;
  double dampening = 0.0;
  bool nesterov = false;
  bool decoupled_decay = false;
  double lr_decay = 0.0;
  bool bias_correction = true;
  bool scheduled_decay = false;  ///< Composer's Decoupled…W: decay of lr/initial_lr · weight_decay
};

enum class ScheduleKind : uint8_t {
  kConstant,
  kLinear,
  kCosine,
  kWarmupLR,
  kWarmupDecayLR,
  kWarmupCosineLR,
  kOneCycle,
  kComposer  ///< scheduler.name
};

/// Parameters of every schedule kind; a kind reads its own (engine/schedule.h says which).
struct SchedulerConfig {
  ScheduleKind kind = ScheduleKind::kConstant;
  // constant, linear, cosine: multiplier of each group's initial lr
  int64_t warmup_steps = 0;  ///< LR warm-up: linear from 0
  int64_t total_steps = 0;   ///< end of the decay; 0 = train.steps
  double alpha_f = 0.0;      ///< final multiplier
  // DeepSpeed's
  double warmup_min_lr = 0.0;
  std::optional<double> warmup_max_lr;  ///< empty: each group's own lr
  int64_t warmup_num_steps = 1000;
  bool warmup_log = true;  ///< warmup_type "log" (else "linear")
  int64_t total_num_steps = 0;
  double warmup_min_ratio = 0.0;
  double cos_min_ratio = 1e-4;
  // OneCycle
  double cycle_min_lr = 0.0;
  double cycle_max_lr = 0.0;
  double decay_lr_rate = 0.0;
  int64_t cycle_first_step_size = 2000;
  std::optional<int64_t> cycle_second_step_size;
  int64_t cycle_first_stair_count = 0;
  std::optional<int64_t> cycle_second_stair_count;
  int64_t decay_step_size = 0;
  bool cycle_momentum = true;
  double cycle_min_mom = 0.8;
  double cycle_max_mom = 0.9;
  double decay_mom_rate = 0.0;
  // Composer's
  ComposerScheduleConfig composer;
  /// lr_compat "composer": batch b trains with the value of batch max(0, b − 1).
  bool composer_lag = false;
};

/// The section "sam.rho_scheduler": ρ of a step.
struct RhoScheduleConfig {
  /// GSAM (Zhuang et al. 2022, arXiv 2203.08065, section 4.3):
  /// ρ = rho_min + (rho − rho_min)·(lr − lr_min)/(lr_max − lr_min).
  bool linear_in_lr = false;
  double rho_min = 0;
  double lr_min = 0;
  std::optional<double> lr_max;     ///< empty: initial lr of group 0
  ComposerScheduleConfig schedule;  ///< else ρ = rho·α
};

/// Whose gradient the perturbation follows.
enum class SamScope : uint8_t {
  kGlobal,  ///< of the whole batch
  kGroup,   ///< of `group_size` ranks
  kLocal,   ///< of each rank
  kMicro    ///< of each micro-batch
};

enum class SamVariant : uint8_t {
  kSam,
  kAsam,
  kMsam,
  kGsam,
  kFsam,
  kVasso,
  kPreconditioned,
  kAeSam,
  kLookSam
};

/// "sam", "asam", …: the names of sam.variant.
const char* sam_variant_name(SamVariant variant) noexcept;

enum class SamRounding : uint8_t {
  kAuto,  ///< stochastic where the base is a value of the working dtype, else nearest
  kNearest,
  kStochastic
};

/// The section "sam"; docs/sam.md explains the methods. A variant reads its own coefficients only.
struct SamConfig {
  bool enabled = false;
  SamScope scope = SamScope::kGlobal;
  SamVariant variant = SamVariant::kSam;
  SamRounding rounding = SamRounding::kAuto;
  bool same_rng = true;
  bool freeze_bn = true;
  bool skip_when_lr_zero = false;  ///< one pass where every group's lr is 0
  bool report_cosine = false;      ///< cos(g, g₂); keeps one more fp32 shard
  double rho = 0.05;
  double epsilon = 1e-12;
  int64_t interval = 1;
  int64_t group_size = 0;           ///< ranks of a group (scope group); 0: those of a machine
  double ascent_fraction = 1.0;     ///< share of the micro-batches the first pass takes
  std::vector<std::string> params;  ///< "norm" or regular expressions; empty: all parameters
  int64_t start_step = 0;           ///< first step (from 0) that may perturb
  int64_t end_step = 0;             ///< first step that no longer does; 0: none
  std::optional<Time> start;        ///< sets start_step once the clock of the run is known
  std::optional<Time> end;          ///< … and end_step
  std::optional<RhoScheduleConfig> rho_scheduler;
  double eta = 0.01;             ///< ASAM: t = |w| + eta
  double alpha = 0.4;            ///< GSAM, LookSAM: weight of the orthogonal part
  double sigma = 1.0;            ///< F-SAM: share of the mean gradient that is taken out
  double decay = 0.9;            ///< F-SAM's λ and AE-SAM's δ: decay of the means
  double theta = 0.4;            ///< VaSSO: weight of the new gradient in the mean
  double delta = 1e-8;           ///< preconditioned: added to √v
  double threshold_start = 1.0;  ///< AE-SAM: standard deviations above the mean that ‖g‖² …
  double threshold_end = -1.0;   ///< … must reach, linear over train.steps
  int64_t k = 5;                 ///< LookSAM: two passes every k-th step
};

struct Fp16Config {
  double loss_scale = 0.0;  ///< 0: dynamic
  int64_t initial_scale_power = 16;
  int64_t loss_scale_window = 1000;
  int64_t hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1.0;
};

struct ModelConfig {
  std::string type = "gpt";  ///< gpt | mlp | resnet
  // gpt
  int64_t n_layer = 4;
  int64_t n_head = 4;
  int64_t n_embd = 128;
  int64_t block_size = 128;
  int64_t vocab_size = 256;
  double dropout = 0.0;
  bool bias = true;
  bool tied_head = true;
  // mlp
  std::vector<int64_t> hidden_sizes = {128, 128};
  // resnet
  int64_t width = 16;
  int64_t blocks_per_stage = 2;
};

struct DataConfig {
  std::string type = "text";  ///< text | fashion_mnist
  std::vector<std::string> paths;
  std::string test_path;              ///< optional separate evaluation source
  double validation_fraction = 0.05;  ///< text: share of each file, at its end, kept for evaluation
  bool shuffle = true;
};

struct TrainConfig {
  int64_t steps = 0;                 ///< 0: from max_duration, by the engine
  std::optional<Time> max_duration;  ///< of the run, before scale_schedule_ratio
  double scale_schedule_ratio = 1;
  int64_t seed = 0;
  int64_t eval_interval = 0;    ///< 0: only at the end
  int64_t eval_batches = 16;    ///< micro-batches a rank per evaluation
  std::string device = "auto";  ///< auto | cpu | cuda
  int64_t threads = 0;          ///< CPU threads a rank; 0: cores / local ranks
  int64_t log_interval = 1;
  int64_t sample_length = 200;  ///< bytes of generated text at the end; 0: none
};

struct Config {
  std::string source;  ///< path of the file, for messages
  BatchConfig batch;
  double gradient_clipping = 1.0;  ///< 0: off
  DType precision = DType::kF32;   ///< of the working weights
  std::optional<DType> grad_accum_dtype;
  std::optional<DType> communication_dtype;
  int64_t zero_stage = 0;
  std::string offload_optimizer_device = "none";  ///< none | cpu
  OptimizerConfig optimizer;
  std::optional<SchedulerConfig> scheduler;
  SamConfig sam;
  Fp16Config fp16;
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  std::vector<std::string> warnings;  ///< one line each, to be printed once by rank 0
  std::string resolved_json;          ///< every effective key, pretty-printed
};

/// Reads `path`, applies `overrides` ("key.path=value", later ones win), resolves defaults and the
/// batch arithmetic for `world_size` ranks. Throws ConfigError (file:line: path: what, value,
/// remedy). Opens nothing but `path`.
Config load_config(const std::string& path, const std::vector<std::string>& overrides,
                   int world_size);

/// The same from text; `source` names it in messages.
Config parse_config(const std::string& text, const std::string& source,
                    const std::vector<std::string>& overrides, int world_size);

}  // namespace zerosharp
