// Weighted perturbations, their norm and stochastic rounding, against float64, in CPU and CUDA
// memory. The unweighted kernel's own tests are in reductions_test.cpp.
#include "kernels/perturb.h"

#include <gtest/gtest.h>

#include "kernels/cpu/passes.h"
#include "kernels/error.h"
#include "tests/kernels/kernel_fixture.h"

namespace zerosharp::kernels {
namespace {

using namespace zerosharp::testing;

class Perturb : public WithWorkspace {};
INSTANTIATE_TEST_SUITE_P(Places, Perturb, ::testing::Values(Place::kCpu, Place::kCuda), place_name);

constexpr Weighting kWeightings[] = {Weighting::kNone, Weighting::kMagnitude,
                                     Weighting::kPreconditioned};
constexpr float kShift = 0.125f;
constexpr float kScale = 0.25f;

/// t² in float64.
double weight_of(Weighting weighting, double base, double v) {
  if (weighting == Weighting::kMagnitude) return std::pow(std::fabs(base) + double{kShift}, 2);
  if (weighting == Weighting::kPreconditioned) return 1 / (std::sqrt(v) + double{kShift});
  return 1;
}

// t²·x takes at most four roundings in fp32: t, t·t (in which t's counts twice) and the product; or
// root, sum and quotient.
constexpr double kWeighted = 4 * 0x1p-24 * (1 + 0x1p-20);

/// One run with every vector `offset` elements behind an aligned address.
struct PerturbRun {
  PerturbRun(Place at, DType grad_dtype, DType weight_dtype, size_t count, int64_t offset = 0,
             bool has_master = true, uint32_t seed = 21)
      : place(at),
        grad(at, grad_dtype, random_values(count, seed), offset),
        master(at, DType::kF32, random_values(count, seed + 1), offset),
        weight(at, weight_dtype, random_values(count, seed + 1), offset),
        second(at, DType::kF32, squares(count, seed + 2), offset),
        scale(at, DType::kF32, {kScale}),
        stats(at, 3) {
    shard.numel = static_cast<int64_t>(count);
    shard.grad = grad.data();
    shard.grad_dtype = grad_dtype;
    shard.master = has_master ? master.as<float>() : nullptr;
    shard.weight = weight.data();
    shard.weight_dtype = weight_dtype;
    shard.second_moment = second.as<float>();
    step.scale = scale.as<float>();
    step.shift = kShift;
  }
  static std::vector<float> squares(size_t count, uint32_t seed) {
    auto values = random_values(count, seed);
    for (float& value : values) value = value * value;
    return values;
  }
  void perturb(double* workspace) {
    kernels::perturb(shard, step, stats.data(), workspace, stream_of(place));
  }
  std::vector<float> bases() { return shard.master != nullptr ? master.values() : weight.values(); }

