// Ranks that are MPI processes, with buffers on the CPU (CUDA buffers are staged through the host).
#pragma once
#include <memory>

#include "zero/communicator.h"

namespace zerosharp {

struct MpiCommOptions {
  /// Bytes of one slice exchanged at a time: below MPI's 31-bit counts, and small enough that the
  /// scratch buffer (ranks × chunk) stays small.
  int64_t chunk_bytes = int64_t{8} << 20;
};

/// True if the library was built with MPI.
bool built_with_mpi() noexcept;

/// Initializes MPI if needed (it is finalized at exit) and gives a communicator over all its
/// processes. Reductions exchange slices as bytes and sum them in rank order, so results are
/// bitwise those of thread ranks. A process that ends by exit() after an exception has destroyed
/// its communicator ends the other ranks too (MPI_Abort with code 1), since they may wait for it.
/// Throws CommError; ConfigError in a build without MPI.
std::unique_ptr<Communicator> make_mpi_communicator(MpiCommOptions options = {});

}  // namespace zerosharp
