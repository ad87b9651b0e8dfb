// A small pool of threads for the CPU kernels.
#pragma once
#include <cstdint>
#include <functional>

namespace zerosharp::kernels::cpu {

/// Calls body(task) once for each task in [0, num_tasks), spread over at most `num_threads()`
/// threads including the caller's. If the pool is busy with another thread's call, everything runs
/// on the caller. `body` must not throw.
void parallel_for(int64_t num_tasks, const std::function<void(int64_t task)>& body);

/// Splits [0, numel) into one run a thread, each a multiple of 1024 elements but the last; runs
/// shorter than 32 Ki elements are not worth a thread.
void parallel_runs(int64_t numel, const std::function<void(int64_t begin, int64_t end)>& body);

}  // namespace zerosharp::kernels::cpu
