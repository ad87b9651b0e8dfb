// Norm, factors, perturbation, casts, accumulation and slice reduction, in CPU and CUDA memory.
#include <gtest/gtest.h>

#include "kernels/error.h"
#include "tests/kernels/kernel_fixture.h"

namespace zerosharp::kernels {
namespace {

using namespace zerosharp::testing;

class Kernels : public WithWorkspace {};
INSTANTIATE_TEST_SUITE_P(Places, Kernels, ::testing::Values(Place::kCpu, Place::kCuda), place_name);

// Squares of fp32 are exact in fp64 (48 bits); n additions err by at most n · 2^-53 relative.
TEST_P(Kernels, SumOfSquares) {
  for (const DType dtype : kFloatTypes) {
    for (const int64_t n : kSizes) {
      for (const int64_t offset : {0, 1}) {
        Buffer x(place(), dtype, random_values(static_cast<size_t>(n), 11, 3.0f), offset);
        double expected = 5.0;
        for (const float value : x.values()) expected += double{value} * double{value};
        Doubles sums(place(), 2);
        // It adds to what is there: start from 5 by hand through a first vector of norm √5.
        Buffer first(place(), DType::kF32, {1.0f, 2.0f});
        sum_squares(first.data(), DType::kF32, 2, sums.data(), workspace(), stream());
        sum_squares(x.data(), dtype, n, sums.data(), workspace(), stream());
        EXPECT_NEAR(sums.values()[0], expected, expected * (static_cast<double>(n) + 2) * 0x1p-53);
        EXPECT_EQ(sums.values()[1], 0.0);
      }
    }
  }
}

TEST_P(Kernels, SumOfSquaresCountsWhatIsNotFinite) {
  for (const DType dtype : kFloatTypes) {
    auto values = random_values(1000, 12);
    values[0] = NAN;
    values[500] = HUGE_VALF;
    values[999] = -HUGE_VALF;
    Buffer x(place(), dtype, values, 1);
    Doubles sums(place(), 2);
    sum_squares(x.data(), dtype, 1000, sums.data(), workspace(), stream());
    EXPECT_EQ(sums.values()[1], 3.0);
    EXPECT_FALSE(std::isfinite(sums.values()[0]));
  }
}

// 65536 ones in bf16: a bf16 running sum would stall at 256.
TEST_P(Kernels, SumOfSquaresOfManyBf16Ones) {
  Buffer x(place(), DType::kBF16, std::vector<float>(65536, 1.0f));
  Doubles sums(place(), 2);
  sum_squares(x.data(), DType::kBF16, 65536, sums.data(), workspace(), stream());
  EXPECT_EQ(sums.values()[0], 65536.0);
}

TEST_P(Kernels, SumOfSquaresIsTheSameOnEveryCall) {
  Buffer x(place(), DType::kF32, random_values(1 << 20, 13));
  std::vector<double> seen;
  for (const int threads : {1, 2, 3, 1}) {
    set_num_threads(threads);
    Doubles sums(place(), 2);
    sum_squares(x.data(), DType::kF32, 1 << 20, sums.data(), workspace(), stream());
    seen.push_back(sums.values()[0]);
  }
  set_num_threads(1);
  for (const double value : seen) EXPECT_EQ(value, seen[0]);
}

TEST_P(Kernels, ClipScale) {
  const auto clip = [&](double sum, double bad, double pre, double most) {
    Doubles sums(place(), 2);
    Buffer out(place(), DType::kF32, {0, 0});
    // Build the sums by the kernel itself, so that they lie in the right memory.
    std::vector<float> x;
    for (double left = sum; left > 0; left -= 1) x.push_back(1.0f);
    for (double i = 0; i < bad; ++i) x.push_back(NAN);
    Buffer values(place(), DType::kF32, x);
    sum_squares(values.data(), DType::kF32, static_cast<int64_t>(x.size()), sums.data(),
                workspace(), stream());
    clip_scale(sums.data(), pre, most, out.as<float>(), stream());
    return out.values();
  };
  EXPECT_EQ(clip(100, 0, 1, 0), (std::vector<float>{1, 10}));     // clipping off
  EXPECT_EQ(clip(100, 0, 0.5, 0), (std::vector<float>{0.5, 5}));  // unscaled
  EXPECT_EQ(clip(100, 0, 1, 20), (std::vector<float>{1, 10}));    // below the limit
  EXPECT_NEAR(clip(100, 0, 1, 1)[0], 0.1, 1e-7);                  // 1 / (10 + 1e-6)
  EXPECT_NEAR(clip(100, 0, 0.5, 1)[0], 0.1, 1e-7);                // unscale and clip
  EXPECT_EQ(clip(0, 0, 1, 1), (std::vector<float>{1, 0}));        // zero gradient
  EXPECT_TRUE(std::isnan(clip(4, 1, 1, 1)[0]));
}

TEST_P(Kernels, AscentScale) {
  Doubles sums(place(), 2);
  Buffer x(place(), DType::kF32, {3.0f, 4.0f});
  Buffer out(place(), DType::kF32, {9, 9});
  ascent_scale(sums.data(), 0.5, 0.1, 1e-12, out.as<float>(), stream());
  EXPECT_EQ(out.values(), (std::vector<float>{0, 0}));  // zero gradient: no perturbation
  sum_squares(x.data(), DType::kF32, 2, sums.data(), workspace(), stream());
  ascent_scale(sums.data(), 0.5, 0.1, 1e-12, out.as<float>(), stream());
  EXPECT_FLOAT_EQ(out.values()[0], 0.02f);  // e = 0.1 · (3, 4) / 5
  EXPECT_EQ(out.values()[1], 2.5f);
}

TEST_P(Kernels, PerturbAddsInFp32AndRoundsOnce) {
  for (const DType grad_dtype : kFloatTypes) {
    for (const DType weight_dtype : kFloatTypes) {
      for (const int64_t n : kSizes) {
        const auto count = static_cast<size_t>(n);
        Buffer grad(place(), grad_dtype, random_values(count, 21), 1);
        Buffer master(place(), DType::kF32, random_values(count, 22), 1);
        Buffer weight(place(), weight_dtype, master.values(), 1);
        Buffer scale(place(), DType::kF32, {0.01f});
        Doubles stats(place(), 3);
        PerturbShard shard{n,           grad.data(), grad_dtype, master.as<float>(), weight.data(),
                           weight_dtype};
        PerturbStep step;
        step.scale = scale.as<float>();
        const auto g = grad.values(), w = master.values();
        const auto before = stored(weight_dtype, w);
        perturb(shard, step, stats.data(), workspace(), stream());
        double moved = 0, realised = 0, squares = 0;
        std::vector<float> expected(count);
        for (size_t i = 0; i < count; ++i) {
          const float e = 0.01f * g[i];
          expected[i] = w[i] + e;
          const float after = stored(weight_dtype, {expected[i]})[0];
          moved += after != before[i];
          realised += (double{after} - before[i]) * (double{after} - before[i]);
          squares += double{e} * double{e};
        }
        EXPECT_EQ(weight.values(), stored(weight_dtype, expected));
        EXPECT_EQ(stats.values()[0], moved);
        // Differences may be rounded to fp32 once before they are squared: 2·2^-24.
        EXPECT_NEAR(stats.values()[1], realised, 0x1p-23 * realised);
        EXPECT_NEAR(stats.values()[2], squares, 1e-12 * squares);
      }
    }
  }
}

TEST_P(Kernels, StochasticPerturbationDoesNotDependOnTheSplit) {
  const size_t n = 4099;
  const auto run = [&](const std::vector<int64_t>& cuts, uint64_t seed) {
    Buffer grad(place(), DType::kBF16, random_values(n, 31));
    Buffer master(place(), DType::kF32, random_values(n, 32));
    Buffer weight(place(), DType::kBF16, std::vector<float>(n, 0.0f));
    Buffer scale(place(), DType::kF32, {0.003f});
    Doubles stats(place(), 3);
    for (size_t c = 0; c + 1 < cuts.size(); ++c) {
      PerturbShard shard;
      shard.numel = cuts[c + 1] - cuts[c];
      shard.grad = grad.as<BF16>() + cuts[c];
      shard.grad_dtype = DType::kBF16;
      shard.master = master.as<float>() + cuts[c];
      shard.weight = weight.as<BF16>() + cuts[c];
      shard.weight_dtype = DType::kBF16;
      shard.first_element = cuts[c];
      PerturbStep step{scale.as<float>(), Rounding::kStochastic, seed, 5};
      perturb(shard, step, stats.data(), workspace(), stream());
    }
    return weight.raw();
  };
  const auto whole = run({0, 4099}, 1);
  EXPECT_EQ(run({0, 1, 2, 7, 1000, 4099}, 1), whole);
  EXPECT_NE(run({0, 4099}, 2), whole);
}

// Masters that are bf16 values have no remainder: nearest rounding swallows a small perturbation,
// stochastic rounding keeps it on average.
TEST_P(Kernels, StochasticRoundingKeepsWhatNearestSwallows) {
  const size_t n = 100000;
  for (const Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
    Buffer grad(place(), DType::kF32, std::vector<float>(n, 1.0f));
    Buffer weight(place(), DType::kBF16, std::vector<float>(n, 1.0f));
    Buffer scale(place(), DType::kF32, {0.001f});  // bf16's step at 1 is 2^-7
    Doubles stats(place(), 3);
    PerturbShard shard{static_cast<int64_t>(n), grad.data(), DType::kF32, nullptr,
                       weight.data(),           DType::kBF16};
    PerturbStep step{scale.as<float>(), rounding, 9, 9};
    perturb(shard, step, stats.data(), workspace(), stream());
    double shift = 0;
    for (const float value : weight.values()) shift += value - 1.0;
    shift /= static_cast<double>(n);
    if (rounding == Rounding::kNearest) {
      EXPECT_EQ(shift, 0.0);
    } else {  // 5 standard deviations of a mean of n coins of probability 0.128
      EXPECT_NEAR(shift, 0.001, 5 * 0x1p-7 * std::sqrt(0.128 * 0.872 / static_cast<double>(n)));
    }
  }
}

TEST_P(Kernels, NanFactorPerturbsNothing) {
  Buffer grad(place(), DType::kF32, random_values(100, 41));
  Buffer weight(place(), DType::kBF16, random_values(100, 42));
  Buffer scale(place(), DType::kF32, {NAN});
  Doubles stats(place(), 3);
  const auto before = weight.raw();
  PerturbShard shard{100, grad.data(), DType::kF32, nullptr, weight.data(), DType::kBF16};
  PerturbStep step{scale.as<float>()};
  perturb(shard, step, stats.data(), workspace(), stream());
  EXPECT_EQ(weight.raw(), before);
  EXPECT_EQ(stats.values(), (std::vector<double>{0, 0, 0}));
}

TEST_P(Kernels, CastAndScaledAdd) {
  for (const DType from : kFloatTypes) {
    for (const DType to : kFloatTypes) {
      for (const int64_t n : kSizes) {
        for (const int64_t offset : {0, 1}) {
          auto values = random_values(static_cast<size_t>(n), 51, 100.0f);
          if (n > 8) values[1] = NAN, values[2] = HUGE_VALF, values[3] = 1e-40f, values[4] = -0.0f;
          Buffer src(place(), from, values, offset);
          Buffer dst(place(), to, random_values(static_cast<size_t>(n), 52), offset);
          const auto x = src.values(), y = dst.values();
          std::vector<float> sum(x.size());
          for (size_t i = 0; i < x.size(); ++i) sum[i] = y[i] + 0.5f * x[i];
          scaled_add(dst.data(), to, src.data(), from, 0.5f, n, stream());
          EXPECT_TRUE(same_numbers(dst.values(), stored(to, sum)));
          cast(src.data(), from, dst.data(), to, n, stream());
          EXPECT_TRUE(same_numbers(dst.values(), stored(to, x)));
        }
      }
    }
  }
}

// n sums in fp32 err by at most (n − 1)/2 ulps of the largest partial sum; the result of a 16-bit
// type is rounded once more.
TEST_P(Kernels, ReduceSlices) {
  for (const DType dtype : kFloatTypes) {
    for (const int sources : {1, 2, 3, 8}) {
      for (const int64_t n : kSizes) {
        std::vector<std::unique_ptr<Buffer>> slices;
        std::vector<const void*> pointers;
        std::vector<double> sum(static_cast<size_t>(n)), size(static_cast<size_t>(n));
        std::vector<float> most(static_cast<size_t>(n), -HUGE_VALF);
        for (int s = 0; s < sources; ++s) {
          slices.push_back(std::make_unique<Buffer>(
              place(), dtype, random_values(static_cast<size_t>(n), 60 + static_cast<uint32_t>(s)),
              1));
          pointers.push_back(slices.back()->data());
          const auto values = slices.back()->values();
          for (size_t i = 0; i < values.size(); ++i) {
            sum[i] += values[i];
            size[i] += std::fabs(values[i]);
            most[i] = std::max(most[i], values[i]);
          }
        }
        Buffer out(place(), dtype, std::vector<float>(static_cast<size_t>(n), 0.0f), 1);
        const double unit = dtype == DType::kF32    ? 0x1p-24
                            : dtype == DType::kBF16 ? 0x1p-8
                                                    : 0x1p-11;
        reduce_slices(pointers.data(), sources, ReduceOp::kMean, dtype, n, out.data(), stream());
        auto values = out.values();
        for (size_t i = 0; i < values.size(); ++i) {
          const double mean = sum[i] / sources;
          EXPECT_NEAR(values[i], mean,
                      size[i] * (sources * 0x1p-24) + std::fabs(mean) * unit + 0x1p-25);
        }
        reduce_slices(pointers.data(), sources, ReduceOp::kMax, dtype, n, out.data(), stream());
        EXPECT_EQ(out.values(), most);
      }
    }
  }
}

// 256 + 1 rounds to 256 in bf16, so adding ones one by one would stay at 256.
TEST_P(Kernels, SixteenBitSlicesAreSummedInFp32) {
  std::vector<std::unique_ptr<Buffer>> slices;
  std::vector<const void*> pointers;
  for (int s = 0; s < 9; ++s) {
    slices.push_back(std::make_unique<Buffer>(place(), DType::kBF16,
                                              std::vector<float>(5, s == 0 ? 256.0f : 1.0f)));
    pointers.push_back(slices.back()->data());
  }
  reduce_slices(pointers.data(), 9, ReduceOp::kSum, DType::kBF16, 5, slices[0]->data(), stream());
  EXPECT_EQ(slices[0]->values(), std::vector<float>(5, 264.0f));
}

TEST(ReduceSlices, WholeNumbersAndDoubles) {
  const int64_t a[] = {1, -5, int64_t{1} << 60}, b[] = {2, 7, 1};
  int64_t out[3];
  const void* sources[] = {a, b};
  reduce_slices(sources, 2, ReduceOp::kSum, DType::kI64, 3, out, Stream::cpu());
  EXPECT_EQ(out[2], (int64_t{1} << 60) + 1);
  reduce_slices(sources, 2, ReduceOp::kMin, DType::kI64, 3, out, Stream::cpu());
  EXPECT_EQ(out[1], -5);
  EXPECT_THROW(reduce_slices(sources, 2, ReduceOp::kMean, DType::kI64, 3, out, Stream::cpu()),
               ConfigError);
  const double x[] = {1e-30, 1.0}, y[] = {1.0, 3.0};
  double sum[2];
  const void* doubles[] = {x, y};
  reduce_slices(doubles, 2, ReduceOp::kMean, DType::kF64, 2, sum, Stream::cpu());
  EXPECT_EQ(sum[1], 2.0);
}

}  // namespace
}  // namespace zerosharp::kernels
