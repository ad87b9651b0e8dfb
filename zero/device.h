// The bridge between LibTorch's devices and tensors and the kernels' streams and pointers.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/stream.h"
#include "zero/communicator.h"

namespace zerosharp {

/// Throws ShapeError for a type no flat buffer can hold.
DType dtype_of(at::ScalarType type);
at::ScalarType scalar_type(DType dtype);

/// The CPU, or the current CUDA stream of `device`.
Stream current_stream(const at::Device& device);

/// A contiguous tensor's elements as a span; `begin` and `numel` select a run.
FlatSpan span_of(const at::Tensor& flat);
FlatSpan span_of(const at::Tensor& flat, int64_t begin, int64_t numel);

/// Address of element `index` of a contiguous tensor.
void* address(const at::Tensor& flat, int64_t index = 0);

/// Loads libtorch_cuda (the program links only the CPU half, so that CPU runs start fast) and
/// checks that a GPU answers. Throws CudaError saying what is missing. A second call does nothing.
void load_cuda_backend();

/// True if a CUDA device and libtorch_cuda are usable; never throws.
bool cuda_usable() noexcept;

/// Visible CUDA devices; the device later allocations of this thread go to. Throw CudaError.
int num_cuda_devices();
void set_cuda_device(int index);

/// Bytes of device memory in use by all programs on `device`; 0 for the CPU.
int64_t device_bytes_in_use(const at::Device& device);

}  // namespace zerosharp
