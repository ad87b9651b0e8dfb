// Buffers in CPU or CUDA memory with values that tests can read, for both sides of the kernels.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cast.h"
#include "kernels/element.h"
#include "kernels/norm.h"
#include "kernels/optimizer_step.h"
#include "kernels/perturb.h"
#include "kernels/reduce.h"

#ifdef ZEROSHARP_CUDA
#include <cuda_runtime_api.h>
#endif

namespace zerosharp::testing {

enum class Place { kCpu, kCuda };

inline Stream stream_of(Place place) {
  return place == Place::kCuda ? Stream::on_cuda(nullptr) : Stream::cpu();
}

/// Empty if a GPU answers, else why the CUDA half of a test is skipped.
inline std::string why_no_gpu() {
#ifdef ZEROSHARP_CUDA
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return "";
  return std::string("no CUDA device answers (") +
         (status == cudaSuccess ? "0 devices" : cudaGetErrorString(status)) + ")";
#else
  return "this build has no CUDA";
#endif
}

inline float decode(const void* data, DType dtype, size_t i) {
  switch (dtype) {
    case DType::kBF16:
      return kernels::to_float(static_cast<const kernels::BF16*>(data)[i]);
    case DType::kF16:
      return kernels::to_float(static_cast<const kernels::F16*>(data)[i]);
    default:
      return static_cast<const float*>(data)[i];
  }
}

inline void encode(void* data, DType dtype, size_t i, float value) {
  switch (dtype) {
    case DType::kBF16:
      static_cast<kernels::BF16*>(data)[i] = kernels::to_bf16(value);
      break;
    case DType::kF16:
      static_cast<kernels::F16*>(data)[i] = kernels::to_f16(value);
      break;
    default:
      static_cast<float*>(data)[i] = value;
  }
}

/// `numel` elements that start `offset` elements behind an aligned address, with guard elements
/// around them that must not change.
class Buffer {
 public:
  Buffer(Place place, DType dtype, const std::vector<float>& values, int64_t offset = 0)
      : place_(place), dtype_(dtype), offset_(offset), numel_(static_cast<int64_t>(values.size())) {
    bytes_.resize(static_cast<size_t>((numel_ + offset_ + kGuard) * element_bytes(dtype_)), 0xA5);
    for (size_t i = 0; i < values.size(); ++i) {
      encode(bytes_.data() + offset_ * element_bytes(dtype_), dtype_, i, values[i]);
    }
#ifdef ZEROSHARP_CUDA
    if (place_ == Place::kCuda) {
      EXPECT_EQ(cudaMalloc(&device_, bytes_.size()), cudaSuccess);
      EXPECT_EQ(cudaMemcpy(device_, bytes_.data(), bytes_.size(), cudaMemcpyHostToDevice),
                cudaSuccess);
    }
#endif
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
#ifdef ZEROSHARP_CUDA
    if (device_ != nullptr) cudaFree(device_);
#endif
  }

  void* data() {
    char* base = device_ != nullptr ? static_cast<char*>(device_) : bytes_.data();
    return base + offset_ * element_bytes(dtype_);
  }
  template <class T>
  T* as() {
    return static_cast<T*>(data());
  }
  DType dtype() const { return dtype_; }

