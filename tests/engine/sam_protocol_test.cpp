// SAM's protocol for every variant and scope: a failure in either pass leaves no trace, a loop in
// parts is the loop with a closure, and a state taken over goes on as if nothing had happened.
#include <gtest/gtest.h>

#include <limits>

#include "kernels/error.h"
#include "tests/support/run_ranks.h"
#include "tests/support/sam_methods.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;

constexpr int kWorld = 2;

struct Case {
  int64_t stage;
  SamMethod method;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int64_t stage : {0, 1}) {
    for (const SamMethod& method : kSamMethods) all.push_back({stage, method});
  }
  return all;
}

class SamProtocol : public ::testing::TestWithParam<Case> {
 protected:
  static Config config(DType precision = DType::kF32) {
    const auto& [stage, method] = GetParam();
    Config config = adamw(0.05, stage, precision);
    config.batch.accumulation_steps = 2;
    config.sam.enabled = true;
    config.sam.rho = 0.2;
    config.sam.variant = method.variant;
    config.sam.scope = method.scope;
    if (method.scope == SamScope::kGroup) config.sam.group_size = 2;
    config.sam.rounding = SamRounding::kNearest;  // random bits depend on the number of the step
    return config;
  }
  static Factory<Mlp23> module() { return make<Mlp23>(3, 24); }
  /// Rows of micro-batch `micro` of rank `rank`.
  static at::Tensor loss(const Mlp23& m, int rank, int64_t micro) {
    const int64_t begin = 4 * rank + 2 * micro;
    return m.loss(begin, begin + 2);
  }
};

INSTANTIATE_TEST_SUITE_P(StageAndMethod, SamProtocol, ::testing::ValuesIn(cases()),
                         [](const auto& info) {
                           return std::string("Stage") + std::to_string(info.param.stage) + "_" +
                                  info.param.method.name;
                         });

enum class Fault { kNone, kNanLoss, kNanGradient, kThrow };

/// Rank 1 meets `fault` in its second micro-batch of pass `pass`, if there is such a pass.
void faulty_step(Engine& engine, Mlp23& m, int rank, Fault fault, int pass) {
  bool met = false;
  const auto closure = [&](const PassContext& context) {
    const at::Tensor loss = m.loss(4 * rank + 2 * context.micro, 4 * rank + 2 * context.micro + 2);
    if (rank != 1 || context.micro != 1 || context.pass != pass) return loss;
    met = true;
    if (fault == Fault::kThrow) throw std::runtime_error("out of data");
    const float nan = std::numeric_limits<float>::quiet_NaN();
    return fault == Fault::kNanLoss ? loss + nan : loss + nan * m.b2.to(at::kFloat).sum();
  };
  if (fault != Fault::kThrow) {
    engine.train_batch(closure);
    return;
  }
  try {
    engine.train_batch(closure);
    EXPECT_FALSE(met);
  } catch (const CommError&) {
    EXPECT_EQ(rank, 0);
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "out of data");
  }
}

TEST_P(SamProtocol, FailureInEitherPassSkipsOnEveryRankAndTheRunGoesOn) {
  for (const DType precision : {DType::kF32, DType::kBF16}) {
    for (const Fault fault : {Fault::kNanLoss, Fault::kNanGradient, Fault::kThrow}) {
      for (const int pass : {0, 1}) {
        // Steps that evaluate once meet the second fault in no pass.
        if (pass == 1 && GetParam().method.variant == SamVariant::kMsam) continue;
        SCOPED_TRACE(::testing::Message() << "fault " << static_cast<int>(fault) << " in pass "
                                          << pass << ", " << dtype_name(precision));
        train<Mlp23>(kWorld, config(precision), module(), [&](Engine& engine, Mlp23& m, int rank) {
          const auto good = [&](int64_t micro) { return loss(m, rank, micro); };
          const at::Tensor masters = engine.optimizer().flat_groups()[0]->master().clone();
          faulty_step(engine, m, rank, fault, pass);
          EXPECT_FALSE(engine.was_step_applied());
          EXPECT_EQ(engine.skipped_steps(), 1);
          EXPECT_EQ(engine.optimizer().applied_steps(), 0);
          {
            const EvalScope clean = engine.eval();
            expect_clean_weights(engine);
          }
          EXPECT_TRUE(same_bits(masters, engine.optimizer().flat_groups()[0]->master()));
          for (const auto& state : engine.optimizer().flat_groups()[0]->states()) {
            EXPECT_TRUE(same_bits(state, at::zeros_like(state)));
          }
          engine.train_batch(good);
          EXPECT_TRUE(engine.was_step_applied());
          EXPECT_FALSE(same_bits(masters, engine.optimizer().flat_groups()[0]->master()));
        });
      }
    }
  }
}

