// The CUDA side of each kernel. Without CUDA in the build the functions throw CudaError.
#pragma once
#include "kernels/optimizer_element.h"
#include "kernels/perturb.h"
#include "kernels/reduce.h"
#include "kernels/stream.h"

namespace zerosharp::kernels::cuda {

void optimizer_step(const OptimizerShard& shard, OptimizerKind kind, const UpdateNumbers& numbers,
                    const float* grad_scale, Stream stream);
void sum_squares(const void* x, DType dtype, int64_t numel, double* sums, double* workspace,
                 Stream stream);
void clip_scale(const double* sums, double pre_scale, double max_norm, float* out, Stream stream);
void ascent_scale(const double* sums, double pre_scale, double rho, double eps, float* out,
                  Stream stream);
void perturb(const PerturbShard& shard, const PerturbStep& step, double* stats, double* workspace,
             Stream stream);
void sum_squares_weighted(const PerturbShard& shard, Weighting weighting, float shift, double* sums,
                          double* workspace, Stream stream);
void dots(const void* x, DType x_dtype, const float* y, int64_t numel, double* sums,
          double* workspace, Stream stream);
void mix(void* x, DType x_dtype, float* y, int64_t numel, const float* matrix, Stream stream);
void cast(const void* src, DType src_dtype, void* dst, DType dst_dtype, int64_t numel,
          Stream stream);
void scaled_add(void* dst, DType dst_dtype, const void* src, DType src_dtype, float scale,
                int64_t numel, Stream stream);
void set_zero(void* dst, int64_t bytes, Stream stream);
void copy_bytes(void* dst, const void* src, int64_t bytes, Stream stream);
void reduce_slices(const void* const* sources, int num_sources, ReduceOp op, DType dtype,
                   int64_t numel, void* dst, Stream stream);

}  // namespace zerosharp::kernels::cuda
