// CUDA calls that throw.
#pragma once
#include <cuda_runtime_api.h>

#include "kernels/error.h"

/// Throws CudaError with the call, its place and CUDA's explanation unless it succeeds.
#define ZS_CUDA_CHECK(call)                                                                   \
  do {                                                                                        \
    const cudaError_t zs_status = (call);                                                     \
    if (zs_status != cudaSuccess) {                                                           \
      ::zerosharp::fail<::zerosharp::CudaError>(#call, " in ", __FILE__, ":", __LINE__, ": ", \
                                                cudaGetErrorString(zs_status));               \
    }                                                                                         \
  } while (false)
