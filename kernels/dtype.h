// The element types of flat buffers, without any tensor library.
#pragma once
#include <cstdint>

namespace zerosharp {

enum class DType : uint8_t { kF32, kBF16, kF16, kF64, kI64 };

/// Size of one element in bytes.
constexpr int64_t element_bytes(DType dtype) noexcept {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kF64:
    case DType::kI64:
      return 8;
  }
  return 0;
}

/// "fp32", "bf16", "fp16", "fp64" or "int64".
constexpr const char* dtype_name(DType dtype) noexcept {
  switch (dtype) {
    case DType::kF32:
      return "fp32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "fp16";
    case DType::kF64:
      return "fp64";
    case DType::kI64:
      return "int64";
  }
  return "?";
}

}  // namespace zerosharp
