// The fused pass against float64 formulas, in CPU and CUDA memory.
#include <gtest/gtest.h>

#include "kernels/cpu/passes.h"
#include "kernels/error.h"
#include "tests/kernels/kernel_fixture.h"

namespace zerosharp::kernels {
namespace {

using namespace zerosharp::testing;

struct Options {
  std::string name;
  OptimizerStep step;
};

std::vector<Options> all_options() {
  const auto make = [](const char* name, OptimizerKind kind, auto change) {
    Options options{name, {}};
    options.step.kind = kind;
    options.step.lr = 0.01;
    change(options.step);
    return options;
  };
  using S = OptimizerStep;
  return {
      make("adamw", OptimizerKind::kAdamW, [](S& s) { s.weight_decay = 0.1; }),
      make("adamw step 7", OptimizerKind::kAdamW, [](S& s) { s.step = 7; }),
      make("adamw uncorrected", OptimizerKind::kAdamW, [](S& s) { s.bias_correction = false; }),
      make("adam l2", OptimizerKind::kAdam, [](S& s) { s.weight_decay = 0.1; }),
      make("sgd", OptimizerKind::kSgd, [](S&) {}),
      make("sgd l2", OptimizerKind::kSgd, [](S& s) { s.weight_decay = 0.1; }),
      make("sgd decoupled", OptimizerKind::kSgd,
           [](S& s) { s.weight_decay = 0.1, s.decoupled_decay = true; }),
      make("sgd momentum first", OptimizerKind::kSgd,
           [](S& s) { s.momentum = 0.9, s.dampening = 0.3; }),
      make("sgd momentum later", OptimizerKind::kSgd,
           [](S& s) { s.momentum = 0.9, s.dampening = 0.3, s.step = 2; }),
      make("sgd nesterov", OptimizerKind::kSgd,
           [](S& s) { s.momentum = 0.9, s.nesterov = true, s.step = 5; }),
      make("lion", OptimizerKind::kLion, [](S& s) { s.weight_decay = 0.1, s.beta2 = 0.99; }),
      make("adagrad", OptimizerKind::kAdagrad,
           [](S& s) { s.weight_decay = 0.1, s.lr_decay = 0.5, s.step = 4, s.eps = 1e-10; }),
  };
}

struct Exact {
  double w, s0, s1, step_size;
};

/// One element in float64, written from the papers' formulas.
Exact reference(const OptimizerStep& s, double g, double w, double m, double v) {
  const double w0 = w;
  switch (s.kind) {
    case OptimizerKind::kAdamW:
    case OptimizerKind::kAdam: {
      if (s.kind == OptimizerKind::kAdam) g += s.weight_decay * w;
      if (s.kind == OptimizerKind::kAdamW) w -= s.lr * s.weight_decay * w;
      m = s.beta1 * m + (1 - s.beta1) * g;
      v = s.beta2 * v + (1 - s.beta2) * g * g;
      const double t = static_cast<double>(s.step);
      const double m_hat = s.bias_correction ? m / (1 - std::pow(s.beta1, t)) : m;
      const double v_hat = s.bias_correction ? v / (1 - std::pow(s.beta2, t)) : v;
      w -= s.lr * m_hat / (std::sqrt(v_hat) + s.eps);
      break;
    }
    case OptimizerKind::kSgd: {
      double d = s.decoupled_decay ? g : g + s.weight_decay * w;
      if (s.decoupled_decay) w -= s.lr * s.weight_decay * w;
      if (s.momentum != 0) {
        m = s.step == 1 ? d : s.momentum * m + (1 - s.dampening) * d;
        d = s.nesterov ? d + s.momentum * m : m;
      }
      w -= s.lr * d;
      break;
    }
    case OptimizerKind::kLion: {
      const double c = s.beta1 * m + (1 - s.beta1) * g;
      w -= s.lr * s.weight_decay * w + s.lr * ((c > 0) - (c < 0));
      m = s.beta2 * m + (1 - s.beta2) * g;
      break;
    }
    case OptimizerKind::kAdagrad:
      g += s.weight_decay * w;
      m += g * g;
      w -= s.lr / (1 + (static_cast<double>(s.step) - 1) * s.lr_decay) * g / (std::sqrt(m) + s.eps);
      break;
  }
  return {w, m, v, std::fabs(w - w0)};
}

class Step : public BothPlaces {};
INSTANTIATE_TEST_SUITE_P(Places, Step, ::testing::Values(Place::kCpu, Place::kCuda), place_name);

/// Runs the kernel on buffers `offset` elements off alignment.
struct StepCase {
  StepCase(Place place, const OptimizerStep& step, DType grad_dtype, DType weight_dtype, size_t n,
           float scale, int64_t offset)
      : grad(place, grad_dtype, random_values(n, 1), offset),
        master(place, DType::kF32, random_values(n, 2), offset),
        state0(place, DType::kF32, random_values(n, 3, 0.1f), offset),
        state1(place, DType::kF32, positive(random_values(n, 4, 0.1f)), offset),
        weight(place, weight_dtype, std::vector<float>(n, 7.0f), offset),
        factor(place, DType::kF32, {scale}) {
    if (step.kind == OptimizerKind::kAdagrad) {
      state0_positive =
          std::make_unique<Buffer>(place, DType::kF32, positive(random_values(n, 3, 0.1f)), offset);
    }
    shard.numel = static_cast<int64_t>(n);
    shard.grad = grad.data();
    shard.grad_dtype = grad_dtype;
    shard.master = master.as<float>();
    shard.state0 = first_state().as<float>();
    shard.state1 = state1.as<float>();
    shard.weight = weight.data();
    shard.weight_dtype = weight_dtype;
    numbers = step;
    numbers.grad_scale = factor.as<float>();
  }
  static std::vector<float> positive(std::vector<float> values) {
    for (float& value : values) value = value * value;
    return values;
  }
  Buffer& first_state() { return state0_positive ? *state0_positive : state0; }

