// Known flaws of SAM above sharded optimizers (N1 to N4 in sam_flaws_test.cpp's table), each next
// to what the flaw would have given.
#include <gtest/gtest.h>

#include "tests/support/sam_bowl.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;

class SamShardedFlaws : public SamBowl {};
INSTANTIATE_TEST_SUITE_P(Stages, SamShardedFlaws, ::testing::Values(0, 1),
                         [](const auto& info) { return "Stage" + std::to_string(info.param); });

// A wrapper that the engine never steps gives one pass, no rise, and plain SGD.
TEST_P(SamShardedFlaws, TwoPassesHappenAndTheLossRises) {  // N1
  const Tensor c = slope(0), g = gradient(start(), c);
  for (const int world : {1, 2, 4}) {
    const Tensor ours = trained(world, config(), [&](Engine& engine, Bowl& m, int) {
      std::vector<int> passes;
      engine.train_batch([&](const PassContext& context) {
        passes.push_back(context.pass);
        return m.loss(c);
      });
      EXPECT_EQ(passes, (std::vector<int>{0, 1}));
    });
    expect_not(start() - kLr * g, stepped(start(), along(g), c), ours);
    Config small = config();
    small.sam.rho = 0.05;
    trained(world, small, [&](Engine& engine, Bowl& m, int) {
      engine.train_batch([&](int64_t) { return m.loss(c); });
      const StepOutcome& o = engine.report().outcome;
      const double r = (o.loss_perturbed - o.loss) / (0.05 * g.norm().item<double>());
      EXPECT_GT(r, 0.95);  // the curvature, at most 1.5, adds at most 1.5·ρ/(2‖g‖)
      EXPECT_LT(r, 1.05);
    });
  }
}

// w = 1.25 + a remainder below bf16's spacing, g the same everywhere: e is a fifth of that spacing,
// so adding it to bf16 weights changes none of them, and the loss does not rise.
TEST_P(SamShardedFlaws, BfloatKeepsThePerturbation) {  // N1
  constexpr int64_t kMany = 8192;
  constexpr double kSpacing = 0x1p-7;
  const double rho = 0.2 * kSpacing * std::sqrt(kMany);
  const Tensor masters = 1.25 + kSpacing * (at::arange(kMany, at::kFloat) / kMany - 0.5);
  const Tensor rounded = masters.to(at::kBFloat16);
  const Tensor flawed = rounded + at::full({kMany}, 0.2 * kSpacing).to(at::kBFloat16);
  EXPECT_TRUE(same_bits(flawed, rounded));
  for (const bool from_bf16 : {false, true}) {
    Config c = sgd(0, GetParam(), DType::kBF16);
    c.sam.enabled = true;
    c.sam.rho = rho;
    train<VectorModule>(
        2, c,
        [&] {
          auto module = make<VectorModule>(kMany)();
          const at::NoGradGuard no_grad;
          module->w.copy_(from_bf16 ? rounded.to(at::kFloat) : masters);
          return module;
        },
        [&](Engine& engine, VectorModule& m, int) {
          engine.train_batch([&](int64_t) { return m.loss(1.0); });
          const StepOutcome& o = engine.report().outcome;
          const double r = (o.loss_perturbed - o.loss) / (rho * std::sqrt(kMany));
          // 5 standard deviations of 8192 coins of probability 0.2, relative to their sum: 0.11.
          EXPECT_NEAR(r, 1.0, 0.11);
          EXPECT_NEAR(o.moved, 0.2, 0.2 * 0.11);
        });
  }
}

// Sharding must not turn the local e into a global one or the reverse.
TEST_P(SamShardedFlaws, ScopesMeanTheSameAtEveryStage) {  // N2
  const auto run = [&](int64_t stage, SamScope scope) {
    Config c = config();
    c.zero_stage = stage;
    c.sam.scope = scope;
    c.sam.group_size = 2;
    c.batch.accumulation_steps = 2;
    return trained(4, c, [](Engine& engine, Bowl& m, int rank) {
      for (int step = 0; step < 3; ++step) {
        engine.train_batch([&](int64_t micro) {
          return m.loss(4 * slope(static_cast<double>(8 * step + 2 * rank + micro)));
        });
      }
    });
  };
  std::vector<Tensor> all;
  for (const auto scope :
       {SamScope::kGlobal, SamScope::kGroup, SamScope::kLocal, SamScope::kMicro}) {
    all.push_back(run(GetParam(), scope));
    EXPECT_TRUE(same_bits(all.back(), run(1 - GetParam(), scope)));
    for (size_t other = 0; other + 1 < all.size(); ++other) {
      EXPECT_GT(distance(all[other], all.back()), 1e-3);
    }
  }
}

