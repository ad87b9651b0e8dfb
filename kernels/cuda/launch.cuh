// Shapes of launches and wide memory access shared by the CUDA kernels.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/check.h"
#include "kernels/dtype.h"
#include "kernels/element.h"
#include "kernels/stream.h"

namespace zerosharp::kernels::cuda {

constexpr int kThreads = 256;
constexpr int kPack = 8;  // elements a thread handles at a time: 16 bytes of bf16, 32 of fp32

inline cudaStream_t native(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

inline unsigned blocks_for(int64_t items) {
  return static_cast<unsigned>((items + kThreads - 1) / kThreads);
}

inline bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

/// Eight consecutive elements, moved as 16-byte words.
template <class T>
struct alignas(16) Pack {
  T v[kPack];
};

template <class T>
__device__ __forceinline__ Pack<T> load(const T* from) {
  Pack<T> pack;
  const auto* words = reinterpret_cast<const uint4*>(from);
  auto* into = reinterpret_cast<uint4*>(&pack);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(Pack<T>) / 16); ++i) into[i] = words[i];
  return pack;
}

template <class T>
__device__ __forceinline__ void store(T* to, const Pack<T>& pack) {
  auto* words = reinterpret_cast<uint4*>(to);
  const auto* from = reinterpret_cast<const uint4*>(&pack);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(Pack<T>) / 16); ++i) words[i] = from[i];
}

// --- Deterministic sums of up to three numbers
// -----------------------------------------------------

struct Sums {
  double v[3] = {0, 0, 0};
};

/// Blocks of a reduction over `numel` elements: depends on the size alone, so the order is fixed.
inline unsigned reduction_blocks(int64_t numel) {
  constexpr int64_t kMost = 2048;
  const int64_t wanted = (numel + kThreads * kPack - 1) / (kThreads * kPack);
  return static_cast<unsigned>(wanted < kMost ? (wanted > 0 ? wanted : 1) : kMost);
}

/// Adds `mine` over the block; the result is valid on thread 0.
__device__ __forceinline__ Sums block_sum(Sums mine) {
  __shared__ double shared[3][kThreads / 32];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
#pragma unroll
  for (int k = 0; k < 3; ++k) {
    for (int offset = 16; offset > 0; offset /= 2) {
      mine.v[k] += __shfl_down_sync(0xffffffffu, mine.v[k], offset);
    }
    if (lane == 0) shared[k][warp] = mine.v[k];
  }
  __syncthreads();
  Sums total;
  if (threadIdx.x == 0) {
    for (int k = 0; k < 3; ++k) {
      for (int w = 0; w < kThreads / 32; ++w) total.v[k] += shared[k][w];
    }
  }
  return total;
}

/// sums[k] += the partial results of all blocks, which lie in `workspace` as [block][3]. One block.
static __global__ void add_partials(const double* workspace, int blocks, double* sums, int count) {
  Sums mine;
  for (int b = threadIdx.x; b < blocks; b += kThreads) {
    for (int k = 0; k < 3; ++k) mine.v[k] += workspace[3 * b + k];
  }
  const Sums total = block_sum(mine);
  if (threadIdx.x == 0) {
    for (int k = 0; k < count; ++k) sums[k] += total.v[k];
  }
}

}  // namespace zerosharp::kernels::cuda