  Buffer grad, master, state0, state1, weight, factor;
  std::unique_ptr<Buffer> state0_positive;
  OptimizerShard shard;
  OptimizerStep numbers;
};

// Each line of the update is at most six fp32 operations of values whose sizes are |w|, lr·|update|
// and the states themselves; half an ulp each gives 3·2^-23 relative to every term, and products
// with rounded constants add one more: 4·2^-23 ≈ 4.8e-7 of the largest term.
TEST_P(Step, MatchesFloat64) {
  constexpr double kBound = 4.8e-7;
  for (const Options& options : all_options()) {
    for (const DType grad_dtype : kFloatTypes) {
      for (const DType weight_dtype : kFloatTypes) {
        SCOPED_TRACE(options.name + ", " + dtype_name(grad_dtype) + " gradient, " +
                     dtype_name(weight_dtype) + " weight");
        const size_t n = 1000;
        const float scale = 0.37f;
        StepCase run(place(), options.step, grad_dtype, weight_dtype, n, scale, 0);
        const auto g = run.grad.values(), w = run.master.values();
        const auto m = run.first_state().values(), v = run.state1.values();
        optimizer_step(run.shard, run.numbers, stream());
        const auto w1 = run.master.values(), m1 = run.first_state().values();
        const auto v1 = run.state1.values(), out = run.weight.values();
        const int states = num_states(options.step.kind, options.step.momentum);
        for (size_t i = 0; i < n; ++i) {
          const double scaled = double{g[i]} * double{scale};
          const Exact e = reference(options.step, scaled, w[i], m[i], v[i]);
          const double size = std::fabs(w[i]) + 2 * e.step_size;
          EXPECT_NEAR(w1[i], e.w, kBound * size) << i;
          if (states >= 1) {
            const double terms = std::fabs(m[i]) + std::fabs(scaled) + scaled * scaled +
                                 0.1 * std::fabs(w[i]) + 0.01 * w[i] * w[i];
            EXPECT_NEAR(m1[i], e.s0, kBound * terms) << i;
          }
          if (states == 2) {
            EXPECT_NEAR(v1[i], e.s1, kBound * (v[i] + scaled * scaled + 0.01 * w[i] * w[i])) << i;
          }
        }
        EXPECT_EQ(out, stored(weight_dtype, w1));  // the working weight is the rounded master
        EXPECT_EQ(run.grad.values(), g);
        if (states < 1) {
          EXPECT_EQ(m1, m);
        }
        if (states < 2) {
          EXPECT_EQ(v1, v);
        }
      }
    }
  }
}

TEST_P(Step, AnySizeAndOffsetGivesTheSameBitsForAnElement) {
  for (const Options& options : all_options()) {
    SCOPED_TRACE(options.name);
    StepCase whole(place(), options.step, DType::kBF16, DType::kBF16, 65537, 1.5f, 0);
    optimizer_step(whole.shard, whole.numbers, stream());
    const auto expected = whole.master.raw();
    const auto expected_weight = whole.weight.raw();
    for (const int64_t n : kSizes) {
      for (const int64_t offset : {0, 1, 3}) {
        StepCase part(place(), options.step, DType::kBF16, DType::kBF16, 65537, 1.5f, offset);
        part.shard.numel = n;
        optimizer_step(part.shard, part.numbers, stream());
        const auto bytes = static_cast<size_t>(n) * 4;
        EXPECT_EQ(std::memcmp(part.master.raw().data(), expected.data(), bytes), 0);
        EXPECT_EQ(std::memcmp(part.weight.raw().data(), expected_weight.data(), bytes / 2), 0);
      }
    }
  }
}

TEST_P(Step, NanFactorRestoresWeightsAndTouchesNothingElse) {
  for (const Options& options : all_options()) {
    StepCase run(place(), options.step, DType::kF32, DType::kBF16, 1000, NAN, 0);
    const auto w = run.master.raw(), m = run.first_state().raw(), v = run.state1.raw();
    const auto rounded = stored(DType::kBF16, run.master.values());
    optimizer_step(run.shard, run.numbers, stream());
    EXPECT_EQ(run.master.raw(), w);
    EXPECT_EQ(run.first_state().raw(), m);
    EXPECT_EQ(run.state1.raw(), v);
    EXPECT_EQ(run.weight.values(), rounded);
  }
}

TEST_P(Step, LionDoesNotMoveWhereThereIsNothing) {
  OptimizerStep step;
  step.kind = OptimizerKind::kLion;
  step.lr = 0.1;
  Buffer grad(place(), DType::kF32, std::vector<float>(9, 0.0f));
  Buffer master(place(), DType::kF32, random_values(9, 5));
  Buffer state(place(), DType::kF32, std::vector<float>(9, 0.0f));
  Buffer weight(place(), DType::kF32, std::vector<float>(9, 0.0f));
  const auto before = master.raw();
  OptimizerShard shard{9,       grad.data(),   DType::kF32, master.as<float>(), state.as<float>(),
                       nullptr, weight.data(), DType::kF32};
  optimizer_step(shard, step, stream());
  EXPECT_EQ(master.raw(), before);
}

TEST_P(Step, FirstAdamWUpdateIsTheRateTimesTheSign) {
  OptimizerStep step;
  step.lr = 0.1;
  Buffer grad(place(), DType::kF32, {3.0f, -0.002f, 5e-4f});
  Buffer master(place(), DType::kF32, {0, 0, 0});
  Buffer state0(place(), DType::kF32, {0, 0, 0});
  Buffer state1(place(), DType::kF32, {0, 0, 0});
  Buffer weight(place(), DType::kF32, {9, 9, 9});
  OptimizerShard shard{3,
                       grad.data(),
                       DType::kF32,
                       master.as<float>(),
                       state0.as<float>(),
                       state1.as<float>(),
                       weight.data(),
                       DType::kF32};
  optimizer_step(shard, step, stream());
  EXPECT_NEAR(master.values()[0], -0.1, 1e-6);
  EXPECT_NEAR(master.values()[1], 0.1, 1e-6);
  EXPECT_NEAR(master.values()[2], -0.1, 1e-5);  // eps is 2e-5 of this gradient
}

TEST(StepOnCpu, ThreadsAndInstructionSetsDoNotChangeABit) {
  for (const Options& options : all_options()) {
    std::vector<char> expected;
    for (const int threads : {1, 2, 3}) {
      set_num_threads(threads);
      StepCase run(Place::kCpu, options.step, DType::kBF16, DType::kBF16, 200001, 0.9f, 1);
      optimizer_step(run.shard, run.numbers, Stream::cpu());
      if (threads == 1) expected = run.master.raw();
      EXPECT_EQ(run.master.raw(), expected) << options.name;
    }
    set_num_threads(1);
    for (const char* name : {"scalar", "avx2", "avx512"}) {
      const cpu::Passes* passes = cpu::passes_for(name);
      if (passes == nullptr) continue;
      StepCase run(Place::kCpu, options.step, DType::kBF16, DType::kBF16, 200001, 0.9f, 1);
      passes->optimizer(run.shard, options.step.kind, update_numbers(run.numbers), 0.9f, 0, 200001);
      EXPECT_EQ(run.master.raw(), expected) << options.name << " " << name;
    }
  }
}

// CUDA and CPU use the same element functions without contraction: equal to the last bit.
TEST(StepOnCuda, EqualsTheCpu) {
  if (!why_no_gpu().empty()) GTEST_SKIP() << why_no_gpu();
  for (const Options& options : all_options()) {
    for (const DType grad_dtype : kFloatTypes) {
      StepCase cpu_run(Place::kCpu, options.step, grad_dtype, DType::kBF16, 65537, 0.37f, 0);
      StepCase cuda_run(Place::kCuda, options.step, grad_dtype, DType::kBF16, 65537, 0.37f, 0);
      optimizer_step(cpu_run.shard, cpu_run.numbers, Stream::cpu());
      optimizer_step(cuda_run.shard, cuda_run.numbers, stream_of(Place::kCuda));
      EXPECT_EQ(cpu_run.master.raw(), cuda_run.master.raw()) << options.name;
      EXPECT_EQ(cpu_run.weight.raw(), cuda_run.weight.raw()) << options.name;
      EXPECT_EQ(cpu_run.first_state().raw(), cuda_run.first_state().raw()) << options.name;
      EXPECT_EQ(cpu_run.state1.raw(), cuda_run.state1.raw()) << options.name;
    }
  }
}

TEST(StepArguments, WhatIsMissingIsNamed) {
  float x[4] = {};
  OptimizerShard shard{4, x, DType::kF32, x, x, nullptr, x, DType::kF32};
  EXPECT_THROW(optimizer_step(shard, OptimizerStep{}, Stream::cpu()), ConfigError);  // exp_avg_sq
  shard.state1 = x;
  shard.grad_dtype = DType::kI64;
  EXPECT_THROW(optimizer_step(shard, OptimizerStep{}, Stream::cpu()), ConfigError);
  shard.numel = 0;
  shard.grad = nullptr;
  EXPECT_NO_THROW(optimizer_step(shard, OptimizerStep{}, Stream::cpu()));
}

}  // namespace
}  // namespace zerosharp::kernels
