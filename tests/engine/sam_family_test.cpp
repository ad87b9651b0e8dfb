// Every SAM variant, scope and mask against a from-scratch reference in float64, at every number of
// ranks and stage, above SGD with momentum and AdamW.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "kernels/error.h"
#include "tests/support/run_ranks.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;
using at::Tensor;
using kernels::OptimizerKind;

// Elements of w: 130 of p, the rest of ln.weight. Up to 4 ranks each own some.
constexpr int64_t kNumel = 203;
constexpr int64_t kNumP = 130;
constexpr double kRho = 2.0;
constexpr int64_t kSamples = 4;  // a step, whatever the number of ranks
constexpr int64_t kSteps = 12;

Tensor range(int64_t count) { return at::arange(count, at::kDouble); }

// Loss of sample s in step t: Σ ½·a·w² + 0.025·w⁴ + c(t, s)·w, of gradient a·w + 0.1·w³ + c(t, s).
Tensor curvature() { return 0.5 + at::cos(range(kNumel)).square(); }
Tensor start() { return at::sin(1.0 + 0.7 * range(kNumel)) + 0.3; }
Tensor slope(int64_t step, int64_t sample) {
  const auto phase = static_cast<double>(kSamples * step + sample);
  return at::sin(2.3 * phase + 1.1 * range(kNumel)) + 0.2;
}

Tensor gradient(const Tensor& w, int64_t step, const std::vector<int64_t>& samples = {0, 1, 2, 3}) {
  Tensor c = at::zeros({kNumel}, at::kDouble);
  for (const int64_t s : samples) c += slope(step, s) / static_cast<double>(samples.size());
  return curvature() * w + 0.1 * w.pow(3) + c;
}
struct QuarticModule : torch::nn::Module {
  QuarticModule() {
    const Tensor all = start().to(at::kFloat);
    p = register_parameter("p", all.narrow(0, 0, kNumP).clone().view({10, 13}));
    norm = register_module("ln", std::make_shared<torch::nn::Module>())
               ->register_parameter("weight", all.narrow(0, kNumP, kNumel - kNumP).clone());
  }
  Tensor loss(int64_t step, int64_t sample) const {
    const Tensor w = at::cat({p.view({-1}), norm});
    const Tensor square = w * w;
    return (0.5 * curvature().to(at::kFloat) * square + 0.025 * square * square +
            slope(step, sample).to(at::kFloat) * w)
        .sum();
  }
  Tensor flat() const { return at::cat({p.view({-1}), norm}).detach().to(at::kDouble); }
  Tensor p, norm;
};

// The base optimizer in float64; torch.optim's formulas.
struct Base {
  OptimizerKind kind;
  Tensor m = at::zeros({kNumel}, at::kDouble);
  Tensor v = at::zeros({kNumel}, at::kDouble);
  int64_t updates = 0;

  static constexpr double kLr = 0.05, kDecay = 0.1, kMomentum = 0.8, kBeta1 = 0.9, kBeta2 = 0.95;

  void update(Tensor& w, const Tensor& g) {
    ++updates;
    w = w * (1 - kLr * kDecay);
    if (kind == OptimizerKind::kSgd) {
      m = updates == 1 ? g : kMomentum * m + g;
      w = w - kLr * m;
      return;
    }
    m = kBeta1 * m + (1 - kBeta1) * g;
    v = kBeta2 * v + (1 - kBeta2) * g.square();
    const double c1 = 1 - std::pow(kBeta1, updates), c2 = 1 - std::pow(kBeta2, updates);
    w = w - kLr / c1 * m / ((v / c2).sqrt() + 1e-8);
  }
};

Config base_config(OptimizerKind kind, int64_t stage) {
  Config config = toy_config(kind, Base::kLr, stage);
  config.train.steps = kSteps;
  config.optimizer.weight_decay = Base::kDecay;
  config.optimizer.momentum = Base::kMomentum;
  config.optimizer.decoupled_decay = true;
  config.optimizer.beta1 = Base::kBeta1;
  config.optimizer.beta2 = Base::kBeta2;
  config.sam.enabled = true;
  config.sam.rho = kRho;
  config.sam.epsilon = 0;
  return config;
}

