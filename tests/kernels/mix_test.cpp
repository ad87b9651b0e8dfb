// Sums and linear maps of two vectors, against float64, in CPU and CUDA memory.
#include "kernels/mix.h"

#include <gtest/gtest.h>

#include <array>

#include "kernels/cpu/passes.h"
#include "kernels/error.h"
#include "tests/kernels/kernel_fixture.h"

namespace zerosharp::kernels {
namespace {

using namespace zerosharp::testing;

using Matrix = std::array<float, 4>;

class Dots : public WithWorkspace {};
INSTANTIATE_TEST_SUITE_P(Places, Dots, ::testing::Values(Place::kCpu, Place::kCuda), place_name);
class Mix : public BothPlaces {};
INSTANTIATE_TEST_SUITE_P(Places, Mix, ::testing::Values(Place::kCpu, Place::kCuda), place_name);

// Products of fp32 values are exact in fp64 (48 bits); n additions err by at most n · 2^-53 of the
// sum of magnitudes.
TEST_P(Dots, AddTheThreeProducts) {
  for (const DType dtype : kFloatTypes) {
    for (const int64_t n : kSizes) {
      for (const int64_t offset : {0, 1, 3}) {
        const auto count = static_cast<size_t>(n);
        Buffer x(place(), dtype, random_values(count, 71, 3.0f), offset);
        Buffer y(place(), DType::kF32, random_values(count, 72, 0.5f), offset);
        const auto xs = x.values(), ys = y.values();
        std::array<double, 3> expected = {}, size = {};
        for (size_t i = 0; i < count; ++i) {
          const double xi = xs[i], yi = ys[i];
          const double terms[] = {xi * yi, xi * xi, yi * yi};
          for (size_t k = 0; k < 3; ++k) {
            expected[k] += terms[k];
            size[k] += std::fabs(terms[k]);
          }
        }
        Doubles sums(place(), 3);
        dots(x.data(), dtype, y.as<float>(), n, sums.data(), workspace(), stream());
        const auto once = sums.values();
        for (size_t k = 0; k < 3; ++k) {
          EXPECT_NEAR(once[k], expected[k], size[k] * (static_cast<double>(n) + 1) * 0x1p-53)
              << "sum " << k << " of " << n << " " << dtype_name(dtype);
        }
        dots(x.data(), dtype, y.as<float>(), n, sums.data(), workspace(), stream());
        for (size_t k = 0; k < 3; ++k) EXPECT_EQ(sums.values()[k], 2 * once[k]);  // adds
      }
    }
  }
}

// Larger than 64 blocks of the CPU and one round of all the GPU's threads. Whole numbers of up to
// 6 bits: every sum is exact.
TEST_P(Dots, OfManyElementsAreExact) {
  const size_t n = (size_t{4} << 20) + 65537;
  std::vector<float> x(n), y(n);
  int64_t xy = 0, xx = 0, yy = 0;
  for (size_t i = 0; i < n; ++i) {
    const auto xi = static_cast<int64_t>(i % 61) - 30, yi = static_cast<int64_t>(i % 53) - 20;
    x[i] = static_cast<float>(xi);
    y[i] = static_cast<float>(yi);
    xy += xi * yi;
    xx += xi * xi;
    yy += yi * yi;
  }
  Buffer first(place(), DType::kBF16, x);
  Buffer second(place(), DType::kF32, y);
  Doubles sums(place(), 3);
  dots(first.data(), DType::kBF16, second.as<float>(), static_cast<int64_t>(n), sums.data(),
       workspace(), stream());
  EXPECT_EQ(sums.values(), (std::vector<double>{static_cast<double>(xy), static_cast<double>(xx),
                                                static_cast<double>(yy)}));
}

TEST_P(Dots, NonFiniteValuesShowInTheirOwnSums) {
  for (const float bad : {NAN, HUGE_VALF, -HUGE_VALF}) {
    for (const size_t at : {size_t{0}, size_t{500}, size_t{999}}) {
      auto values = random_values(1000, 73);
      values[at] = bad;
      for (const bool in_x : {true, false}) {
        Buffer x(place(), DType::kF32, in_x ? values : random_values(1000, 74));
        Buffer y(place(), DType::kF32, in_x ? random_values(1000, 74) : values);
        Doubles sums(place(), 3);
        dots(x.data(), DType::kF32, y.as<float>(), 1000, sums.data(), workspace(), stream());
        const auto result = sums.values();
        EXPECT_FALSE(std::isfinite(result[0]));
        EXPECT_EQ(std::isfinite(result[1]), !in_x);
        EXPECT_EQ(std::isfinite(result[2]), in_x);
      }
    }
  }
}

TEST(DotsOnTheCpu, DoNotDependOnThreadsOrInstructions) {
  const size_t n = 200001;
  Buffer x(Place::kCpu, DType::kBF16, random_values(n, 75), 1);
  Buffer y(Place::kCpu, DType::kF32, random_values(n, 76), 1);
  std::vector<double> expected;
  for (const int threads : {1, 2, 3, 5}) {
    set_num_threads(threads);
    Doubles sums(Place::kCpu, 3);
    dots(x.data(), DType::kBF16, y.as<float>(), n, sums.data(), nullptr, Stream::cpu());
    if (threads == 1) expected = sums.values();
    EXPECT_EQ(sums.values(), expected) << threads << " threads";
  }
  set_num_threads(1);
  // One run of less than a block, whatever instructions add it up.
  const cpu::BlockSums scalar =
      cpu::passes_for("scalar")->dots(x.data(), DType::kBF16, y.as<float>(), 0, 60001);
  for (const char* name : {"avx2", "avx512"}) {
    const cpu::Passes* passes = cpu::passes_for(name);
    if (passes == nullptr) continue;
    const cpu::BlockSums sums = passes->dots(x.data(), DType::kBF16, y.as<float>(), 0, 60001);
    EXPECT_EQ(sums.first, scalar.first) << name;
    EXPECT_EQ(sums.second, scalar.second) << name;
    EXPECT_EQ(sums.third, scalar.third) << name;
  }
}

/// Two vectors of `count` elements, mixed once.
struct Mixed {
  Mixed(Place place, DType dtype, const std::vector<float>& xs, const std::vector<float>& ys,
        const Matrix& m, int64_t offset = 0)
      : x(place, dtype, xs, offset),
        y(place, DType::kF32, ys, offset),
        matrix(place, DType::kF32, {m.begin(), m.end()}) {}
  void run(Stream stream) {
    mix(x.data(), x.dtype(), y.as<float>(), static_cast<int64_t>(y.values().size()),
        matrix.as<float>(), stream);
  }
  Buffer x, y, matrix;
};

// Three roundings in fp32 (two products, their sum) and one to the vector's type.
double mix_bound(double a, double b, DType dtype) {
  const double exact = a + b;
  const double in_fp32 = (std::fabs(a) + std::fabs(b) + std::fabs(exact)) * 0x1p-24 * (1 + 0x1p-20);
  const double stored = dtype == DType::kF32 ? 0 : unit_of(dtype) * (std::fabs(exact) + in_fp32);
  return in_fp32 + stored + least_unit_of(dtype);
}

TEST_P(Mix, MakesBothVectorsFromTheOldValues) {
  for (const DType dtype : kFloatTypes) {
    for (const int64_t n : kSizes) {
      for (const int64_t offset : {0, 1, 3}) {
        const Matrix m = {0.3f, -1.7f, 0.9f, 0.1f};
        const auto count = static_cast<size_t>(n);
        Mixed run(place(), dtype, random_values(count, 81), random_values(count, 82), m, offset);
        const auto xs = run.x.values(), ys = run.y.values();
        run.run(stream());
        const auto x_new = run.x.values(), y_new = run.y.values();
        for (size_t i = 0; i < count; ++i) {
          const double a = double{m[0]} * xs[i], b = double{m[1]} * ys[i];
          const double c = double{m[2]} * xs[i], d = double{m[3]} * ys[i];
          ASSERT_NEAR(x_new[i], a + b, mix_bound(a, b, dtype)) << i << " " << dtype_name(dtype);
          ASSERT_NEAR(y_new[i], c + d, mix_bound(c, d, DType::kF32)) << i;
        }
      }
    }
  }
}

// Values that arithmetic would change or that it spreads: -0 (-0 + 0 = 0), subnormals, infinities,
// and NaN and infinity in the other vector (0 · NaN = NaN).
TEST_P(Mix, RowThatIsItselfKeepsItsBits) {
  const std::vector<float> odd = {-0.0f, 0.0f, 1e-40f, -HUGE_VALF, 6e-8f, 1.0f, -0.0f, 3.0f, 5.0f};
  const std::vector<float> other = {0.0f, NAN, HUGE_VALF, -HUGE_VALF, NAN, NAN, 7.0f, NAN, -0.0f};
  for (const DType dtype : kFloatTypes) {
    Mixed keeps_x(place(), dtype, odd, other, {1, 0, 0.5f, 2.0f});
    const auto x = keeps_x.x.raw();
    keeps_x.run(stream());
    EXPECT_EQ(keeps_x.x.raw(), x) << dtype_name(dtype);
    EXPECT_EQ(keeps_x.y.values()[6], 14.0f);  // the other row is made: 0.5 · -0 + 2 · 7
    Mixed keeps_y(place(), dtype, other, odd, {0.5f, 2.0f, 0, 1});
    const auto y = keeps_y.y.raw();
    keeps_y.run(stream());
    EXPECT_EQ(keeps_y.y.raw(), y) << dtype_name(dtype);
    EXPECT_EQ(keeps_y.x.values()[6], 3.5f);
  }
}

TEST_P(Mix, NanInTheFirstPlaceMeansNothingHappens) {
  for (const DType dtype : kFloatTypes) {
    Mixed run(place(), dtype, random_values(1000, 83), random_values(1000, 84), {NAN, 1, 1, 0}, 1);
    const auto x = run.x.raw(), y = run.y.raw();
    run.run(stream());
    EXPECT_EQ(run.x.raw(), x);
    EXPECT_EQ(run.y.raw(), y);
  }
}

TEST_P(Mix, NonFiniteElementsStayWhereTheyAre) {
  auto xs = random_values(1000, 85), ys = random_values(1000, 86);
  xs[3] = NAN;
  ys[700] = HUGE_VALF;
  Mixed run(place(), DType::kF32, xs, ys, {0.5f, 2.0f, 1.0f, 1.0f});
  run.run(stream());
  const auto x = run.x.values(), y = run.y.values();
  for (size_t i = 0; i < 1000; ++i) {
    const bool finite = i != 3 && i != 700;
    EXPECT_EQ(std::isfinite(x[i]), finite) << i;
    EXPECT_EQ(std::isfinite(y[i]), finite) << i;
  }
}

TEST(MixOnTheCpu, DoesNotDependOnThreadsOrInstructions) {
  const size_t n = 200001;
  const Matrix m = {0.3f, -1.7f, 0.9f, 0.1f};
  for (const DType dtype : kFloatTypes) {
    const auto fresh = [&] {
      return std::make_unique<Mixed>(Place::kCpu, dtype, random_values(n, 87), random_values(n, 88),
                                     m, 1);
    };
    const auto expected = fresh();
    expected->run(Stream::cpu());
    for (const int threads : {2, 3, 5}) {
      set_num_threads(threads);
      const auto run = fresh();
      run->run(Stream::cpu());
      EXPECT_EQ(run->x.raw(), expected->x.raw()) << threads << " threads";
      EXPECT_EQ(run->y.raw(), expected->y.raw()) << threads << " threads";
    }
    set_num_threads(1);
    for (const char* name : {"scalar", "avx2", "avx512"}) {
      const cpu::Passes* passes = cpu::passes_for(name);
      if (passes == nullptr) continue;
      const auto run = fresh();
      passes->mix(run->x.data(), dtype, run->y.as<float>(), m.data(), 0, n);
      EXPECT_EQ(run->x.raw(), expected->x.raw()) << name;
      EXPECT_EQ(run->y.raw(), expected->y.raw()) << name;
    }
  }
}

TEST(MixOnCuda, EqualsTheCpu) {
  if (!why_no_gpu().empty()) GTEST_SKIP() << why_no_gpu();
  for (const DType dtype : kFloatTypes) {
    const Matrix m = {0.3f, -1.7f, 0.9f, 0.1f};
    Mixed on_cpu(Place::kCpu, dtype, random_values(65537, 89), random_values(65537, 90), m);
    Mixed on_cuda(Place::kCuda, dtype, random_values(65537, 89), random_values(65537, 90), m);
    on_cpu.run(Stream::cpu());
    on_cuda.run(stream_of(Place::kCuda));
    EXPECT_EQ(on_cpu.x.raw(), on_cuda.x.raw());
    EXPECT_EQ(on_cpu.y.raw(), on_cuda.y.raw());
  }
}

TEST(MixArguments, TypesAreChecked) {
  int64_t x[2] = {};
  float y[2] = {}, matrix[4] = {1, 0, 0, 1};
  double sums[3] = {};
  EXPECT_THROW(mix(x, DType::kI64, y, 2, matrix, Stream::cpu()), ConfigError);
  EXPECT_THROW(dots(x, DType::kF64, y, 2, sums, nullptr, Stream::cpu()), ConfigError);
  EXPECT_NO_THROW(mix(nullptr, DType::kI64, nullptr, 0, matrix, Stream::cpu()));
  EXPECT_NO_THROW(dots(nullptr, DType::kI64, nullptr, 0, sums, nullptr, Stream::cpu()));
}

}  // namespace
}  // namespace zerosharp::kernels
