// Buffers of fp32 values on a GPU that tests of communicators can read.
#pragma once
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "zero/communicator.h"

namespace zerosharp::testing {

inline int num_gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

inline void check(cudaError_t status) {
  ASSERT_EQ(status, cudaSuccess) << cudaGetErrorString(status);
}

/// fp32 values in the memory of the current GPU, and a stream of it.
class DeviceFloats {
 public:
  explicit DeviceFloats(const std::vector<float>& values) : numel_(values.size()) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    check(cudaMalloc(&data_, std::max<size_t>(bytes(), 1)));
    check(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice));
  }
  ~DeviceFloats() {
    cudaFree(data_);
    cudaStreamDestroy(stream_);
  }
  DeviceFloats(const DeviceFloats&) = delete;
  DeviceFloats& operator=(const DeviceFloats&) = delete;

  FlatSpan span() const { return {data_, static_cast<int64_t>(numel_), DType::kF32}; }
  Stream stream() const { return Stream::on_cuda(stream_); }
  std::vector<float> values() const {
    std::vector<float> host(numel_);
    check(cudaMemcpyAsync(host.data(), data_, bytes(), cudaMemcpyDeviceToHost, stream_));
    check(cudaStreamSynchronize(stream_));
    return host;
  }

 private:
  size_t bytes() const { return numel_ * sizeof(float); }
  size_t numel_;
  void* data_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

}  // namespace zerosharp::testing
