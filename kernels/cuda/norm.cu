// Gradient norm and the factors derived from it. Bytes per element: 2 (bf16, fp16) or 4 (fp32),
// read.
#include "kernels/cuda/entry.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/scale.h"

namespace zerosharp::kernels::cuda {
namespace {

__device__ __forceinline__ void add_square(Sums& sums, float value) {
  sums.v[0] += double{value} * double{value};
  sums.v[1] += (bits_of(value) & 0x7f800000u) == 0x7f800000u ? 1.0 : 0.0;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_squares_kernel(const T* x, int64_t numel, bool wide, double* workspace) {
  const int64_t step = int64_t{gridDim.x} * kThreads * kPack;
  Sums mine;
  for (int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kPack; at < numel;
       at += step) {
    if (wide && at + kPack <= numel) {
      const Pack<T> pack = load(x + at);
#pragma unroll
      for (int i = 0; i < kPack; ++i) add_square(mine, to_float(pack.v[i]));
    } else {
      for (int64_t i = at; i < at + kPack && i < numel; ++i) add_square(mine, to_float(x[i]));
    }
  }
  const Sums total = block_sum(mine);
  if (threadIdx.x == 0) {
    for (int k = 0; k < 3; ++k) workspace[3 * blockIdx.x + k] = total.v[k];
  }
}

__global__ void clip_kernel(const double* sums, double pre_scale, double max_norm, float* out) {
  const ScalePair pair = clip_pair(sums[0], sums[1], pre_scale, max_norm);
  out[0] = pair.scale;
  out[1] = pair.norm;
}

__global__ void ascent_kernel(const double* sums, double pre_scale, double rho, double eps,
                              float* out) {
  const ScalePair pair = ascent_pair(sums[0], sums[1], pre_scale, rho, eps);
  out[0] = pair.scale;
  out[1] = pair.norm;
}

}  // namespace

void sum_squares(const void* x, DType dtype, int64_t numel, double* sums, double* workspace,
                 Stream stream) {
  const unsigned blocks = reduction_blocks(numel);
  with_type(dtype, [&]<class T>(T*) {
    sum_squares_kernel<T><<<blocks, kThreads, 0, native(stream)>>>(static_cast<const T*>(x), numel,
                                                                   aligned(x), workspace);
  });
  ZS_CUDA_CHECK(cudaGetLastError());
  add_partials<<<1, kThreads, 0, native(stream)>>>(workspace, static_cast<int>(blocks), sums, 2);
  ZS_CUDA_CHECK(cudaGetLastError());
}

void clip_scale(const double* sums, double pre_scale, double max_norm, float* out, Stream stream) {
  clip_kernel<<<1, 1, 0, native(stream)>>>(sums, pre_scale, max_norm, out);
  ZS_CUDA_CHECK(cudaGetLastError());
}

void ascent_scale(const double* sums, double pre_scale, double rho, double eps, float* out,
                  Stream stream) {
  ascent_kernel<<<1, 1, 0, native(stream)>>>(sums, pre_scale, rho, eps, out);
  ZS_CUDA_CHECK(cudaGetLastError());
}

}  // namespace zerosharp::kernels::cuda