/// The gradient that step `step` updates w with; keeps its own state from step to step.
using Rule = std::function<Tensor(const Tensor& w, int64_t step, const Base& base)>;

Tensor length(const Tensor& x) { return x.norm(); }
Tensor product(const Tensor& x, const Tensor& y) { return (x * y).sum(); }

Rule plain_sam(double rho = kRho) {
  return [=](const Tensor& w, int64_t step, const Base&) {
    const Tensor g = gradient(w, step);
    return gradient(w + rho * g / length(g), step);
  };
}

Tensor reference(OptimizerKind kind, const Rule& rule) {
  Base base{kind};
  Tensor w = start();
  for (int64_t step = 0; step < kSteps; ++step) base.update(w, rule(w, step, base));
  return w;
}

double distance(const Tensor& x, const Tensor& y) { return (x - y).abs().max().item<double>(); }

using Prepare = std::function<void(Engine&)>;

Tensor trained(int world, Config config, const Prepare& prepare) {
  config.batch.accumulation_steps = kSamples / world;
  const auto factory = [] { return std::make_shared<QuarticModule>(); };
  Tensor clean;
  train<QuarticModule>(world, config, factory, [&](Engine& engine, QuarticModule& m, int rank) {
    if (prepare) prepare(engine);
    for (int64_t step = 0; step < kSteps; ++step) {
      engine.train_batch([&](int64_t micro) {
        return m.loss(step, rank * config.batch.accumulation_steps + micro);
      });
      ASSERT_TRUE(engine.was_step_applied());
    }
    const FullParamsScope weights = engine.full_params();
    if (rank == 0) clean = m.flat();
  });
  return clean;
}

struct Case {
  int64_t stage;
  OptimizerKind kind;
};

class SamFamily : public ::testing::TestWithParam<Case> {
 protected:
  Config config(SamVariant variant = SamVariant::kSam) const {
    Config config = base_config(GetParam().kind, GetParam().stage);
    config.sam.variant = variant;
    return config;
  }
  Config config(SamScope scope, SamVariant variant = SamVariant::kSam) const {
    Config result = config(variant);
    result.sam.scope = scope;
    return result;
  }
  /// Trains on each of `worlds` and compares. `fresh_rule` makes a rule without history; a
  /// trajectory that plain SAM takes too would prove nothing.
  void expect_follows(const Config& config, const std::function<Rule()>& fresh_rule,
                      const std::vector<int>& worlds = {1, 2, 4}, const Prepare& prepare = {}) {
    const Tensor expected = reference(GetParam().kind, fresh_rule());
    const Tensor other = reference(GetParam().kind, plain_sam());
    const bool is_plain_sam = config.sam.variant == SamVariant::kSam &&
                              config.sam.scope == SamScope::kGlobal && config.sam.interval == 1 &&
                              config.sam.params.empty() && !prepare;
    if (!is_plain_sam) ASSERT_GT(distance(expected, other), 2e-4);
    for (const int world : worlds) {
      SCOPED_TRACE(::testing::Message() << world << " rank(s)");
      EXPECT_LT(distance(trained(world, config, prepare), expected), 1e-5);
    }
  }
};

INSTANTIATE_TEST_SUITE_P(
    StageAndOptimizer, SamFamily,
    ::testing::Values(Case{0, OptimizerKind::kSgd}, Case{0, OptimizerKind::kAdamW},
                      Case{1, OptimizerKind::kSgd}, Case{1, OptimizerKind::kAdamW}),
    [](const auto& info) {
      return "Stage" + std::to_string(info.param.stage) + kind_name(info.param.kind);
    });

TEST_P(SamFamily, Sam) {
  expect_follows(config(), [] { return plain_sam(); });
}

Tensor asam_step(const Tensor& w, const Tensor& g, double rho) {
  const Tensor t = w.abs() + 0.01;
  return rho * t.square() * g / length(t * g);
}

TEST_P(SamFamily, Asam) {
  Config c = config(SamVariant::kAsam);
  c.sam.rho = 0.5;
  expect_follows(c, [] {
    return [](const Tensor& w, int64_t step, const Base&) {
      return gradient(w + asam_step(w, gradient(w, step), 0.5), step);
    };
  });
}

