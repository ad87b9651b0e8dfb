// Reduction of ranks' slices. Bytes per element: (number of sources + 1) · element size.
#include "kernels/cuda/entry.h"
#include "kernels/cuda/launch.cuh"

namespace zerosharp::kernels::cuda {
namespace {

constexpr int kMaxSources = 64;

struct Sources {
  const void* pointers[kMaxSources];
};

template <class T>
struct Arithmetic {
  using Type = float;
  static __device__ float in(T value) { return to_float(value); }
  static __device__ T out(float value) { return from_float<T>(value); }
};
template <class T>
struct Plain {
  using Type = T;
  static __device__ T in(T value) { return value; }
  static __device__ T out(T value) { return value; }
};
template <>
struct Arithmetic<double> : Plain<double> {};
template <>
struct Arithmetic<int64_t> : Plain<int64_t> {};

template <class T>
__global__ void __launch_bounds__(kThreads)
    reduce_kernel(Sources sources, int num_sources, ReduceOp op, int64_t numel, T* dst) {
  using A = Arithmetic<T>;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= numel) return;
  typename A::Type total = A::in(static_cast<const T*>(sources.pointers[0])[i]);
  for (int s = 1; s < num_sources; ++s) {
    const typename A::Type value = A::in(static_cast<const T*>(sources.pointers[s])[i]);
    if (op == ReduceOp::kMax) {
      total = value > total ? value : total;
    } else if (op == ReduceOp::kMin) {
      total = value < total ? value : total;
    } else {
      total = total + value;
    }
  }
  if (op == ReduceOp::kMean) total = total / static_cast<typename A::Type>(num_sources);
  dst[i] = A::out(total);
}

template <class T>
void launch(const Sources& sources, int num_sources, ReduceOp op, int64_t numel, void* dst,
            Stream stream) {
  reduce_kernel<T><<<blocks_for(numel), kThreads, 0, native(stream)>>>(sources, num_sources, op,
                                                                       numel, static_cast<T*>(dst));
  ZS_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void reduce_slices(const void* const* sources, int num_sources, ReduceOp op, DType dtype,
                   int64_t numel, void* dst, Stream stream) {
  if (num_sources > kMaxSources) {
    fail_config("reduce_slices: at most ", kMaxSources, " sources on CUDA, got ", num_sources);
  }
  Sources all;
  for (int s = 0; s < num_sources; ++s) all.pointers[s] = sources[s];
  if (dtype == DType::kF64) return launch<double>(all, num_sources, op, numel, dst, stream);
  if (dtype == DType::kI64) return launch<int64_t>(all, num_sources, op, numel, dst, stream);
  with_type(dtype, [&]<class T>(T*) { launch<T>(all, num_sources, op, numel, dst, stream); });
}

}  // namespace zerosharp::kernels::cuda
