// The public functions: checks, choice of device, and the CPU side's split into threads and blocks.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cast.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/passes.h"
#include "kernels/cuda/entry.h"
#include "kernels/error.h"
#include "kernels/mix.h"
#include "kernels/norm.h"
#include "kernels/optimizer_step.h"
#include "kernels/perturb.h"
#include "kernels/reduce.h"
#include "kernels/scale.h"

namespace zerosharp {

bool built_with_cuda() noexcept {
#ifdef ZEROSHARP_CUDA
  return true;
#else
  return false;
#endif
}

namespace kernels {
namespace {

constexpr int64_t kBlock = 64 * 1024;  // elements of one partial sum, whatever the thread count

void require_float(DType dtype, const std::string& what) {
  if (dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16) return;
  fail_config(what, " must be fp32, bf16 or fp16, got ", dtype_name(dtype));
}

void require(const void* pointer, const char* what) {
  if (pointer == nullptr) fail_config("kernels: ", what, " is null");
}

/// Runs `partial` on each block of [0, numel) and adds the results up in block order.
template <class Partial>
cpu::BlockSums sum_blocks(int64_t numel, Partial partial) {
  const int64_t blocks = (numel + kBlock - 1) / kBlock;
  constexpr int64_t kFew = 64;
  cpu::BlockSums few[kFew];  // no allocation for shards of up to 4 Mi elements
  std::vector<cpu::BlockSums> many;
  if (blocks > kFew) many.resize(static_cast<size_t>(blocks));
  cpu::BlockSums* sums = blocks > kFew ? many.data() : few;
  cpu::parallel_for(blocks, [&](int64_t block) {
    const int64_t begin = block * kBlock;
    sums[block] = partial(begin, std::min(numel, begin + kBlock));
  });
  cpu::BlockSums total;
  for (int64_t block = 0; block < blocks; ++block) {
    total.first += sums[block].first;
    total.second += sums[block].second;
    total.third += sums[block].third;
  }
  return total;
}

void check_perturbed(const PerturbShard& shard, Weighting weighting, const std::string& kernel) {
  require_float(shard.grad_dtype, kernel + ": the gradient");
  require_float(shard.weight_dtype, kernel + ": the working weight");
  require(shard.grad, "the gradient");
  require(shard.weight, "the working weight");
  if (weighting == Weighting::kPreconditioned) require(shard.second_moment, "the second moment");
}

}  // namespace

const char* optimizer_name(OptimizerKind kind) noexcept {
  switch (kind) {
    case OptimizerKind::kAdamW:
      return "AdamW";
    case OptimizerKind::kAdam:
      return "Adam (L2)";
    case OptimizerKind::kSgd:
      return "SGD";
    case OptimizerKind::kLion:
      return "Lion";
    case OptimizerKind::kAdagrad:
      return "Adagrad";
  }
  return "?";
}

int num_states(OptimizerKind kind, double momentum) noexcept {
  switch (kind) {
    case OptimizerKind::kAdamW:
    case OptimizerKind::kAdam:
      return 2;
    case OptimizerKind::kLion:
    case OptimizerKind::kAdagrad:
      return 1;
    case OptimizerKind::kSgd:
      return momentum != 0 ? 1 : 0;
  }
  return 0;
}

UpdateNumbers update_numbers(const OptimizerStep& s) {
  UpdateNumbers n;
  const bool decoupled = s.kind == OptimizerKind::kAdamW || s.kind == OptimizerKind::kLion ||
                         (s.kind == OptimizerKind::kSgd && s.decoupled_decay);
  const double decay_rate = std::isnan(s.decay_rate) ? s.lr : s.decay_rate;
  n.decay = decoupled ? static_cast<float>(1.0 - decay_rate * s.weight_decay) : 1.0f;
  n.l2 = decoupled ? 0.0f : static_cast<float>(s.weight_decay);
  n.beta1 = static_cast<float>(s.beta1);
  n.one_minus_beta1 = static_cast<float>(1.0 - s.beta1);
  n.beta2 = static_cast<float>(s.beta2);
  n.one_minus_beta2 = static_cast<float>(1.0 - s.beta2);
  n.eps = static_cast<float>(s.eps);
  n.momentum = static_cast<float>(s.momentum);
  n.one_minus_dampening = static_cast<float>(1.0 - s.dampening);
  n.nesterov = s.nesterov;
  n.first_step = s.step == 1;
  double rate = s.lr;
  const auto step = static_cast<double>(s.step);
  if (s.kind == OptimizerKind::kAdamW || s.kind == OptimizerKind::kAdam) {
    if (s.bias_correction) {
      rate = s.lr / (1.0 - std::pow(s.beta1, step));
      n.inv_sqrt_bias2 = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(s.beta2, step)));
    }
  } else if (s.kind == OptimizerKind::kAdagrad) {
    rate = s.lr / (1.0 + (step - 1.0) * s.lr_decay);
  }
  n.rate = static_cast<float>(rate);
  return n;
}

