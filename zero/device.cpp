#include "zero/device.h"

#include <dlfcn.h>

#include "kernels/error.h"

#ifdef ZEROSHARP_CUDA
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#endif

namespace zerosharp {

DType dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DType::kF32;
    case at::kBFloat16:
      return DType::kBF16;
    case at::kHalf:
      return DType::kF16;
    case at::kDouble:
      return DType::kF64;
    case at::kLong:
      return DType::kI64;
    default:
      fail_shape("tensors of type ", c10::toString(type),
                 " cannot lie in a flat buffer; use float32, bfloat16, float16, float64 or int64");
  }
}

at::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return at::kFloat;
    case DType::kBF16:
      return at::kBFloat16;
    case DType::kF16:
      return at::kHalf;
    case DType::kF64:
      return at::kDouble;
    case DType::kI64:
      return at::kLong;
  }
  return at::kFloat;
}

FlatSpan span_of(const at::Tensor& flat) { return span_of(flat, 0, flat.numel()); }

FlatSpan span_of(const at::Tensor& flat, int64_t begin, int64_t numel) {
  return {address(flat, begin), numel, dtype_of(flat.scalar_type())};
}

void* address(const at::Tensor& flat, int64_t index) {
  return static_cast<char*>(flat.data_ptr()) + index * flat.element_size();
}

#ifdef ZEROSHARP_CUDA

Stream current_stream(const at::Device& device) {
  if (!device.is_cuda()) return Stream::cpu();
  return Stream::on_cuda(c10::cuda::getCurrentCUDAStream(device.index()).stream());
}

void load_cuda_backend() {
  static void* const handle = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    fail<CudaError>("train.device cuda: libtorch_cuda.so cannot be loaded (",
                    reason != nullptr ? reason : "it failed before",
                    "); install LibTorch with CUDA (scripts/setup) or use train.device=cpu");
  }
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    fail<CudaError>("train.device cuda: no CUDA device answers (",
                    status != cudaSuccess ? cudaGetErrorString(status) : "0 devices",
                    "); check the driver and CUDA_VISIBLE_DEVICES, or use train.device=cpu");
  }
}

namespace {

void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) fail<CudaError>(call, ": ", cudaGetErrorString(status));
}

}  // namespace

int num_cuda_devices() {
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  return count;
}

void set_cuda_device(int index) { check(cudaSetDevice(index), "cudaSetDevice"); }

int64_t device_bytes_in_use(const at::Device& device) {
  if (!device.is_cuda()) return 0;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  return static_cast<int64_t>(total_bytes - free_bytes);
}

#else

int num_cuda_devices() { return 0; }
void set_cuda_device(int) {}
int64_t device_bytes_in_use(const at::Device&) { return 0; }

Stream current_stream(const at::Device& device) {
  if (device.is_cuda()) {
    fail<CudaError>("this build has no CUDA; configure with ZEROSHARP_WITH_CUDA=ON");
  }
  return Stream::cpu();
}

void load_cuda_backend() {
  fail<CudaError>(
      "train.device cuda: this build has no CUDA; configure with ZEROSHARP_WITH_CUDA=ON");
}

#endif

bool cuda_usable() noexcept {
  try {
    load_cuda_backend();
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace zerosharp