TEST_P(SamFamily, MomentumSam) {
  expect_follows(config(SamVariant::kMsam), [] {
    return [](const Tensor& w, int64_t step, const Base& base) {
      if (base.updates == 0) return gradient(w, step);
      return gradient(w - kRho * base.m / length(base.m), step);
    };
  });
}

TEST_P(SamFamily, Gsam) {
  expect_follows(config(SamVariant::kGsam), [] {
    return [](const Tensor& w, int64_t step, const Base& base) {
      const Tensor g = gradient(w, step);
      const Tensor sharp = plain_sam()(w, step, base);
      const Tensor orthogonal = g - product(g, sharp) / product(sharp, sharp) * sharp;
      return sharp - 0.4 * orthogonal;
    };
  });
}

TEST_P(SamFamily, FriendlySam) {
  Config c = config(SamVariant::kFsam);
  c.sam.sigma = 0.7;
  c.sam.decay = 0.6;
  expect_follows(c, [] {
    return [m = Tensor()](const Tensor& w, int64_t step, const Base&) mutable {
      const Tensor g = gradient(w, step);
      const Tensor d = m.defined() ? g - 0.7 * m : g;
      m = m.defined() ? 0.6 * m + 0.4 * g : g;
      return gradient(w + kRho * d / length(d), step);
    };
  });
}

TEST_P(SamFamily, Vasso) {
  expect_follows(config(SamVariant::kVasso), [] {
    return [m = Tensor()](const Tensor& w, int64_t step, const Base&) mutable {
      const Tensor g = gradient(w, step);
      m = m.defined() ? 0.6 * m + 0.4 * g : g;
      return gradient(w + kRho * m / length(m), step);
    };
  });
}

TEST_P(SamFamily, Preconditioned) {
  Config c = config(SamVariant::kPreconditioned);
  c.sam.delta = 0.05;
  if (GetParam().kind == OptimizerKind::kSgd) {
    EXPECT_THROW(trained(1, c, {}), ConfigError);  // no second moment
    return;
  }
  expect_follows(c, [] {
    return [](const Tensor& w, int64_t step, const Base& base) {
      const Tensor d = gradient(w, step) / (base.v.sqrt() + 0.05);
      return gradient(w + kRho * d / length(d), step);
    };
  });
}

// Where Adam has seen no gradient, v = 0 and δ alone divides: e must not outgrow ρ.
TEST_P(SamFamily, PreconditionedKeepsItsRadiusBeforeTheFirstUpdate) {
  if (GetParam().kind == OptimizerKind::kSgd) return;
  Config c = config(SamVariant::kPreconditioned);
  c.batch.accumulation_steps = 1;
  train<QuarticModule>(
      2, c, [] { return std::make_shared<QuarticModule>(); },
      [](Engine& engine, QuarticModule& m, int rank) {
        engine.train_batch([&](int64_t) { return m.loss(0, rank); });
        const StepOutcome& o = engine.report().outcome;
        EXPECT_NEAR(o.e_norm, kRho, 1e-6);
        const Tensor g = gradient(start(), 0, {0, 1});
        // ⟨g, e⟩ with e along g, since v is 0 everywhere
        EXPECT_NEAR(o.expected_gap, kRho * length(g).item<double>(), 1e-5);
      });
}

TEST_P(SamFamily, AeSam) {
  Config c = config(SamVariant::kAeSam);
  c.sam.decay = 0.7;
  c.sam.threshold_start = -0.2;
  c.sam.threshold_end = -1.4;
  int64_t twice = 0;
  expect_follows(c, [&twice] {
    twice = 0;
    return [&twice, mean = 0.0, variance = 0.0](const Tensor& w, int64_t step,
                                                const Base& base) mutable {
      const Tensor g = gradient(w, step);
      const double square = product(g, g).item<double>();
      const double kept = step == 0 ? 0 : 0.7;
      mean = kept * mean + (1 - kept) * square;
      variance = kept * variance + (1 - kept) * (square - mean) * (square - mean);
      const double threshold = -0.2 - 1.2 * static_cast<double>(step) / kSteps;
      if (square < mean + threshold * std::sqrt(variance)) return g;
      ++twice;
      return plain_sam()(w, step, base);
    };
  });
  EXPECT_GT(twice, 2);
  EXPECT_LT(twice, kSteps - 2);
}