  Place place;
  Buffer grad, master, weight, second, scale;
  Doubles stats;
  PerturbShard shard;
  PerturbStep step;
};

/// Perturbs and compares weights and statistics with float64.
void expect_perturbed(PerturbRun& run, double* workspace, const std::string& what) {
  const DType dtype = run.shard.weight_dtype;
  const auto g = run.grad.values(), bases = run.bases(), v = run.second.values();
  const auto before = stored(dtype, bases);
  run.perturb(workspace);
  const auto after = run.weight.values();
  double moved = 0, realised = 0, squares = 0;
  for (size_t i = 0; i < after.size(); ++i) {
    const double e = double{kScale} * g[i] * weight_of(run.step.weighting, bases[i], v[i]);
    const double exact = bases[i] + e;
    const double in_fp32 =
        (kWeighted + 0x1p-24) * std::fabs(e) + 0x1p-24 * (std::fabs(exact) + std::fabs(e) * 1e-6);
    const double rounded = dtype == DType::kF32 ? 0 : unit_of(dtype) * (std::fabs(exact) + in_fp32);
    ASSERT_NEAR(after[i], exact, in_fp32 + rounded + least_unit_of(dtype))
        << what << ", element " << i;
    const double shift = double{after[i]} - before[i];
    moved += after[i] != before[i];
    realised += shift * shift;
    squares += e * e;
  }
  const auto stats = run.stats.values();
  EXPECT_EQ(stats[0], moved) << what;
  // The difference may be rounded to fp32 once before it is squared.
  EXPECT_NEAR(stats[1], realised, 0x1p-22 * realised) << what;
  EXPECT_NEAR(stats[2], squares, 2.01 * (kWeighted + 0x1p-24) * squares) << what;
}

TEST_P(Perturb, AddsTheWeightedGradientAndRoundsOnce) {
  for (const Weighting weighting : kWeightings) {
    for (const DType grad_dtype : kFloatTypes) {
      for (const DType weight_dtype : kFloatTypes) {
        for (const int64_t n : kSizes) {
          for (const bool has_master : {true, false}) {
            PerturbRun run(place(), grad_dtype, weight_dtype, static_cast<size_t>(n), n % 4,
                           has_master);
            run.step.weighting = weighting;
            expect_perturbed(run, workspace(),
                             "weighting " + std::to_string(static_cast<int>(weighting)) + ", " +
                                 std::to_string(n) + " " + dtype_name(weight_dtype));
          }
        }
      }
    }
  }
}

TEST_P(Perturb, NanFactorLeavesWeightsAndStatistics) {
  for (const Weighting weighting : kWeightings) {
    PerturbRun run(place(), DType::kF32, DType::kBF16, 1000, 1);
    run.step.weighting = weighting;
    run.step.rounding = Rounding::kStochastic;
    Buffer nan(place(), DType::kF32, {NAN});
    run.step.scale = nan.as<float>();
    const auto before = run.weight.raw();
    run.perturb(workspace());
    EXPECT_EQ(run.weight.raw(), before);
    EXPECT_EQ(run.stats.values(), (std::vector<double>{0, 0, 0}));
  }
}

// Σ(t·g)² has positive terms of relative error 4·2^-24 each, Σ(t²·g)² twice that.
TEST_P(Perturb, WeightedSumsOfSquares) {
  for (const Weighting weighting : kWeightings) {
    for (const DType grad_dtype : kFloatTypes) {
      for (const DType weight_dtype : {DType::kF32, DType::kBF16}) {
        for (const int64_t n : kSizes) {
          for (const bool has_master : {true, false}) {
            PerturbRun run(place(), grad_dtype, weight_dtype, static_cast<size_t>(n), n % 4,
                           has_master);
            const auto g = run.grad.values(), bases = run.bases(), v = run.second.values();
            double norm = 0, direction = 0;
            for (size_t i = 0; i < g.size(); ++i) {
              const double t2 = weight_of(weighting, bases[i], v[i]);
              norm += t2 * g[i] * g[i];
              direction += t2 * g[i] * t2 * g[i];
            }
            sum_squares_weighted(run.shard, weighting, kShift, run.stats.data(), workspace(),
                                 stream());
            const auto sums = run.stats.values();
            EXPECT_NEAR(sums[0], norm, 1.001 * kWeighted * norm);
            EXPECT_EQ(sums[1], 0.0);
            const bool weighted = weighting != Weighting::kNone;
            EXPECT_NEAR(sums[2], weighted ? direction : 0.0, 2.01 * kWeighted * direction);
          }
        }
      }
    }
  }
}

// More than 64 blocks of the CPU and one round of all the GPU's threads; t = 1, 2 or 3 and whole
// gradients, so that all sums are exact.
TEST_P(Perturb, WeightedSumsOfManyElementsAreExact) {
  const size_t n = (size_t{4} << 20) + 65537;
  std::vector<float> g(n), w(n);
  double norm = 0, direction = 0;
  for (size_t i = 0; i < n; ++i) {
    const double gi = static_cast<double>(i % 61) - 30, t = 1.0 + static_cast<double>(i % 3);
    g[i] = static_cast<float>(gi);
    w[i] = static_cast<float>(i % 2 == 0 ? t - 0.5 : 0.5 - t);  // t = |w| + 0.5
    norm += gi * gi * t * t;
    direction += gi * gi * t * t * t * t;
  }
  Buffer grad(place(), DType::kBF16, g);
  Buffer weight(place(), DType::kBF16, w);
  PerturbShard shard{static_cast<int64_t>(n),
                     grad.data(),
                     DType::kBF16,
                     nullptr,
                     weight.data(),
                     DType::kBF16,
                     0,
                     nullptr};
  Doubles sums(place(), 3);
  sum_squares_weighted(shard, Weighting::kMagnitude, 0.5f, sums.data(), workspace(), stream());
  EXPECT_EQ(sums.values(), (std::vector<double>{norm, 0, direction}));
}

TEST_P(Perturb, NonFiniteGradientsAreCounted) {
  for (const Weighting weighting : kWeightings) {
    for (const DType dtype : kFloatTypes) {
      auto values = random_values(70000, 22);
      values[0] = NAN;
      values[500] = HUGE_VALF;
      values[69999] = -HUGE_VALF;
      PerturbRun run(place(), dtype, DType::kBF16, values.size());
      Buffer grad(place(), dtype, values, 1);
      run.shard.grad = grad.data();
      sum_squares_weighted(run.shard, weighting, kShift, run.stats.data(), workspace(), stream());
      EXPECT_EQ(run.stats.values()[1], 3.0);
      EXPECT_FALSE(std::isfinite(run.stats.values()[0]));
    }
  }
}

constexpr size_t kMany = 150001;  // three blocks

std::vector<char> stochastic(PerturbRun& run, double* workspace, Weighting weighting,
                             uint64_t seed = 1, uint64_t step = 5, int64_t first_element = 0) {
  run.step.weighting = weighting;
  run.step.rounding = Rounding::kStochastic;
  run.step.seed = seed;
  run.step.step = step;
  run.shard.first_element = first_element;
  run.perturb(workspace);
  return run.weight.raw();
}

// A rank may own any run of the buffer: what it draws depends on seed, step and element alone, also
// beyond 2^34 elements, where the counter's second word begins.
TEST_P(Perturb, RandomBitsBelongToTheElement) {
  constexpr int64_t kStarts[] = {0, 3, (int64_t{1} << 34) - 70001};
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const int64_t width = element_bytes(dtype);
    for (const Weighting weighting : kWeightings) {
      for (const int64_t first : kStarts) {
        PerturbRun whole_run(place(), DType::kBF16, dtype, kMany);
        const auto whole = stochastic(whole_run, workspace(), weighting, 1, 5, first);
        PerturbRun again(place(), DType::kBF16, dtype, kMany);
        EXPECT_EQ(stochastic(again, workspace(), weighting, 1, 5, first), whole);
        PerturbRun cut(place(), DType::kBF16, dtype, kMany);
        int64_t begin = 0;
        for (const int64_t end : {1, 2, 7, 65, 70001, 140003, static_cast<int>(kMany)}) {
          PerturbShard part = cut.shard;
          part.numel = end - begin;
          part.grad = cut.grad.as<BF16>() + begin;
          part.master = cut.master.as<float>() + begin;
          part.second_moment = cut.second.as<float>() + begin;
          part.weight = cut.weight.as<char>() + begin * width;
          part.first_element = first + begin;
          PerturbStep step = whole_run.step;
          step.scale = cut.scale.as<float>();
          kernels::perturb(part, step, cut.stats.data(), workspace(), stream());
          begin = end;
        }
        EXPECT_EQ(cut.weight.raw(), whole) << "from element " << first;
        EXPECT_EQ(cut.stats.values()[0], whole_run.stats.values()[0]);
      }
    }
  }
}

TEST_P(Perturb, OtherSeedsStepsAndElementsDrawOtherBits) {
  const auto drawn = [&](uint64_t seed, uint64_t step, int64_t first) {
    PerturbRun run(place(), DType::kF32, DType::kBF16, 10000);
    return stochastic(run, workspace(), Weighting::kNone, seed, step, first);
  };
  const auto base = drawn(1, 5, 0);
  const uint64_t high = uint64_t{1} << 40;
  for (const auto& other : {drawn(2, 5, 0), drawn(1 + high, 5, 0), drawn(1, 6, 0),
                            drawn(1, 5 + high, 0), drawn(1, 5, 1), drawn(1, 5, int64_t{1} << 36)}) {
    size_t differ = 0;
    for (size_t i = 0; i < base.size(); i += sizeof(BF16)) differ += base[i] != other[i];
    EXPECT_GT(differ, 2000u);  // of 10000; a third of independent draws differ on average
    EXPECT_LT(differ, 5000u);
  }
}

// Both neighbours of base + e, each as often as its distance says: the mean of n draws of a value
// that lies a fraction f of a step u above the lower one deviates by u·√(f(1 − f)/n) ≤ u/(2√n).
TEST_P(Perturb, StochasticRoundingIsUnbiasedForEveryWeighting) {
  const size_t n = 40000;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const Weighting weighting : kWeightings) {
      PerturbRun run(place(), DType::kF32, dtype, n);
      const float w = 1.25f, g = 0.01f, v = 0.0625f;
      Buffer grad(place(), DType::kF32, std::vector<float>(n, g));
      Buffer base(place(), DType::kF32, std::vector<float>(n, w));
      Buffer second(place(), DType::kF32, std::vector<float>(n, v));
      run.shard.grad = grad.data();
      run.shard.master = base.as<float>();
      run.shard.second_moment = second.as<float>();
      stochastic(run, workspace(), weighting);
      const double exact = w + double{kScale} * g * weight_of(weighting, w, v);
      const double spacing = 2 * unit_of(dtype);  // between 1 and 2
      double sum = 0;
      for (const float value : run.weight.values()) {
        ASSERT_LT(std::fabs(value - exact), spacing);
        sum += value;
      }
      EXPECT_NEAR(sum / n, exact, 5 * spacing / (2 * std::sqrt(n)) + 0x1p-23);
    }
  }
}

