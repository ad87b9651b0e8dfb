// Ranks that are threads of one process: every test's way to many ranks, on the CPU and on one GPU.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "zero/communicator.h"

namespace zerosharp {

struct ThreadCommOptions {
  /// How long a rank waits for the others in one collective before it gives up with a CommError.
  std::chrono::milliseconds timeout{60'000};
};

/// Communicators of `size` ranks that share memory; rank r's must be used by one thread at a time.
/// Reductions are made in rank order, so every rank gets the same bits, and the same as over MPI.
std::vector<std::unique_ptr<Communicator>> make_thread_communicators(
    int size, ThreadCommOptions options = {});

/// Runs `body` on `size` threads, one a rank, and waits for all. If one throws, the others are
/// woken by abort() and the first exception is thrown here with its rank in front of its message
/// (errors of this library keep their type).
void run_thread_ranks(int size, const std::function<void(Communicator&)>& body,
                      ThreadCommOptions options = {});

}  // namespace zerosharp
