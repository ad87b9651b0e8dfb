// Host copies of device buffers for communicators that only reach host memory.
#pragma once
#include <cstddef>

#include "zero/communicator.h"

namespace zerosharp {

/// A pinned host buffer that grows and is kept.
class HostStaging {
 public:
  HostStaging() = default;
  ~HostStaging();
  HostStaging(const HostStaging&) = delete;
  HostStaging& operator=(const HostStaging&) = delete;
  /// At least `bytes` bytes. Throws CudaError.
  void* reserve(int64_t bytes);

 private:
  void* data_ = nullptr;
  [[maybe_unused]] int64_t bytes_ = 0;
};

/// The span itself on the CPU; for CUDA a host copy (made at once, after the stream's earlier work)
/// that `finish` writes back.
class StagedBuffer {
 public:
  StagedBuffer(const FlatSpan& span, Stream stream, HostStaging& staging);
  const FlatSpan& host() const noexcept { return host_; }
  void finish();

 private:
  FlatSpan span_;
  FlatSpan host_;
  Stream stream_;
};

}  // namespace zerosharp
