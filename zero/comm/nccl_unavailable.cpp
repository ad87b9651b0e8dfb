// Stands in for the NCCL communicator in a build without NCCL.
#include "kernels/error.h"
#include "zero/comm/nccl_communicator.h"

namespace zerosharp {

bool built_with_nccl() noexcept { return false; }

std::unique_ptr<Communicator> make_nccl_communicator(int, int,
                                                     const std::function<void(std::string&)>&) {
  fail_config(
      "this build has no NCCL, so GPU ranks cannot talk; install NCCL and configure with "
      "ZEROSHARP_WITH_CUDA=ON");
}

}  // namespace zerosharp