TEST_P(SamFamily, LookSam) {
  Config c = config(SamVariant::kLookSam);
  c.sam.k = 3;
  c.sam.alpha = 0.7;
  expect_follows(c, [] {
    return [kept = Tensor()](const Tensor& w, int64_t step, const Base& base) mutable {
      const Tensor g = gradient(w, step);
      if (step % 3 != 0) return Tensor(g + 0.7 * length(g) / length(kept) * kept);
      const Tensor sharp = plain_sam()(w, step, base);
      kept = sharp - product(sharp, g) / product(g, g) * g;
      return sharp;
    };
  });
}

/// m-sharpness: the samples' mean of gradients, each part at its own perturbed weights.
Rule sam_of_parts(std::vector<std::vector<int64_t>> parts, bool adaptive = false) {
  return [=](const Tensor& w, int64_t step, const Base&) {
    Tensor mean = at::zeros({kNumel}, at::kDouble);
    for (const auto& part : parts) {
      const Tensor g = gradient(w, step, part);
      const Tensor e = adaptive ? asam_step(w, g, kRho) : kRho * g / length(g);
      mean += gradient(w + e, step, part) / static_cast<double>(parts.size());
    }
    return mean;
  };
}

TEST_P(SamFamily, ScopeLocal) {
  for (const bool adaptive : {false, true}) {
    const Config c = config(SamScope::kLocal, adaptive ? SamVariant::kAsam : SamVariant::kSam);
    const auto halves = [=] { return sam_of_parts({{0, 1}, {2, 3}}, adaptive); };
    const auto quarters = [=] { return sam_of_parts({{0}, {1}, {2}, {3}}, adaptive); };
    expect_follows(c, halves, {2});
    expect_follows(c, quarters, {4});
  }
}

TEST_P(SamFamily, ScopeGroup) {
  Config c = config(SamScope::kGroup);
  c.sam.group_size = 2;
  expect_follows(c, [] { return sam_of_parts({{0, 1}, {2, 3}}); }, {4});
  c.sam.group_size = 1;
  expect_follows(c, [] { return sam_of_parts({{0}, {1}, {2}, {3}}); }, {4});
  c.sam.group_size = 3;
  EXPECT_THROW(trained(4, c, {}), ConfigError);
}

TEST_P(SamFamily, ScopeMicro) {
  for (const bool adaptive : {false, true}) {
    const Config c = config(SamScope::kMicro, adaptive ? SamVariant::kAsam : SamVariant::kSam);
    expect_follows(c, [=] { return sam_of_parts({{0}, {1}, {2}, {3}}, adaptive); });
  }
}

TEST_P(SamFamily, Interval) {
  Config c = config();
  c.sam.interval = 3;
  expect_follows(c, [] {
    return [](const Tensor& w, int64_t step, const Base& base) {
      return (step + 1) % 3 == 0 ? plain_sam()(w, step, base) : gradient(w, step);
    };
  });
}

TEST_P(SamFamily, StartsAndEnds) {
  Config c = config();
  c.sam.start_step = 3;
  c.sam.end_step = 8;
  expect_follows(c, [] {
    return [](const Tensor& w, int64_t step, const Base& base) {
      return step >= 3 && step < 8 ? plain_sam()(w, step, base) : gradient(w, step);
    };
  });
}

TEST_P(SamFamily, PartOfTheBatchInTheFirstPass) {
  Config c = config();
  c.sam.ascent_fraction = 0.5;
  const auto first_pass_of = [](std::vector<int64_t> samples) {
    return [=](const Tensor& w, int64_t step, const Base&) {
      const Tensor g = gradient(w, step, samples);
      return gradient(w + kRho * g / length(g), step);
    };
  };
  expect_follows(c, [&] { return first_pass_of({0, 1}); }, {1});
  expect_follows(c, [&] { return first_pass_of({0, 2}); }, {2});
  EXPECT_THROW(trained(4, c, {}), ConfigError);  // one micro-batch a rank has no half
}

