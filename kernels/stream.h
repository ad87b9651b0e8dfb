// Where a kernel runs.
#pragma once

namespace zerosharp {

/// The place a kernel runs and its pointers live: the CPU (the call returns when the work is done;
/// it is spread over the threads set by `set_num_threads`) or a CUDA stream (the call enqueues and
/// returns; all pointers are device memory unless a function says otherwise).
struct Stream {
  bool cuda = false;
  void* handle = nullptr;  ///< a cudaStream_t when `cuda`; borrowed

  static constexpr Stream cpu() noexcept { return {}; }
  static constexpr Stream on_cuda(void* stream) noexcept { return {true, stream}; }
};

/// Number of threads that CPU kernels may use (at least 1). Process-wide. Results do not depend on
/// it. If a kernel is already running on another thread, a call runs on its own thread alone.
void set_num_threads(int threads);
int num_threads() noexcept;

/// True when the library was built with CUDA.
bool built_with_cuda() noexcept;

}  // namespace zerosharp
