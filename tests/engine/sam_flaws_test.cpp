// Known flaws of SAM implementations, each next to what the flaw would have given: a test passes
// only where the two differ and ours is right.
//
// F: of an optimizer wrapper; N: of its use above sharded optimizers.
//  F1  e kept for ever, full size       sam_test: Sam.CostsNoExtraMemory
//  F2  restored by subtraction          WeightsComeBackBitForBit
//  F3  no second gradient, no restore   sam_test: Sam.LayersUsedInTheFirstPassOnlyAreRestored
//  F4  e of an earlier step subtracted  AbortedStepSubtractsNothing
//  F5  exception leaves w + e           sam_protocol_test: SamProtocol.FailureInEitherPass…,
//                                       ExceptionBetweenThePasses…
//  F6  loss 0 taken for failure         LossOfZeroIsAStep
//  F7  NaN unguarded in bf16 and fp32   sam_protocol_test: SamProtocol.FailureInEitherPass…
//  F8  batch-norm statistics twice      sam_test: Sam.BatchNormStatisticsMoveOnce
//  F9  other dropout masks              sam_test: Sam.BothPassesDrawTheSameRandomNumbers
//  F10 losses of both passes reported   ReportedLossIsTheUnperturbedOne
//  F11 clipping bends e                 ClippingDoesNotTouchTheAscent
//  F12 decay enters e                   DecayIsNoPartOfTheAscent
//  F13 base state lost in state_dict    sam_protocol_test: SamProtocol.AdapterWithTheState… (SAM's
//                                       own state; groups and states are the base optimizer's)
//  F14 evaluation of perturbed weights  sam_test: Sam.WeightsAreGuardedWhilePerturbed;
//                                       sam_protocol_test: SamProtocol.FailureInEitherPass… (msam)
//  F15 phase of the interval lost       sam_protocol_test: SamProtocol.AdapterWithTheState…
//  F16 norm by group                    OneNormForGroupsOfDifferentRates
//  F17 rank without gradients or shard  RanksWithNothingOfTheirOwn, RanksWithoutSomeGradients
//  F18 no first gradient                ParameterOfTheSecondPassOnlyIsNotPerturbed;
//                                       sam_test: Sam.ParametersWithoutGradientStayAsTheyAre
// In sam_sharded_flaws_test:
//  N1  SAM silently off                 TwoPassesHappenAndTheLossRises, BfloatKeepsThePerturbation
//  N2  scope depends on the sharding    ScopesMeanTheSameAtEveryStage
//  N3  norm of the shard alone          LengthDoesNotGrowWithTheRanks
//  N4  loss scale not aware of passes   OverflowInEitherPassBacksOffOnceOnEveryRank
#include <gtest/gtest.h>

#include "tests/support/sam_bowl.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;
using at::Tensor;

class SamFlaws : public SamBowl {};
INSTANTIATE_TEST_SUITE_P(Stages, SamFlaws, ::testing::Values(0, 1),
                         [](const auto& info) { return "Stage" + std::to_string(info.param); });

TEST_P(SamFlaws, WeightsComeBackBitForBit) {  // F2
  constexpr int kRounds = 100;
  for (const DType precision : {DType::kF32, DType::kBF16}) {
    const auto type = precision == DType::kF32 ? at::kFloat : at::kBFloat16;
    const Tensor given = start().to(at::kFloat).to(type);
    Tensor flawed = given.clone();
    for (int step = 0; step < kRounds; ++step) {
      const Tensor e = along(gradient(flawed.to(at::kDouble), slope(step))).to(type);
      flawed.add_(e).sub_(e);
    }
    EXPECT_GT(flawed.ne(given).sum().item<int64_t>(), kNumel / 20);

    Config c = config(precision);
    c.optimizer.lr = 0;
    trained(2, c, [&](Engine& engine, Bowl& m, int) {
      const Tensor masters = engine.optimizer().flat_groups()[0]->master().clone();
      for (int step = 0; step < kRounds; ++step) {
        engine.train_batch([&](int64_t) { return m.loss(slope(step)); });
        ASSERT_TRUE(engine.report().outcome.perturbed);
        ASSERT_TRUE(same_bits(at::cat({m.a, m.b}).detach(), given));
      }
      EXPECT_TRUE(same_bits(engine.optimizer().flat_groups()[0]->master(), masters));
    });
  }
}

