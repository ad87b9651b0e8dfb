// What happens to one element, shared by the CPU loops and the CUDA kernels. Every operation is a
// single IEEE-754 rounding (all files that include this are compiled without fused contraction), so
// scalar, AVX2, AVX-512 and CUDA give the same bits, wherever the element lies.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/dtype.h"

#if defined(__CUDACC__)
#define ZS_ELEMENT __host__ __device__ __forceinline__
#else
#define ZS_ELEMENT inline __attribute__((always_inline))
#endif

namespace zerosharp::kernels {

struct BF16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

ZS_ELEMENT uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

ZS_ELEMENT float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

ZS_ELEMENT float to_float(float value) { return value; }
ZS_ELEMENT float to_float(BF16 value) { return float_of(uint32_t{value.bits} << 16); }

/// Exact; subnormals are normalized by a subtraction that cancels the hidden bit.
ZS_ELEMENT float to_float(F16 value) {
  const uint32_t sign = uint32_t{value.bits & 0x8000u} << 16;
  const uint32_t body = uint32_t{value.bits & 0x7fffu} << 13;
  const uint32_t exponent = body & 0x0f800000u;
  const uint32_t normal = body + (112u << 23);
  const uint32_t special = normal + (112u << 23);  // infinity and NaN
  const float subnormal = float_of(body + (113u << 23)) - float_of(113u << 23);
  const uint32_t finite = exponent == 0 ? bits_of(subnormal) : normal;
  return float_of((exponent == 0x0f800000u ? special : finite) | sign);
}

/// Round to nearest, ties to even; NaN stays NaN (quiet).
ZS_ELEMENT BF16 to_bf16(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  return {static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded)};
}

ZS_ELEMENT F16 to_f16(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t body = bits & 0x7fffffffu;
  const uint32_t normal = (body + 0xfffu + ((body >> 13) & 1u) - (112u << 23)) >> 13;
  const float shifted = float_of(body) + 0.5f;  // fp32's own rounding aligns the subnormal
  const uint32_t subnormal = bits_of(shifted) - 0x3f000000u;
  uint32_t half = body < (113u << 23) ? subnormal : normal;
  half = body >= 0x477ff000u ? 0x7c00u : half;  // 65520 and above round to infinity
  half = body > 0x7f800000u ? (0x7e00u | ((body >> 13) & 0x3ffu)) : half;
  return {static_cast<uint16_t>(half | sign)};
}

template <class T>
ZS_ELEMENT T from_float(float value);
template <>
ZS_ELEMENT float from_float<float>(float value) {
  return value;
}
template <>
ZS_ELEMENT BF16 from_float<BF16>(float value) {
  return to_bf16(value);
}
template <>
ZS_ELEMENT F16 from_float<F16>(float value) {
  return to_f16(value);
}

/// Philox4x32-10 (Salmon et al. 2011) word `element % 4` of the block counted by (element / 4,
/// step) under `seed`.
ZS_ELEMENT uint32_t philox_word(uint64_t seed, uint64_t step, uint64_t element) {
  uint32_t c0 = static_cast<uint32_t>(element >> 2);
  uint32_t c1 = static_cast<uint32_t>(element >> 34);
  uint32_t c2 = static_cast<uint32_t>(step);
  uint32_t c3 = static_cast<uint32_t>(step >> 32);
  uint32_t k0 = static_cast<uint32_t>(seed);
  uint32_t k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const uint32_t low = (element & 1) != 0 ? c1 : c0;
  const uint32_t high = (element & 1) != 0 ? c3 : c2;
  return (element & 2) != 0 ? high : low;
}

/// Rounds up with the probability of the fraction that is cut off: adds random bits below the last
/// kept one and truncates. Infinity and NaN as in round to nearest.
ZS_ELEMENT BF16 stochastic_bf16(float value, uint32_t random) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + (random & 0xffffu)) >> 16;
  const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
  return {static_cast<uint16_t>(finite ? rounded : to_bf16(value).bits)};
}

/// The same for fp16's normal range; below it the cut is aligned to fp16's subnormal spacing 2^-24.
ZS_ELEMENT F16 stochastic_f16(float value, uint32_t random) {
  const uint32_t bits = bits_of(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t body = bits & 0x7fffffffu;
  const uint32_t normal = (body + (random & 0x1fffu) - (112u << 23)) >> 13;
  const float units = float_of(body) * 16777216.0f + static_cast<float>(random >> 8) * 0x1p-24f;
  const uint32_t subnormal = static_cast<uint32_t>(units < 2048.0f ? units : 0.0f);
  const uint32_t half = body < (113u << 23) ? subnormal : (normal > 0x7c00u ? 0x7c00u : normal);
  const bool finite = body < 0x7f800000u;
  return {static_cast<uint16_t>(finite ? (half | sign) : to_f16(value).bits)};
}

template <class T>
ZS_ELEMENT T stochastic_from_float(float value, uint32_t random);
template <>
ZS_ELEMENT float stochastic_from_float<float>(float value, uint32_t) {
  return value;
}
template <>
ZS_ELEMENT BF16 stochastic_from_float<BF16>(float value, uint32_t random) {
  return stochastic_bf16(value, random);
}
template <>
ZS_ELEMENT F16 stochastic_from_float<F16>(float value, uint32_t random) {
  return stochastic_f16(value, random);
}

/// x·t² for the t of perturb.h's Weighting; `v` is the second moment.
template <bool kMagnitude, bool kPreconditioned>
ZS_ELEMENT float weighted(float x, float base, float v, float shift) {
  if constexpr (kMagnitude) {
    const float t = fabsf(base) + shift;
    return x * (t * t);
  }
  if constexpr (kPreconditioned) return x / (sqrtf(v) + shift);
  return x;
}

/// m₀·x + m₁·y, without touching the bits of x where it is x and nothing else.
ZS_ELEMENT float mixed(float x, float y, float m0, float m1) {
  const float sum = m0 * x + m1 * y;
  return m0 == 1 && m1 == 0 ? x : sum;
}

/// Calls `body` (a template over its argument) with a null pointer of the floating-point element
/// type of `dtype`; the caller has checked that it is one.
template <class Body>
void with_type(DType dtype, Body body) {
  switch (dtype) {
    case DType::kBF16:
      return body(static_cast<BF16*>(nullptr));
    case DType::kF16:
      return body(static_cast<F16*>(nullptr));
    default:
      return body(static_cast<float*>(nullptr));
  }
}

}  // namespace zerosharp::kernels