/// Masters of rank 0 after good steps, with a failing one between if `fault` says so.
at::Tensor masters_with(const Config& config, const Factory<Mlp23>& module, Fault fault) {
  at::Tensor masters;
  train<Mlp23>(kWorld, config, module, [&](Engine& engine, Mlp23& m, int rank) {
    const auto good = [&](int64_t micro) {
      return m.loss(4 * rank + 2 * micro, 4 * rank + 2 * micro + 2);
    };
    for (int i = 0; i < 2; ++i) engine.train_batch(good);
    if (fault != Fault::kNone) faulty_step(engine, m, rank, fault, 0);
    for (int i = 0; i < 2; ++i) engine.train_batch(good);
    if (rank == 0) masters = engine.optimizer().flat_groups()[0]->master().clone();
  });
  return masters;
}

// Means, kept gradients and momenta of variants included.
TEST_P(SamProtocol, StepThatFailsInTheFirstPassLeavesNoTrace) {
  Config c = config();
  c.sam.k = 100;  // LookSAM counts boundaries
  c.sam.threshold_start = c.sam.threshold_end = 0;
  const at::Tensor without = masters_with(c, module(), Fault::kNone);
  for (const Fault fault : {Fault::kNanLoss, Fault::kNanGradient, Fault::kThrow}) {
    EXPECT_TRUE(same_bits(masters_with(c, module(), fault), without)) << static_cast<int>(fault);
  }
}

void split_step(Engine& engine, const std::function<at::Tensor(int64_t)>& loss, int64_t total) {
  SplitStep step = engine.begin_ascent();
  for (int64_t i = 0; i < step.micro_batches(); ++i) step.backward(loss(i));
  if (step.end_ascent()) {
    EXPECT_TRUE(engine.optimizer().weights_perturbed());
    for (int64_t i = 0; i < total; ++i) step.backward(loss(i));
  }
  step.finish();
}

TEST_P(SamProtocol, LoopInPartsIsTheLoopWithAClosure) {
  if (GetParam().method.scope == SamScope::kMicro) {
    train<Mlp23>(kWorld, config(), module(), [](Engine& engine, Mlp23&, int) {
      EXPECT_THROW(engine.begin_ascent(), ConfigError);  // only a closure can be called so often
    });
    return;
  }
  const auto run = [&](bool split) {
    return train<Mlp23>(kWorld, config(), module(), [&](Engine& engine, Mlp23& m, int rank) {
      const auto closure = [&](int64_t micro) { return loss(m, rank, micro); };
      for (int i = 0; i < 7; ++i) {
        split ? split_step(engine, closure, 2) : static_cast<void>(engine.train_batch(closure));
      }
      EXPECT_EQ(engine.optimizer().applied_steps(), 7);
    });
  };
  const auto whole = run(false)->parameters();
  const auto parts = run(true)->parameters();
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(same_bits(whole[i], parts[i]));
}