TEST_P(SamFamily, Masks) {  // SAM-ON
  for (const char* pattern : {"norm", "^ln\\."}) {
    Config c = config();
    c.sam.params = {pattern};
    Tensor mask = at::zeros({kNumel}, at::kDouble);
    mask.narrow(0, kNumP, kNumel - kNumP).fill_(1);
    expect_follows(c, [=] {
      return [=](const Tensor& w, int64_t step, const Base&) {
        const Tensor g = mask * gradient(w, step);
        return gradient(w + kRho * g / length(g), step);
      };
    });
  }
}

TEST_P(SamFamily, RadiusSchedule) {
  const auto rho = [](int64_t step) { return 0.5 / static_cast<double>(1 + step); };
  expect_follows(
      config(),
      [&] {
        return [&](const Tensor& w, int64_t step, const Base& base) {
          return plain_sam(rho(step))(w, step, base);
        };
      },
      {1, 2, 4}, [&](Engine& engine) { engine.sam()->set_rho_schedule(rho); });
}

// The first-order rise ⟨g, e⟩ that is reported is the one that happens, whatever the direction.
TEST_P(SamFamily, TheLossRisesAsPromised) {
  for (const auto variant :
       {SamVariant::kSam, SamVariant::kAsam, SamVariant::kGsam, SamVariant::kFsam,
        SamVariant::kVasso, SamVariant::kPreconditioned, SamVariant::kLookSam}) {
    const bool needs_adam = variant == SamVariant::kPreconditioned;
    if (needs_adam && GetParam().kind == OptimizerKind::kSgd) continue;
    SCOPED_TRACE(sam_variant_name(variant));
    Config c = config(variant);
    c.sam.rho = 1e-3;
    c.batch.accumulation_steps = 2;
    train<QuarticModule>(
        2, c, [] { return std::make_shared<QuarticModule>(); },
        [](Engine& engine, QuarticModule& m, int rank) {
          for (int64_t step = 0; step < 6; ++step) {
            engine.train_batch([&](int64_t micro) { return m.loss(step, 2 * rank + micro); });
            const StepOutcome& o = engine.report().outcome;
            if (!o.perturbed) continue;
            EXPECT_NE(o.expected_gap, 0);
            EXPECT_NEAR((o.loss_perturbed - o.loss) / o.expected_gap, 1, 0.02);
          }
        });
  }
}

TEST_P(SamFamily, ReportsNormsAndTheCosineOfBothGradients) {
  for (const double fraction : {1.0, 0.5}) {
    Config c = config();
    c.sam.ascent_fraction = fraction;
    c.sam.report_cosine = true;
    c.batch.accumulation_steps = 2;
    train<QuarticModule>(
        2, c, [] { return std::make_shared<QuarticModule>(); },
        [&](Engine& engine, QuarticModule& m, int rank) {
          engine.train_batch([&](int64_t micro) { return m.loss(0, 2 * rank + micro); });
          const Tensor g = fraction == 1 ? gradient(start(), 0) : gradient(start(), 0, {0, 2});
          const Tensor sharp = gradient(start() + kRho * g / length(g), 0);
          const StepOutcome& o = engine.report().outcome;
          EXPECT_NEAR(o.ascent_norm, length(g).item<double>(), 1e-5);
          EXPECT_NEAR(o.e_norm, kRho, 1e-6);
          EXPECT_NEAR(o.realised_norm, kRho, 1e-6);
          EXPECT_NEAR(o.moved, 1.0, 1e-12);
          EXPECT_NEAR(o.grad_norm, length(sharp).item<double>(), 1e-5);
          EXPECT_NEAR(o.cosine, (product(g, sharp) / length(g) / length(sharp)).item<double>(),
                      1e-6);
        });
  }
}

// Clipping and the reported norm belong to the gradient that updates, not to a pass's.
TEST_P(SamFamily, ClipsTheGradientThatUpdates) {
  Config c = config(SamVariant::kGsam);
  c.gradient_clipping = 2.0;
  expect_follows(c, [] {
    return [](const Tensor& w, int64_t step, const Base& base) {
      const Tensor g = gradient(w, step);
      const Tensor sharp = plain_sam()(w, step, base);
      const Tensor update = sharp - 0.4 * (g - product(g, sharp) / product(sharp, sharp) * sharp);
      return Tensor(update * at::clamp(2.0 / (length(update) + 1e-6), {}, 1.0));
    };
  });
}

}  // namespace
}  // namespace zerosharp