// Each rank's piece of g made ρ long by itself gives √N·ρ in all, and another direction.
TEST_P(SamShardedFlaws, LengthDoesNotGrowWithTheRanks) {  // N3
  // Pieces of different size, as layers have.
  const Tensor c = slope(0) * (1 + at::floor(range() * 8 / kNumel));
  const Tensor g = gradient(start(), c);
  for (const int world : {1, 2, 4}) {
    Tensor flawed = at::zeros({kNumel}, at::kDouble);
    for (int rank = 0; rank < world; ++rank) {
      const int64_t begin = rank * kNumel / world, size = kNumel / world;
      flawed.narrow(0, begin, size).copy_(along(g.narrow(0, begin, size)));
    }
    EXPECT_NEAR(flawed.norm().item<double>(), std::sqrt(world) * kRho, 1e-9);
    const Tensor ours = trained(world, config(), [&](Engine& engine, Bowl& m, int rank) {
      if (GetParam() == 1) {  // the pieces are the shards
        const ShardRange owned = engine.optimizer().flat_groups()[0]->owned();
        EXPECT_EQ(owned.begin, rank * kNumel / world);
        EXPECT_EQ(owned.size(), kNumel / world);
      }
      const Tensor clean = m.flat();
      engine.train_batch([&](const PassContext& context) {
        if (context.pass == 1) {
          EXPECT_NEAR((m.flat() - clean).norm().item<double>(), kRho, 1e-5);
        }
        return m.loss(c);
      });
      EXPECT_NEAR(engine.report().outcome.e_norm, kRho, 1e-5);
    });
    const Tensor right = stepped(start(), along(g), c);
    EXPECT_LT(distance(ours, right), 1e-5);
    if (world > 1) EXPECT_GT(distance(ours, stepped(start(), flawed, c)), 1e-3);
  }
}

// At scale 16 rank 1's gradient of 5000 leaves fp16 in one pass; at 8 it would not. A scaler that
// decides by rank would move rank 1's scale alone, one that decides by pass would halve it twice.
TEST_P(SamShardedFlaws, OverflowInEitherPassBacksOffOnceOnEveryRank) {  // N4
  const Tensor c = slope(0);
  for (const int bad_pass : {0, 1}) {
    Config half = config(DType::kF16);
    half.fp16.initial_scale_power = 4;
    half.fp16.hysteresis = 1;
    half.fp16.loss_scale_window = 2;
    trained(2, half, [&](Engine& engine, Bowl& m, int rank) {
      const Tensor given = m.flat();
      const Tensor masters = engine.optimizer().flat_groups()[0]->master().clone();
      const auto step = [&](double size) {
        engine.train_batch([&](const PassContext& context) {
          const bool large = rank == 1 && context.pass == bad_pass;
          return large ? m.loss(c) + size * m.a.to(at::kFloat).sum() : m.loss(c);
        });
      };
      EXPECT_EQ(engine.loss_scale(), 16.0);
      step(5000);
      EXPECT_FALSE(engine.was_step_applied());
      EXPECT_EQ(engine.loss_scale(), 8.0);  // neither 16 nor 4
      EXPECT_TRUE(same_bits(m.flat(), given));
      EXPECT_TRUE(same_bits(engine.optimizer().flat_groups()[0]->master(), masters));
      // The same again fits, and its e and update are those of the unscaled gradients.
      step(5000);
      EXPECT_TRUE(engine.was_step_applied());
      EXPECT_EQ(engine.loss_scale(), 8.0);
      Tensor large = at::zeros({kNumel}, at::kDouble);
      large.narrow(0, 0, kHalf).fill_(2500);
      const Tensor first = gradient(start(), c) + (bad_pass == 0 ? large : 0 * large);
      const Tensor last = gradient(start() + along(first), c) + (bad_pass == 1 ? large : 0 * large);
      const Tensor moved = kLr * last;
      // Working weights and gradients have 11 bits.
      EXPECT_LT(distance(m.flat(), start() - moved), 2e-3 * (1 + moved.abs().max().item<double>()));
      EXPECT_NEAR(engine.report().outcome.e_norm, kRho, 1e-2);
      const double norm = first.norm().item<double>();
      EXPECT_NEAR(engine.report().outcome.ascent_norm, norm, 2e-3 * norm);
      step(0);
      EXPECT_EQ(engine.loss_scale(), 16.0);  // grows after two clean steps, not after four passes
    });
  }
}

}  // namespace
}  // namespace zerosharp