// The loop of one rank ends between the passes: all ranks skip, none waits.
TEST_P(SamProtocol, ExceptionBetweenThePassesOfALoopInPartsSkipsOnEveryRank) {
  if (GetParam().method.scope == SamScope::kMicro) return;
  train<Mlp23>(kWorld, config(), module(), [&](Engine& engine, Mlp23& m, int rank) {
    const auto closure = [&](int64_t micro) { return loss(m, rank, micro); };
    const at::Tensor masters = engine.optimizer().flat_groups()[0]->master().clone();
    try {
      SplitStep step = engine.begin_ascent();
      for (int64_t i = 0; i < step.micro_batches(); ++i) step.backward(closure(i));
      const bool again = step.end_ascent();
      if (rank == 1) throw std::runtime_error("signal");
      for (int64_t i = 0; again && i < 2; ++i) step.backward(closure(i));
      step.finish();
      ADD_FAILURE() << "rank " << rank << " noticed nothing";
    } catch (const CommError& error) {
      EXPECT_EQ(rank, 0);
      EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "signal");
    }
    EXPECT_TRUE(same_bits(masters, engine.optimizer().flat_groups()[0]->master()));
    {
      const EvalScope clean = engine.eval();
      expect_clean_weights(engine);
    }
    engine.train_batch(closure);
    EXPECT_TRUE(engine.was_step_applied());
  });
}

// K10 for what SAM itself carries from step to step: a second adapter on the same optimizer goes on
// from the first one's state.
TEST_P(SamProtocol, AdapterWithTheStateOfAnotherGoesOnLikeIt) {
  Config c = config();
  if (GetParam().method.variant != SamVariant::kLookSam &&
      GetParam().method.variant != SamVariant::kMsam) {
    c.sam.interval = 2;  // a phase that must live on
  }
  c.sam.k = 3;
  const auto run = [&](bool hand_over, bool with_state) {
    at::Tensor masters;
    train<Mlp23>(kWorld, c, module(), [&](Engine& engine, Mlp23& m, int rank) {
      const PassClosure closure = [&](const PassContext& context) {
        return loss(m, rank, context.micro);
      };
      for (int i = 0; i < 5; ++i) engine.train_batch(closure);
      SamContext context;
      context.total_steps = c.train.steps;
      std::optional<SamAdapter> second;
      if (hand_over) {
        second.emplace(engine.optimizer(), c.sam, context);
        if (with_state) second->load_state(engine.sam()->state());
      }
      SamAdapter& sam = hand_over ? *second : *engine.sam();
      for (int i = 0; i < 5; ++i) sam.step(closure, 2);
      sam.publish_clean();
      if (rank == 0) masters = engine.optimizer().flat_groups()[0]->master().clone();
    });
    return masters;
  };
  const at::Tensor straight = run(false, true);
  EXPECT_TRUE(same_bits(run(true, true), straight));
  if (GetParam().method.variant == SamVariant::kMsam) return;  // its state is the optimizer's
  EXPECT_FALSE(same_bits(run(true, false), straight));
}

TEST_P(SamProtocol, ClosuresAreToldTheirPass) {
  train<Mlp23>(kWorld, config(), module(), [&](Engine& engine, Mlp23& m, int rank) {
    std::vector<std::array<int64_t, 3>> seen;
    engine.train_batch([&](const PassContext& context) {
      seen.push_back({context.micro, context.pass, context.last_pass});
      EXPECT_EQ(engine.optimizer().weights_perturbed(), context.pass == 1);
      return loss(m, rank, context.micro);
    });
    std::vector<std::array<int64_t, 3>> expected = {{0, 0, 0}, {1, 0, 0}, {0, 1, 1}, {1, 1, 1}};
    if (GetParam().method.scope == SamScope::kMicro) std::swap(expected[1], expected[2]);
    if (GetParam().method.variant == SamVariant::kMsam) expected = {{0, 0, 1}, {1, 0, 1}};
    EXPECT_EQ(seen, expected);
    EXPECT_EQ(engine.micro_steps(), 2);
  });
}

}  // namespace
}  // namespace zerosharp