// b has an e in the first step. In the second it takes no part, and that step fails.
TEST_P(SamFlaws, AbortedStepSubtractsNothing) {  // F4
  const Tensor c = slope(0);
  const Tensor e = along(gradient(start(), c));
  const Tensor once = stepped(start(), e, c);
  const Tensor flawed = once.narrow(0, kHalf, kHalf) - e.narrow(0, kHalf, kHalf);
  trained(2, config(), [&](Engine& engine, Bowl& m, int rank) {
    engine.train_batch([&](int64_t) { return m.loss(c); });
    const Tensor a = m.a.detach().clone(), b = m.b.detach().clone();
    EXPECT_LT(distance(m.flat(), once), 1e-5);
    engine.train_batch([&](const PassContext& context) {
      return rank == 1 && context.pass == 1 ? m.loss_a(c) * NAN : m.loss_a(c);
    });
    EXPECT_FALSE(engine.was_step_applied());
    EXPECT_TRUE(same_bits(m.a, a));
    EXPECT_TRUE(same_bits(m.b, b));
    EXPECT_GT(distance(m.b.detach().to(at::kDouble), flawed), 1e-2);
  });
}

TEST_P(SamFlaws, LossOfZeroIsAStep) {  // F6
  const Tensor c = slope(0);
  const Tensor ours = trained(2, config(), [&](Engine& engine, Bowl& m, int) {
    const double loss = engine.train_batch([&](int64_t) {
      const Tensor value = m.loss(c);
      return value - value.detach();  // exactly 0, with the gradient of the loss
    });
    EXPECT_EQ(loss, 0.0);
    EXPECT_TRUE(engine.was_step_applied());
    EXPECT_TRUE(engine.report().outcome.perturbed);
  });
  expect_not(/*flawed=*/start(), stepped(start(), along(gradient(start(), c)), c), ours);
}

TEST_P(SamFlaws, ReportedLossIsTheUnperturbedOne) {  // F10
  Config each = config();
  each.batch.accumulation_steps = 2;
  const auto phase = [](int rank, int64_t micro) { return static_cast<double>(2 * rank + micro); };
  const Tensor mean = (slope(0) + slope(1) + slope(2) + slope(3)) / 4;
  const double clean = loss_at(start(), mean);
  const double sharp = loss_at(start() + along(gradient(start(), mean)), mean);
  const double flawed = (clean + sharp) / 2;
  trained(2, each, [&](Engine& engine, Bowl& m, int rank) {
    const double loss =
        engine.train_batch([&](int64_t micro) { return m.loss(slope(phase(rank, micro))); });
    EXPECT_NEAR(loss, clean, 1e-5 * std::abs(clean));
    EXPECT_EQ(engine.report().outcome.loss, loss);
    EXPECT_NEAR(engine.report().outcome.loss_perturbed, sharp, 1e-5 * std::abs(sharp));
    EXPECT_GT(std::abs(loss - flawed), 0.05 * std::abs(clean));
  });
}

// With an ε of the clipped norm's size a clipped first gradient gives another length; clipped by
// value it gives another direction.
TEST_P(SamFlaws, ClippingDoesNotTouchTheAscent) {  // F11
  constexpr double kClip = 0.5, kEpsilon = 0.5;
  Config clipped = config();
  clipped.gradient_clipping = kClip;
  clipped.sam.epsilon = kEpsilon;
  const Tensor c = slope(0);
  const Tensor g = gradient(start(), c);
  const double norm = g.norm().item<double>();
  const auto updated = [&](const Tensor& e) {
    const Tensor sharp = gradient(start() + e, c);
    return start() - kLr * kClip * sharp / sharp.norm();
  };
  const Tensor e = kRho * g / (norm + kEpsilon);
  const Tensor short_e = kRho * (g * kClip / norm) / (kClip + kEpsilon);
  const Tensor bent_e = along(at::clamp(g, -kClip, kClip));
  const Tensor ours = trained(2, clipped, [&](Engine& engine, Bowl& m, int) {
    engine.train_batch([&](int64_t) { return m.loss(c); });
    EXPECT_NEAR(engine.report().outcome.e_norm, e.norm().item<double>(), 1e-5);
    EXPECT_NEAR(engine.report().outcome.ascent_norm, norm, 1e-4);
  });
  EXPECT_LT(distance(ours, updated(e)), 5e-7);
  EXPECT_GT(distance(ours, updated(short_e)), 1e-5);
  EXPECT_GT(distance(ours, updated(bent_e)), 1e-5);
  EXPECT_GT(std::abs(e.norm().item<double>() - short_e.norm().item<double>()), 0.5);
}

TEST_P(SamFlaws, DecayIsNoPartOfTheAscent) {  // F12
  constexpr double kDecay = 2.0;
  const Tensor c = slope(0), w = start(), g = gradient(w, c);
  for (const bool decoupled : {false, true}) {
    Config decayed = config();
    decayed.optimizer.weight_decay = kDecay;
    decayed.optimizer.decoupled_decay = decoupled;
    const Tensor ours = trained(2, decayed, [&](Engine& engine, Bowl& m, int) {
      engine.train_batch([&](int64_t) { return m.loss(c); });
    });
    // Both kinds of decay shrink w by lr·wd·w after plain SGD.
    const Tensor right = stepped(w, along(g), c) - kLr * kDecay * w;
    const Tensor flawed = stepped(w, along(g + kDecay * w), c) - kLr * kDecay * w;
    expect_not(flawed, right, ours);
  }
}