void optimizer_step(const OptimizerShard& shard, const OptimizerStep& step, Stream stream) {
  if (shard.numel == 0) return;
  require_float(shard.grad_dtype, "optimizer_step: the gradient");
  require_float(shard.weight_dtype, "optimizer_step: the working weight");
  require(shard.grad, "the gradient");
  require(shard.master, "the master");
  require(shard.weight, "the working weight");
  const int states = num_states(step.kind, step.momentum);
  if (states >= 1) require(shard.state0, "the first optimizer state");
  if (states >= 2) require(shard.state1, "the second optimizer state");
  if (step.step < 1) fail_config("optimizer_step: step must be at least 1, got ", step.step);

  const UpdateNumbers numbers = update_numbers(step);
  if (stream.cuda) {
    return cuda::optimizer_step(shard, step.kind, numbers, step.grad_scale, stream);
  }
  const float scale = step.grad_scale != nullptr ? *step.grad_scale : 1.0f;
  if (std::isnan(scale)) {
    return cast(shard.master, DType::kF32, shard.weight, shard.weight_dtype, shard.numel, stream);
  }
  cpu::parallel_runs(shard.numel, [&](int64_t begin, int64_t end) {
    cpu::passes().optimizer(shard, step.kind, numbers, scale, begin, end);
  });
}

void sum_squares(const void* x, DType dtype, int64_t numel, double* sums, double* workspace,
                 Stream stream) {
  if (numel == 0) return;
  require_float(dtype, "sum_squares: x");
  if (stream.cuda) return cuda::sum_squares(x, dtype, numel, sums, workspace, stream);
  const cpu::BlockSums total = sum_blocks(numel, [&](int64_t begin, int64_t end) {
    return cpu::passes().sum_squares(x, dtype, begin, end);
  });
  sums[0] += total.first;
  sums[1] += total.second;
}

void clip_scale(const double* sums, double pre_scale, double max_norm, float* out, Stream stream) {
  if (stream.cuda) return cuda::clip_scale(sums, pre_scale, max_norm, out, stream);
  const ScalePair pair = clip_pair(sums[0], sums[1], pre_scale, max_norm);
  out[0] = pair.scale;
  out[1] = pair.norm;
}

void ascent_scale(const double* sums, double pre_scale, double rho, double eps, float* out,
                  Stream stream) {
  if (stream.cuda) return cuda::ascent_scale(sums, pre_scale, rho, eps, out, stream);
  const ScalePair pair = ascent_pair(sums[0], sums[1], pre_scale, rho, eps);
  out[0] = pair.scale;
  out[1] = pair.norm;
}

void perturb(const PerturbShard& shard, const PerturbStep& step, double* stats, double* workspace,
             Stream stream) {
  if (shard.numel == 0) return;
  check_perturbed(shard, step.weighting, "perturb");
  require(step.scale, "the ascent factor");
  if (stream.cuda) return cuda::perturb(shard, step, stats, workspace, stream);
  const float scale = *step.scale;
  if (std::isnan(scale)) return;
  const cpu::BlockSums total = sum_blocks(shard.numel, [&](int64_t begin, int64_t end) {
    return cpu::passes().perturb(shard, step, scale, begin, end);
  });
  stats[0] += total.first;
  stats[1] += total.second;
  stats[2] += total.third;
}

