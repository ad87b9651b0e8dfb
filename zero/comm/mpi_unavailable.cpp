// Stands in for the MPI communicator in a build without MPI.
#include "kernels/error.h"
#include "zero/comm/mpi_communicator.h"

namespace zerosharp {

bool built_with_mpi() noexcept { return false; }

std::unique_ptr<Communicator> make_mpi_communicator(MpiCommOptions) {
  fail_config(
      "this build has no MPI, so CPU ranks cannot be processes; install libopenmpi-dev and "
      "configure with ZEROSHARP_WITH_MPI=ON");
}

}  // namespace zerosharp
