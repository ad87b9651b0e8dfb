// CUDA events between ranks' streams, and a thread's current device.
#pragma once
#include "kernels/stream.h"

namespace zerosharp {

/// The CUDA device that is current on the calling thread. Throws CudaError.
int current_cuda_device();
/// Makes it current on the calling thread. Throws CudaError.
void use_cuda_device(int device);

/// Created at its first use, on the device that is current then.
class DeviceEvent {
 public:
  DeviceEvent() = default;
  ~DeviceEvent();
  DeviceEvent(const DeviceEvent&) = delete;
  DeviceEvent& operator=(const DeviceEvent&) = delete;

  /// Marks the work enqueued on `stream` so far. Throws CudaError.
  void record(Stream stream);
  /// Work enqueued on `stream` later waits for what was marked.
  void make_wait(Stream stream) const;

 private:
  void* event_ = nullptr;  // a cudaEvent_t
};

}  // namespace zerosharp