  /// The elements' bytes, after checking the guards.
  std::vector<char> raw() {
    std::vector<char> all = bytes_;
#ifdef ZEROSHARP_CUDA
    if (device_ != nullptr) {
      EXPECT_EQ(cudaMemcpy(all.data(), device_, all.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    }
#endif
    const auto begin = static_cast<size_t>(offset_ * element_bytes(dtype_));
    const auto end = begin + static_cast<size_t>(numel_ * element_bytes(dtype_));
    for (size_t i = 0; i < all.size(); ++i) {
      if (i >= begin && i < end) continue;
      EXPECT_EQ(static_cast<unsigned char>(all[i]), 0xA5) << "a kernel wrote outside its buffer";
    }
    return {all.begin() + static_cast<std::ptrdiff_t>(begin),
            all.begin() + static_cast<std::ptrdiff_t>(end)};
  }
  std::vector<float> values() {
    const std::vector<char> bytes = raw();
    std::vector<float> result(static_cast<size_t>(numel_));
    for (size_t i = 0; i < result.size(); ++i) result[i] = decode(bytes.data(), dtype_, i);
    return result;
  }

 private:
  static constexpr int64_t kGuard = 8;
  Place place_;
  DType dtype_;
  int64_t offset_;
  int64_t numel_;
  std::vector<char> bytes_;
  void* device_ = nullptr;
};

/// Doubles in the memory of `place`.
class Doubles {
 public:
  Doubles(Place place, size_t count) : place_(place), host_(count, 0.0) {
#ifdef ZEROSHARP_CUDA
    if (place_ == Place::kCuda) {
      EXPECT_EQ(cudaMalloc(&device_, count * sizeof(double)), cudaSuccess);
      EXPECT_EQ(cudaMemset(device_, 0, count * sizeof(double)), cudaSuccess);
    }
#endif
  }
  Doubles(const Doubles&) = delete;
  Doubles& operator=(const Doubles&) = delete;
  ~Doubles() {
#ifdef ZEROSHARP_CUDA
    if (device_ != nullptr) cudaFree(device_);
#endif
  }
  double* data() { return device_ != nullptr ? static_cast<double*>(device_) : host_.data(); }
  std::vector<double> values() {
#ifdef ZEROSHARP_CUDA
    if (device_ != nullptr) {
      EXPECT_EQ(
          cudaMemcpy(host_.data(), device_, host_.size() * sizeof(double), cudaMemcpyDeviceToHost),
          cudaSuccess);
    }
#endif
    return host_;
  }

 private:
  Place place_;
  std::vector<double> host_;
  void* device_ = nullptr;
};

/// Reproducible values around 0 with a deviation of about `scale`: sums of four uniform numbers.
inline std::vector<float> random_values(size_t count, uint32_t seed, float scale = 1.0f) {
  uint64_t state = seed * 0x9E3779B97F4A7C15ull + 1;
  std::vector<float> values(count);
  for (float& value : values) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    float sum = -2.0f;
    for (int part = 0; part < 4; ++part) {
      sum += static_cast<float>(state >> (12 * part + 16) & 0xfff) / 4095.0f;
    }
    value = 1.7f * scale * sum;
  }
  return values;
}

/// Values after storage in `dtype`.
inline std::vector<float> stored(DType dtype, const std::vector<float>& values) {
  Buffer buffer(Place::kCpu, dtype, values);
  return buffer.values();
}

/// Equal bits, signs of zero included; NaNs may differ in payload, which no format promises to
/// keep.
inline bool same_numbers(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (kernels::bits_of(a[i]) != kernels::bits_of(b[i])) return false;
  }
  return true;
}

/// Largest relative error of one rounding to `dtype`, and the largest absolute one below its normal
/// range.
inline double unit_of(DType dtype) {
  return dtype == DType::kF32 ? 0x1p-24 : dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11;
}
inline double least_unit_of(DType dtype) { return dtype == DType::kF16 ? 0x1p-25 : 0x1p-134; }

/// Every test of a kernel runs in both places.
class BothPlaces : public ::testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    if (GetParam() == Place::kCuda && !why_no_gpu().empty()) GTEST_SKIP() << why_no_gpu();
  }
  Place place() const { return GetParam(); }
  Stream stream() const { return stream_of(GetParam()); }
};

/// … and a reduction with scratch memory there.
class WithWorkspace : public BothPlaces {
 protected:
  void SetUp() override {
    BothPlaces::SetUp();
    if (!IsSkipped()) scratch_ = std::make_unique<Doubles>(place(), kernels::kReductionWorkspace);
  }
  double* workspace() { return scratch_->data(); }

 private:
  std::unique_ptr<Doubles> scratch_;
};

inline std::string place_name(const ::testing::TestParamInfo<Place>& info) {
  return info.param == Place::kCuda ? "Cuda" : "Cpu";
}

constexpr int64_t kSizes[] = {0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 1000, 65537};
constexpr DType kFloatTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

}  // namespace zerosharp::testing
