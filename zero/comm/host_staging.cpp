#include "zero/comm/host_staging.h"

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

void copy(void* to, const void* from, int64_t bytes, Stream stream) {
  const auto cuda_stream = static_cast<cudaStream_t>(stream.handle);
  check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, cuda_stream),
        "cudaMemcpyAsync");
  check(cudaStreamSynchronize(cuda_stream), "cudaStreamSynchronize");
}

}  // namespace

HostStaging::~HostStaging() {
  if (data_ != nullptr) cudaFreeHost(data_);
}

void* HostStaging::reserve(int64_t bytes) {
  if (bytes <= bytes_) return data_;
  if (data_ != nullptr) check(cudaFreeHost(data_), "cudaFreeHost");
  data_ = nullptr;
  check(cudaMallocHost(&data_, static_cast<size_t>(bytes)), "cudaMallocHost");
  bytes_ = bytes;
  return data_;
}

StagedBuffer::StagedBuffer(const FlatSpan& span, Stream stream, HostStaging& staging)
    : span_(span), host_(span), stream_(stream) {
  if (!stream.cuda || span.numel == 0) return;
  host_.data = staging.reserve(span.bytes());
  copy(host_.data, span.data, span.bytes(), stream);
}

void StagedBuffer::finish() {
  if (host_.data != span_.data) copy(span_.data, host_.data, span_.bytes(), stream_);
}

#else

HostStaging::~HostStaging() = default;

void* HostStaging::reserve(int64_t) { return data_; }

StagedBuffer::StagedBuffer(const FlatSpan& span, Stream stream, HostStaging&)
    : span_(span), host_(span), stream_(stream) {
  if (stream.cuda) {
    fail<CudaError>("this build has no CUDA; configure with ZEROSHARP_WITH_CUDA=ON");
  }
}

void StagedBuffer::finish() {}

#endif

}  // namespace zerosharp