TEST_P(Perturb, Fp32WeightsAreNeverRoundedAtRandom) {
  PerturbRun nearest(place(), DType::kBF16, DType::kF32, 1000);
  nearest.perturb(workspace());
  PerturbRun random(place(), DType::kBF16, DType::kF32, 1000);
  EXPECT_EQ(stochastic(random, workspace(), Weighting::kNone), nearest.weight.raw());
}

TEST(PerturbOnTheCpu, DoesNotDependOnThreadsOrInstructions) {
  for (const DType dtype : kFloatTypes) {
    for (const Weighting weighting : kWeightings) {
      std::vector<char> expected;
      std::vector<double> stats, sums;
      for (const int threads : {1, 2, 3, 5}) {
        set_num_threads(threads);
        PerturbRun run(Place::kCpu, DType::kBF16, dtype, kMany, 1);
        Doubles norm(Place::kCpu, 3);
        sum_squares_weighted(run.shard, weighting, kShift, norm.data(), nullptr, Stream::cpu());
        const auto weights = stochastic(run, nullptr, weighting);
        if (threads == 1) {
          expected = weights;
          stats = run.stats.values();
          sums = norm.values();
        }
        EXPECT_EQ(weights, expected) << threads << " threads";
        EXPECT_EQ(run.stats.values(), stats) << threads << " threads";
        EXPECT_EQ(norm.values(), sums) << threads << " threads";
      }
      set_num_threads(1);
      for (const char* name : {"scalar", "avx2", "avx512"}) {
        const cpu::Passes* passes = cpu::passes_for(name);
        if (passes == nullptr) continue;
        PerturbRun run(Place::kCpu, DType::kBF16, dtype, kMany, 1);
        run.step.weighting = weighting;
        run.step.rounding = Rounding::kStochastic;
        run.step.seed = 1;
        run.step.step = 5;
        passes->perturb(run.shard, run.step, kScale, 0, kMany);
        EXPECT_EQ(run.weight.raw(), expected) << name;
      }
    }
  }
}

