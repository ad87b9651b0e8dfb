// Conversions and accumulation. Bytes per element: cast source + destination; scaled_add source +
// twice the destination.
#include "kernels/cuda/entry.h"
#include "kernels/cuda/launch.cuh"

namespace zerosharp::kernels::cuda {
namespace {

template <bool kAdd, class S, class D>
__device__ __forceinline__ D combine(S source, D old, float scale) {
  if constexpr (kAdd) return from_float<D>(to_float(old) + scale * to_float(source));
  return from_float<D>(to_float(source));
}

/// dst ← src, or dst + scale · src.
template <bool kAdd, class S, class D>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(int64_t numel, const S* src, D* dst, float scale, bool wide) {
  const int64_t begin = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kPack;
  if (begin >= numel) return;
  if (!wide || begin + kPack > numel) {
    for (int64_t i = begin; i < begin + kPack && i < numel; ++i) {
      dst[i] = combine<kAdd>(src[i], dst[i], scale);
    }
    return;
  }
  const Pack<S> in = load(src + begin);
  Pack<D> out;
  if constexpr (kAdd) out = load(dst + begin);
#pragma unroll
  for (int i = 0; i < kPack; ++i) out.v[i] = combine<kAdd>(in.v[i], out.v[i], scale);
  store(dst + begin, out);
}

template <bool kAdd>
void launch(const void* src, DType src_dtype, void* dst, DType dst_dtype, float scale,
            int64_t numel, Stream stream) {
  const bool wide = aligned(src) && aligned(dst);
  const unsigned blocks = blocks_for((numel + kPack - 1) / kPack);
  with_type(src_dtype, [&]<class S>(S*) {
    with_type(dst_dtype, [&]<class D>(D*) {
      combine_kernel<kAdd><<<blocks, kThreads, 0, native(stream)>>>(
          numel, static_cast<const S*>(src), static_cast<D*>(dst), scale, wide);
    });
  });
  ZS_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void cast(const void* src, DType src_dtype, void* dst, DType dst_dtype, int64_t numel,
          Stream stream) {
  launch<false>(src, src_dtype, dst, dst_dtype, 1.0f, numel, stream);
}

void scaled_add(void* dst, DType dst_dtype, const void* src, DType src_dtype, float scale,
                int64_t numel, Stream stream) {
  launch<true>(src, src_dtype, dst, dst_dtype, scale, numel, stream);
}

void set_zero(void* dst, int64_t bytes, Stream stream) {
  ZS_CUDA_CHECK(cudaMemsetAsync(dst, 0, static_cast<size_t>(bytes), native(stream)));
}

void copy_bytes(void* dst, const void* src, int64_t bytes, Stream stream) {
  ZS_CUDA_CHECK(cudaMemcpyAsync(dst, src, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice,
                                native(stream)));
}

}  // namespace zerosharp::kernels::cuda