void sum_squares_weighted(const PerturbShard& shard, Weighting weighting, float shift, double* sums,
                          double* workspace, Stream stream) {
  if (shard.numel == 0) return;
  if (weighting == Weighting::kNone) {
    return sum_squares(shard.grad, shard.grad_dtype, shard.numel, sums, workspace, stream);
  }
  check_perturbed(shard, weighting, "sum_squares_weighted");
  if (stream.cuda) {
    return cuda::sum_squares_weighted(shard, weighting, shift, sums, workspace, stream);
  }
  const cpu::BlockSums total = sum_blocks(shard.numel, [&](int64_t begin, int64_t end) {
    return cpu::passes().sum_squares_weighted(shard, weighting, shift, begin, end);
  });
  sums[0] += total.first;
  sums[1] += total.second;
  sums[2] += total.third;
}

void dots(const void* x, DType x_dtype, const float* y, int64_t numel, double* sums,
          double* workspace, Stream stream) {
  if (numel == 0) return;
  require_float(x_dtype, "dots: x");
  if (stream.cuda) return cuda::dots(x, x_dtype, y, numel, sums, workspace, stream);
  const cpu::BlockSums total = sum_blocks(numel, [&](int64_t begin, int64_t end) {
    return cpu::passes().dots(x, x_dtype, y, begin, end);
  });
  sums[0] += total.first;
  sums[1] += total.second;
  sums[2] += total.third;
}

void mix(void* x, DType x_dtype, float* y, int64_t numel, const float* matrix, Stream stream) {
  if (numel == 0) return;
  require_float(x_dtype, "mix: x");
  if (stream.cuda) return cuda::mix(x, x_dtype, y, numel, matrix, stream);
  if (std::isnan(matrix[0])) return;
  cpu::parallel_runs(numel, [&](int64_t begin, int64_t end) {
    cpu::passes().mix(x, x_dtype, y, matrix, begin, end);
  });
}

void cast(const void* src, DType src_dtype, void* dst, DType dst_dtype, int64_t numel,
          Stream stream) {
  if (numel == 0) return;
  require_float(src_dtype, "cast: the source");
  require_float(dst_dtype, "cast: the destination");
  if (stream.cuda) return cuda::cast(src, src_dtype, dst, dst_dtype, numel, stream);
  cpu::parallel_runs(numel, [&](int64_t begin, int64_t end) {
    cpu::passes().cast(src, src_dtype, dst, dst_dtype, begin, end);
  });
}

void scaled_add(void* dst, DType dst_dtype, const void* src, DType src_dtype, float scale,
                int64_t numel, Stream stream) {
  if (numel == 0) return;
  require_float(src_dtype, "scaled_add: the source");
  require_float(dst_dtype, "scaled_add: the destination");
  if (stream.cuda) return cuda::scaled_add(dst, dst_dtype, src, src_dtype, scale, numel, stream);
  cpu::parallel_runs(numel, [&](int64_t begin, int64_t end) {
    cpu::passes().scaled_add(dst, dst_dtype, src, src_dtype, scale, begin, end);
  });
}

void set_zero(void* dst, int64_t bytes, Stream stream) {
  if (bytes == 0) return;
  if (stream.cuda) return cuda::set_zero(dst, bytes, stream);
  std::memset(dst, 0, static_cast<size_t>(bytes));
}

void copy_bytes(void* dst, const void* src, int64_t bytes, Stream stream) {
  if (bytes == 0 || dst == src) return;
  if (stream.cuda) return cuda::copy_bytes(dst, src, bytes, stream);
  std::memcpy(dst, src, static_cast<size_t>(bytes));
}

void reduce_slices(const void* const* sources, int num_sources, ReduceOp op, DType dtype,
                   int64_t numel, void* dst, Stream stream) {
  if (num_sources < 1) fail_config("reduce_slices: needs a source, got ", num_sources);
  if (op == ReduceOp::kMean && dtype == DType::kI64) {
    fail_config("reduce_slices: the mean of int64 values is not defined; use the sum");
  }
  if (numel == 0) return;
  if (stream.cuda) return cuda::reduce_slices(sources, num_sources, op, dtype, numel, dst, stream);
  cpu::parallel_runs(numel, [&](int64_t begin, int64_t end) {
    cpu::passes().reduce(sources, num_sources, op, dtype, dst, begin, end);
  });
}

}  // namespace kernels
}  // namespace zerosharp
