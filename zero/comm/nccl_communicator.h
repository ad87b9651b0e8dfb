// Ranks that own a GPU each.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "zero/communicator.h"

namespace zerosharp {

/// True if the library was built with NCCL.
bool built_with_nccl() noexcept;

/// One NCCL communicator over the current CUDA device of each rank. `exchange` must make rank 0's
/// bytes everybody's (empty for one rank). Calls enqueue on the stream they are given; asynchronous
/// ones on a stream of the communicator's own. Throws CommError, CudaError; ConfigError in a build
/// without NCCL.
std::unique_ptr<Communicator> make_nccl_communicator(
    int rank, int size, const std::function<void(std::string& bytes)>& exchange);

}  // namespace zerosharp
