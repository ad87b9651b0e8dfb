#include "zero/comm/device_events.h"

#include "kernels/error.h"

#ifdef ZEROSHARP_CUDA
#include <cuda_runtime_api.h>
#endif

namespace zerosharp {

#ifdef ZEROSHARP_CUDA

namespace {

void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) fail<CudaError>(call, ": ", cudaGetErrorString(status));
}

}  // namespace

int current_cuda_device() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

void use_cuda_device(int device) { check(cudaSetDevice(device), "cudaSetDevice"); }

DeviceEvent::~DeviceEvent() {
  if (event_ != nullptr) cudaEventDestroy(static_cast<cudaEvent_t>(event_));
}

void DeviceEvent::record(Stream stream) {
  if (event_ == nullptr) {
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    event_ = event;
  }
  check(cudaEventRecord(static_cast<cudaEvent_t>(event_), static_cast<cudaStream_t>(stream.handle)),
        "cudaEventRecord");
}

void DeviceEvent::make_wait(Stream stream) const {
  check(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream.handle),
                            static_cast<cudaEvent_t>(event_), 0),
        "cudaStreamWaitEvent");
}

#else

namespace {

[[noreturn]] void refuse() {
  fail<CudaError>("this build has no CUDA; configure with ZEROSHARP_WITH_CUDA=ON");
}

}  // namespace

int current_cuda_device() { refuse(); }
void use_cuda_device(int) { refuse(); }

DeviceEvent::~DeviceEvent() = default;
void DeviceEvent::record(Stream) { refuse(); }
void DeviceEvent::make_wait(Stream) const { refuse(); }

#endif

}  // namespace zerosharp
