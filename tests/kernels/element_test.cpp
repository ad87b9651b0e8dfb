// Conversions, against the definition of each format and exhaustively.
#include <gtest/gtest.h>

#include "tests/kernels/kernel_fixture.h"

namespace zerosharp::kernels {
namespace {

/// Nearest value with `bits` significant bits and least exponent `min_exponent`, ties to even, in
/// double arithmetic; `most` is the largest finite value.
double nearest(double value, int bits, int min_exponent, double most) {
  if (value == 0 || std::isinf(value)) return value;
  int exponent = 0;
  std::frexp(value, &exponent);  // value = m · 2^exponent, ½ ≤ |m| < 1
  const int unit = std::max(exponent - bits, min_exponent);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
  return std::fabs(rounded) > most ? std::copysign(HUGE_VAL, value) : rounded;
}

constexpr double kMostBf16 = 0x1.FEp127;
constexpr double kMostF16 = 65504.0;

TEST(Element, EveryBf16PatternSurvives) {
  for (uint32_t pattern = 0; pattern < 0x10000u; ++pattern) {
    const BF16 value{static_cast<uint16_t>(pattern)};
    const float wide = to_float(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(to_float(to_bf16(wide))));
    } else {
      EXPECT_EQ(to_bf16(wide).bits, value.bits) << pattern;
    }
  }
}

TEST(Element, EveryF16PatternSurvivesAndMeansWhatItShould) {
  for (uint32_t pattern = 0; pattern < 0x10000u; ++pattern) {
    const F16 value{static_cast<uint16_t>(pattern)};
    const float wide = to_float(value);
    const int exponent = static_cast<int>(pattern >> 10 & 31);
    const double fraction = pattern & 1023;
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(wide), fraction != 0);
      EXPECT_EQ(std::isinf(wide), fraction == 0);
    } else {
      const double size =
          exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
      EXPECT_EQ(wide, (pattern & 0x8000u) != 0 ? -size : size) << pattern;
    }
    if (!std::isnan(wide)) {
      EXPECT_EQ(to_f16(wide).bits, value.bits) << pattern;
    } else {
      EXPECT_TRUE(std::isnan(to_float(to_f16(wide))));
    }
  }
}

// All 2^16 upper halves with lower halves around the tie and at both ends: 458,752 floats.
TEST(Element, RoundsToNearestEven) {
  for (uint32_t high = 0; high < 0x10000u; ++high) {
    for (const uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu, 0x1000u}) {
      const float value = float_of(high << 16 | low);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(to_float(to_bf16(value))));
        EXPECT_TRUE(std::isnan(to_float(to_f16(value))));
        continue;
      }
      EXPECT_EQ(to_float(to_bf16(value)), nearest(value, 8, -133, kMostBf16)) << value;
      EXPECT_EQ(to_float(to_f16(value)), nearest(value, 11, -24, kMostF16)) << value;
    }
  }
}

TEST(Element, F16TiesBetweenNeighbours) {
  for (uint32_t pattern = 0; pattern < 0x7c00u; ++pattern) {
    const double low = to_float(F16{static_cast<uint16_t>(pattern)});
    const double high =
        pattern + 1 == 0x7c00u ? 65536.0 : to_float(F16{static_cast<uint16_t>(pattern + 1)});
    const auto middle = static_cast<float>((low + high) / 2);
    const uint32_t even = pattern % 2 == 0 ? pattern : pattern + 1;
    EXPECT_EQ(to_f16(middle).bits, even);
    EXPECT_EQ(to_f16(std::nextafter(middle, 0.0f)).bits, pattern);
    EXPECT_EQ(to_f16(std::nextafter(middle, 1e9f)).bits, pattern + 1);
  }
}

// Known answers of Random123 for Philox4x32-10.
TEST(Element, PhiloxMatchesItsPublishedVectors) {
  EXPECT_EQ(philox_word(0, 0, 0), 0x6627e8d5u);
  EXPECT_EQ(philox_word(0, 0, 1), 0xe169c58du);
  EXPECT_EQ(philox_word(0, 0, 2), 0xbc57ac4cu);
  EXPECT_EQ(philox_word(0, 0, 3), 0x9b00dbd8u);
}

// The mean of n rounded copies of x lies within 5 standard deviations of x: a fraction f of a step
// u has deviation u·√(f(1−f)/n) ≤ u/(2√n).
template <class T>
void expect_unbiased(float value, double step) {
  constexpr int kDraws = 20000;
  double sum = 0;
  for (int i = 0; i < kDraws; ++i) {
    const float rounded = to_float(stochastic_from_float<T>(value, philox_word(7, 3, i)));
    EXPECT_LE(std::fabs(rounded - value), step);
    sum += rounded;
  }
  EXPECT_NEAR(sum / kDraws, value, 5 * step / (2 * std::sqrt(kDraws))) << value;
}

TEST(Element, StochasticRoundingIsUnbiased) {
  for (const float value : {1.001f, -1.0007f, 0.02f, 3.3e-5f, -1234.5f}) {
    int exponent = 0;
    std::frexp(value, &exponent);
    expect_unbiased<BF16>(value, std::ldexp(1.0, exponent - 8));
    expect_unbiased<F16>(value, std::max(std::ldexp(1.0, exponent - 11), std::ldexp(1.0, -24)));
  }
}

TEST(Element, StochasticRoundingKeepsWhatNeedsNone) {
  for (const float value : {0.0f, -0.0f, 1.0f, -2.5f, HUGE_VALF, -HUGE_VALF}) {
    for (const uint32_t random : {0u, 0xffffffffu, 0x12345678u}) {
      EXPECT_EQ(bits_of(to_float(stochastic_bf16(value, random))), bits_of(value));
      EXPECT_EQ(bits_of(to_float(stochastic_f16(value, random))), bits_of(value));
    }
  }
  EXPECT_TRUE(std::isnan(to_float(stochastic_bf16(NAN, 1))));
  EXPECT_TRUE(std::isnan(to_float(stochastic_f16(NAN, 1))));
}

}  // namespace
}  // namespace zerosharp::kernels