TEST_P(SamFlaws, OneNormForGroupsOfDifferentRates) {  // F16
  const Tensor c = slope(0), w = start(), g = gradient(w, c);
  Tensor rates = at::full({kNumel}, kLr, at::kDouble);
  rates.narrow(0, kHalf, kHalf).fill_(kLr / 4);
  const auto updated = [&](const Tensor& e) { return w - rates * gradient(w + e, c); };
  const Tensor by_group = at::cat({along(g.narrow(0, 0, kHalf)), along(g.narrow(0, kHalf, kHalf))});
  const auto groups = [](Bowl& m) {
    ParamGroup fast = adamw_group(kLr), slow = adamw_group(kLr / 4);
    fast.kind = slow.kind = kernels::OptimizerKind::kSgd;
    EngineOptions options;
    options.groups = {group(fast, {{"a", m.a}}), group(slow, {{"b", m.b}})};
    return options;
  };
  const auto body = [&](Engine& engine, Bowl& m, int) {
    engine.train_batch([&](int64_t) { return m.loss(c); });
    EXPECT_NEAR(engine.report().outcome.e_norm, kRho, 1e-5);  // √2·ρ by group
  };
  for (const int world : {1, 2}) {
    expect_not(updated(by_group), updated(along(g)), trained(world, config(), body, groups));
  }
}

// Three elements lie on rank 0. The norm of an empty shard is 0, and ρ/(0 + ε) is no scale.
TEST_P(SamFlaws, RanksWithNothingOfTheirOwn) {  // F17
  for (const auto scope : {SamScope::kGlobal, SamScope::kLocal, SamScope::kMicro}) {
    Config tiny = config();
    tiny.sam.scope = scope;
    tiny.sam.epsilon = 1e-12;
    auto module = train<QuadraticModule>(
        4, tiny, make<QuadraticModule>(std::vector<float>{3, 4, 12}),
        [&](Engine& engine, QuadraticModule& m, int rank) {
          const FlatGroup& group = *engine.optimizer().flat_groups()[0];
          const int64_t owned = std::min<int64_t>(3, group.owned().end) - group.owned().begin;
          if (GetParam() == 1 && rank > 0) EXPECT_LE(owned, 0);
          engine.train_batch([&](int64_t) { return m.loss(); });
          EXPECT_TRUE(engine.was_step_applied());
          EXPECT_NEAR(engine.report().outcome.e_norm, kRho, 1e-5);
        });
    const double kept = 1 - kLr * (1 + kRho / 13);  // g = w, of norm 13
    const std::vector<double> right = {3 * kept, 4 * kept, 12 * kept};
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(values(module->w)[i], right[i], 1e-5);
  }
}

// Rank 0 has gradients for a only, rank 1 for b only.
TEST_P(SamFlaws, RanksWithoutSomeGradients) {  // F17
  const Tensor c = slope(0), w = start();
  Tensor of_a = at::zeros({kNumel}, at::kDouble);
  of_a.narrow(0, 0, kHalf).fill_(1);
  const Tensor of_b = 1 - of_a;
  const auto updated = [&](const Tensor& e_of_0, const Tensor& e_of_1) {
    return w - kLr / 2 * (of_a * gradient(w + e_of_0, c) + of_b * gradient(w + e_of_1, c));
  };
  const Tensor g = gradient(w, c);
  const Tensor global = updated(along(g), along(g));
  const Tensor local = updated(along(of_a * g), along(of_b * g));
  for (const auto scope : {SamScope::kGlobal, SamScope::kLocal}) {
    Config part = config();
    part.sam.scope = scope;
    const Tensor ours = trained(2, part, [&](Engine& engine, Bowl& m, int rank) {
      engine.train_batch([&](int64_t) { return rank == 0 ? m.loss_a(c) : m.loss_b(c); });
    });
    const bool is_global = scope == SamScope::kGlobal;
    expect_not(is_global ? local : global, is_global ? global : local, ours);
  }
}

TEST_P(SamFlaws, ParameterOfTheSecondPassOnlyIsNotPerturbed) {  // F18
  const Tensor c = slope(0), g = gradient(start(), c);
  Tensor only_a = g.clone();
  only_a.narrow(0, kHalf, kHalf).zero_();
  const Tensor ours = trained(2, config(), [&](Engine& engine, Bowl& m, int) {
    engine.train_batch(
        [&](const PassContext& context) { return context.pass == 0 ? m.loss_a(c) : m.loss(c); });
  });
  expect_not(stepped(start(), along(g), c), stepped(start(), along(only_a), c), ours);
}

}  // namespace
}  // namespace zerosharp
