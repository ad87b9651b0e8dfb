// Conversions and accumulation between fp32, bf16 and fp16 buffers.
#pragma once
#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/stream.h"

namespace zerosharp::kernels {

/// dst[i] = src[i] rounded to nearest even. fp32, bf16 and fp16 in any pair. The buffers must not
/// overlap.
void cast(const void* src, DType src_dtype, void* dst, DType dst_dtype, int64_t numel,
          Stream stream);

/// dst[i] = round(dst[i] + scale·src[i]), computed in fp32.
void scaled_add(void* dst, DType dst_dtype, const void* src, DType src_dtype, float scale,
                int64_t numel, Stream stream);

/// Sets `bytes` bytes to zero.
void set_zero(void* dst, int64_t bytes, Stream stream);

/// Plain copy of `bytes` bytes within the stream's memory kind.
void copy_bytes(void* dst, const void* src, int64_t bytes, Stream stream);

}  // namespace zerosharp::kernels
