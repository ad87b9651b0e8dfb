// Sums and linear maps of two vectors. Bytes per element with x bf16: dots reads 6; mix reads 6 and
// writes 6.
#include "kernels/cuda/entry.h"
#include "kernels/cuda/launch.cuh"

namespace zerosharp::kernels::cuda {
namespace {

template <class T>
__global__ void __launch_bounds__(kThreads)
    dots_kernel(const T* x, const float* y, int64_t numel, bool wide, double* workspace) {
  const int64_t step = int64_t{gridDim.x} * kThreads * kPack;
  Sums mine;
  const auto add = [&](float xi, float yi) {
    mine.v[0] += double{xi} * double{yi};
    mine.v[1] += double{xi} * double{xi};
    mine.v[2] += double{yi} * double{yi};
  };
  for (int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kPack; at < numel;
       at += step) {
    if (wide && at + kPack <= numel) {
      const Pack<T> xs = load(x + at);
      const Pack<float> ys = load(y + at);
#pragma unroll
      for (int i = 0; i < kPack; ++i) add(to_float(xs.v[i]), ys.v[i]);
    } else {
      for (int64_t i = at; i < at + kPack && i < numel; ++i) add(to_float(x[i]), y[i]);
    }
  }
  const Sums total = block_sum(mine);
  if (threadIdx.x == 0) {
    for (int k = 0; k < 3; ++k) workspace[3 * blockIdx.x + k] = total.v[k];
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    mix_kernel(T* x, float* y, int64_t numel, const float* matrix, bool wide) {
  const float a = matrix[0], b = matrix[1], c = matrix[2], d = matrix[3];
  const int64_t begin = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kPack;
  if (isnan(a) || begin >= numel) return;
  if (!wide || begin + kPack > numel) {
    for (int64_t i = begin; i < begin + kPack && i < numel; ++i) {
      const float xi = to_float(x[i]);
      const float yi = y[i];
      x[i] = from_float<T>(mixed(xi, yi, a, b));
      y[i] = mixed(yi, xi, d, c);
    }
    return;
  }
  Pack<T> xs = load(x + begin);
  Pack<float> ys = load(y + begin);
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    const float xi = to_float(xs.v[i]);
    const float yi = ys.v[i];
    xs.v[i] = from_float<T>(mixed(xi, yi, a, b));
    ys.v[i] = mixed(yi, xi, d, c);
  }
  store(x + begin, xs);
  store(y + begin, ys);
}

}  // namespace

void dots(const void* x, DType x_dtype, const float* y, int64_t numel, double* sums,
          double* workspace, Stream stream) {
  const unsigned blocks = reduction_blocks(numel);
  with_type(x_dtype, [&]<class T>(T*) {
    dots_kernel<T><<<blocks, kThreads, 0, native(stream)>>>(static_cast<const T*>(x), y, numel,
                                                            aligned(x) && aligned(y), workspace);
  });
  ZS_CUDA_CHECK(cudaGetLastError());
  add_partials<<<1, kThreads, 0, native(stream)>>>(workspace, static_cast<int>(blocks), sums, 3);
  ZS_CUDA_CHECK(cudaGetLastError());
}

void mix(void* x, DType x_dtype, float* y, int64_t numel, const float* matrix, Stream stream) {
  const unsigned blocks = blocks_for((numel + kPack - 1) / kPack);
  with_type(x_dtype, [&]<class T>(T*) {
    mix_kernel<T><<<blocks, kThreads, 0, native(stream)>>>(static_cast<T*>(x), y, numel, matrix,
                                                           aligned(x) && aligned(y));
  });
  ZS_CUDA_CHECK(cudaGetLastError());
}

}  // namespace zerosharp::kernels::cuda