TEST(PerturbOnCuda, EqualsTheCpu) {
  if (!why_no_gpu().empty()) GTEST_SKIP() << why_no_gpu();
  Doubles workspace(Place::kCuda, kReductionWorkspace);
  for (const DType dtype : kFloatTypes) {
    for (const Weighting weighting : kWeightings) {
      for (const int64_t offset : {0, 1}) {
        PerturbRun on_cpu(Place::kCpu, DType::kBF16, dtype, kMany, offset);
        PerturbRun on_cuda(Place::kCuda, DType::kBF16, dtype, kMany, offset);
        EXPECT_EQ(stochastic(on_cpu, nullptr, weighting),
                  stochastic(on_cuda, workspace.data(), weighting));
        EXPECT_EQ(on_cpu.stats.values()[0], on_cuda.stats.values()[0]);
      }
    }
  }
}

TEST(PerturbArguments, WhatIsMissingIsNamed) {
  PerturbRun run(Place::kCpu, DType::kF32, DType::kF32, 4);
  run.shard.second_moment = nullptr;
  double sums[3] = {};
  EXPECT_THROW(sum_squares_weighted(run.shard, Weighting::kPreconditioned, kShift, sums, nullptr,
                                    Stream::cpu()),
               ConfigError);
  run.step.weighting = Weighting::kPreconditioned;
  EXPECT_THROW(run.perturb(nullptr), ConfigError);
  run.step.weighting = Weighting::kNone;
  run.step.scale = nullptr;
  EXPECT_THROW(run.perturb(nullptr), ConfigError);
  run.shard.numel = 0;
  EXPECT_NO_THROW(run.perturb(nullptr));
}

}  // namespace
}  // namespace zerosharp::kernels
