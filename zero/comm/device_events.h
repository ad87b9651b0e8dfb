// A CUDA event between two ranks' streams; nothing on the CPU.
#pragma once
#include "kernels/stream.h"

namespace zerosharp {

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
