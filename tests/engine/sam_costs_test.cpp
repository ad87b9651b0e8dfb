// What SAM costs beside the base optimizer: bytes a rank holds, bytes it sends, evaluations of the
// loss. Each is counted on a running engine and held against the arithmetic of docs/sam.md.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/live_allocator.h"
#include "tests/support/run_ranks.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;

constexpr int64_t kNumel = 64 * 12 * 200;  // no padding at 1, 2, 3 and 4 ranks

Config plain(int64_t stage = 1, int64_t accumulation = 1) {
  Config config = adamw(0.01, stage, DType::kBF16);
  config.batch.accumulation_steps = accumulation;
  return config;
}

Config with(SamVariant variant, SamScope scope = SamScope::kGlobal, Config config = plain()) {
  config.sam.enabled = true;
  config.sam.variant = variant;
  config.sam.scope = scope;
  if (scope == SamScope::kGroup) config.sam.group_size = 2;
  return config;
}

/// Two thirds of the elements in a normalization layer, so that a mask has something to leave out.
struct Parts : torch::nn::Module {
  Parts() {
    auto norm = register_module("norm", std::make_shared<torch::nn::Module>());
    scale = norm->register_parameter("weight", at::ones({2 * kNumel / 3}));
    rest = register_parameter("rest", at::ones({kNumel / 3}));
  }
  at::Tensor loss(double slope) const {
    return slope * (scale.to(at::kFloat).square().sum() + rest.to(at::kFloat).square().sum());
  }
  at::Tensor scale, rest;
};

// --- Communication and evaluations ---------------------------------------------------------------

struct Cost {
  int64_t scattered = 0, gathered = 0, reduced = 0;  ///< bytes rank 0 sends, by operation
  int64_t other = 0;
  int64_t calls = 0;
  int64_t in_group = 0;     ///< bytes rank 0 sends to its group
  int64_t evaluations = 0;  ///< of the loss, on rank 0
};

/// Of `steps` steps together, after `before` others.
Cost cost_of(const Config& config, int world, int steps = 1, int before = 0) {
  Cost cost;
  train<Parts>(world, config, make<Parts>(), [&](Engine& engine, Parts& m, int rank) {
    int64_t evaluations = 0;
    const auto step = [&] {
      engine.train_batch([&](int64_t micro) {
        ++evaluations;
        return m.loss(1e-3 * (1 + rank + static_cast<double>(micro)));
      });
      EXPECT_TRUE(engine.was_step_applied());
    };
    for (int i = 0; i < before; ++i) step();
    evaluations = 0;
    Communicator& ranks = engine.optimizer().communicator();
    const Communicator* group = engine.sam() != nullptr ? engine.sam()->group() : nullptr;
    const CommStats group_before = group != nullptr ? group->stats() : CommStats();
    ranks.reset_stats();
    for (int i = 0; i < steps; ++i) step();
    if (rank != 0) return;
    const CommStats& stats = ranks.stats();
    cost.scattered = stats.of(CollectiveOp::kReduceScatter).bytes;
    cost.gathered = stats.of(CollectiveOp::kAllGather).bytes;
    cost.reduced = stats.of(CollectiveOp::kAllReduce).bytes;
    cost.other = stats.of(CollectiveOp::kBroadcast).bytes;
    for (const auto& op : stats.ops) cost.calls += op.calls;
    cost.evaluations = evaluations;
    if (group == nullptr) return;
    for (size_t i = 0; i < stats.ops.size(); ++i) {
      cost.in_group += group->stats().ops[i].bytes - group_before.ops[i].bytes;
    }
  });
  return cost;
}

/// What a rank of `world` sends when each sends its part of `bytes`: (N−1)/N of them.
int64_t kappa(int64_t bytes, int world) { return bytes / world * (world - 1); }

/// A rank sends this for the one all-reduce of a step's few sums.
int64_t sums_bytes(int world) {
  const int64_t all = 8 * (StepSums::kNumSlots + 2);  // and a flag for each parameter
  return 2 * all * (world - 1) / world;
}

void expect_same(const Cost& a, const Cost& b) {
  EXPECT_EQ(a.scattered, b.scattered);
  EXPECT_EQ(a.gathered, b.gathered);
  EXPECT_EQ(a.reduced, b.reduced);
  EXPECT_EQ(a.calls, b.calls);
}

class SamCosts : public ::testing::TestWithParam<int> {
 protected:
  static int world() { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Ranks, SamCosts, ::testing::Values(1, 2, 4),
                         [](const auto& info) { return std::to_string(info.param); });

TEST_P(SamCosts, GlobalSendsGradientsAndWeightsOnceMore) {  // 4κ bytes a parameter in bf16
  const Cost base = cost_of(plain(), world());
  EXPECT_EQ(base.scattered, kappa(2 * kNumel, world()));
  EXPECT_EQ(base.gathered, kappa(2 * kNumel, world()));
  EXPECT_EQ(base.reduced, sums_bytes(world()));
  EXPECT_EQ(base.calls, 3);
  const Cost sam = cost_of(with(SamVariant::kSam), world());
  EXPECT_EQ(sam.scattered - base.scattered, kappa(2 * kNumel, world()));
  EXPECT_EQ(sam.gathered - base.gathered, kappa(2 * kNumel, world()));
  EXPECT_EQ(sam.reduced - base.reduced, sums_bytes(world()));
  EXPECT_EQ(sam.other, 0);
  EXPECT_EQ(sam.calls, 6);
  EXPECT_EQ(sam.evaluations, 2 * base.evaluations);
}

TEST_P(SamCosts, StageZeroSendsAllGradientsOnceMoreAndNoWeights) {
  const Cost base = cost_of(plain(0), world());
  const Cost sam = cost_of(with(SamVariant::kSam, SamScope::kGlobal, plain(0)), world());
  EXPECT_EQ(base.reduced, 2 * kappa(2 * kNumel, world()) + sums_bytes(world()));
  EXPECT_EQ(sam.reduced, 2 * base.reduced);
  EXPECT_EQ(sam.gathered + sam.scattered, 0);
}

TEST_P(SamCosts, Fp32AccumulatorsDoubleTheFirstPassesGradients) {
  const Cost base = cost_of(plain(1, 2), world());
  const Cost sam = cost_of(with(SamVariant::kSam, SamScope::kGlobal, plain(1, 2)), world());
  EXPECT_EQ(sam.scattered - base.scattered, kappa(4 * kNumel, world()));
  EXPECT_EQ(sam.gathered - base.gathered, kappa(2 * kNumel, world()));
}

TEST_P(SamCosts, LocalAndMicroSendNothingMore) {
  for (const int64_t stage : {0, 1}) {
    for (const int64_t accumulation : {1, 3}) {
      const Cost base = cost_of(plain(stage, accumulation), world());
      for (const SamScope scope : {SamScope::kLocal, SamScope::kMicro}) {
        const Cost sam =
            cost_of(with(SamVariant::kSam, scope, plain(stage, accumulation)), world());
        expect_same(sam, base);
        EXPECT_EQ(sam.evaluations, 2 * base.evaluations);
      }
    }
  }
}

TEST(SamGroupCosts, GroupSendsToItsGroupOnly) {
  for (const int64_t stage : {0, 1}) {
    const Cost base = cost_of(plain(stage), 4);
    const Cost sam = cost_of(with(SamVariant::kSam, SamScope::kGroup, plain(stage)), 4);
    expect_same(sam, base);
    EXPECT_EQ(sam.in_group, 2 * kappa(2 * kNumel, 2));  // an all-reduce among two
  }
}

TEST_P(SamCosts, MomentumSamSendsAFewSumsAndEvaluatesOnce) {
  const Cost base = cost_of(plain(), world(), 3);
  const Cost msam = cost_of(with(SamVariant::kMsam), world(), 3);
  EXPECT_EQ(msam.scattered, base.scattered);
  EXPECT_EQ(msam.gathered, base.gathered);
  EXPECT_EQ(msam.reduced - base.reduced, 3 * sums_bytes(world()));
  EXPECT_LT(msam.reduced, 3 * 2 * 300);
  EXPECT_EQ(msam.evaluations, base.evaluations);
}

TEST_P(SamCosts, IntervalPaysOnItsStepsOnly) {
  Config config = with(SamVariant::kSam);
  const Cost base = cost_of(plain(), world());
  const Cost every = cost_of(config, world());
  config.sam.interval = 5;
  const Cost fifth = cost_of(config, world(), 10);
  EXPECT_EQ(fifth.scattered, 8 * base.scattered + 2 * every.scattered);
  EXPECT_EQ(fifth.gathered, 8 * base.gathered + 2 * every.gathered);
  EXPECT_EQ(fifth.reduced, 8 * base.reduced + 2 * every.reduced);
  EXPECT_EQ(fifth.evaluations, 8 * base.evaluations + 2 * every.evaluations);
}

TEST_P(SamCosts, PartOfTheBatchSavesEvaluationsAndNoBytes) {
  Config config = with(SamVariant::kSam, SamScope::kGlobal, plain(1, 4));
  const Cost whole = cost_of(config, world());
  config.sam.ascent_fraction = 0.25;
  const Cost part = cost_of(config, world());
  expect_same(part, whole);
  EXPECT_EQ(whole.evaluations, 4 + 4);
  EXPECT_EQ(part.evaluations, 1 + 4);
}

// A mask saves gradients in backward, not bytes between ranks: buffers are reduced and gathered
// whole. In the local scope there are none to save.
TEST_P(SamCosts, MaskedParametersAreStillSent) {
  Config config = with(SamVariant::kSam);
  const Cost whole = cost_of(config, world());
  config.sam.params = {"^rest$"};
  expect_same(cost_of(config, world()), whole);
  config.sam.scope = SamScope::kLocal;
  expect_same(cost_of(config, world()), cost_of(plain(), world()));
}

TEST_P(SamCosts, LookSamPaysEveryKthStep) {
  Config config = with(SamVariant::kLookSam);
  config.sam.k = 4;
  const Cost base = cost_of(plain(), world());
  const Cost sam = cost_of(with(SamVariant::kSam), world());
  const Cost window = cost_of(config, world(), 4, 4);
  EXPECT_EQ(window.scattered, 3 * base.scattered + sam.scattered);
  EXPECT_EQ(window.gathered, 3 * base.gathered + sam.gathered);
  EXPECT_EQ(window.evaluations, 3 + 2);
}

TEST_P(SamCosts, MeansAndKeptGradientsSendAFewSumsAtMost) {
  const Cost sam = cost_of(with(SamVariant::kSam), world());
  for (const SamVariant variant : {SamVariant::kAsam, SamVariant::kGsam, SamVariant::kFsam,
                                   SamVariant::kVasso, SamVariant::kPreconditioned}) {
    SCOPED_TRACE(sam_variant_name(variant));
    const Cost cost = cost_of(with(variant), world());
    EXPECT_EQ(cost.scattered, sam.scattered);
    EXPECT_EQ(cost.gathered, sam.gathered);
    EXPECT_LE(cost.reduced - sam.reduced, 16);  // one fp64 number
    EXPECT_EQ(cost.evaluations, sam.evaluations);
  }
}

// An AE-SAM step that stays plain reduces its one gradient once.
TEST_P(SamCosts, AeSamWithoutASecondPassCostsThePlainStep) {
  Config config = with(SamVariant::kAeSam);
  config.sam.threshold_start = config.sam.threshold_end = 1e6;
  const Cost base = cost_of(plain(), world());
  const Cost cost = cost_of(config, world(), 1, 1);  // the first step has no mean yet
  expect_same(cost, base);
  EXPECT_EQ(cost.evaluations, base.evaluations);
}

// --- Memory --------------------------------------------------------------------------------------

struct Held {
  int64_t stated = 0;  ///< by the optimizer and the adapter, of rank 0
  int64_t of_sam = 0;  ///< the adapter's part of it
  int64_t live = 0;    ///< LibTorch's allocator, all ranks together, between steps
  int64_t peak = 0;    ///< … and at most during a step
};

Held held_by(const Config& config, int world) {
  const auto measure = [&] {
    Held held;
    LiveAllocator allocator;
    run_thread_ranks(world, [&](Communicator& comm) {
      auto module = std::make_shared<Parts>();
      Engine engine(module, config, comm);
      const auto step = [&] { engine.train_batch([&](int64_t) { return module->loss(1e-3); }); };
      step();
      comm.barrier();
      if (comm.rank() == 0) allocator.restart_peak();
      comm.barrier();
      for (int i = 0; i < 3; ++i) step();
      comm.barrier();
      if (comm.rank() == 0) {
        held.of_sam = engine.sam() != nullptr ? engine.sam()->bytes() : 0;
        held.stated = engine.optimizer().memory().total() + held.of_sam;
        held.live = allocator.live();
        held.peak = allocator.peak();
      }
      comm.barrier();
    });
    return held;
  };
  measure();  // what LibTorch keeps for the process is there before the measurement
  return measure();
}

constexpr int64_t kSmall = 16 << 10;  // generator states, scalars

struct Extra {
  const char* name;
  Config config;
  double sharded = 0;     ///< bytes a parameter that ranks share at stage 1
  double replicated = 0;  ///< … and that each holds
};

void PrintTo(const Extra& which, std::ostream* out) { *out << which.name; }

std::vector<Extra> extras() {
  Config mask = with(SamVariant::kSam);
  mask.sam.params = {"norm"};
  mask.sam.same_rng = false;
  Config cosine = with(SamVariant::kSam);
  cosine.sam.report_cosine = true;
  const Config fp32_sums = plain(1, 2);
  return {
      {"global", with(SamVariant::kSam)},
      {"global_fp32_accumulators", with(SamVariant::kSam, SamScope::kGlobal, fp32_sums)},
      {"local", with(SamVariant::kSam, SamScope::kLocal)},
      {"local_fp32_accumulators", with(SamVariant::kSam, SamScope::kLocal, fp32_sums)},
      {"group", with(SamVariant::kSam, SamScope::kGroup)},
      {"masked", mask},
      {"asam", with(SamVariant::kAsam)},
      {"preconditioned", with(SamVariant::kPreconditioned)},
      {"aesam", with(SamVariant::kAeSam)},
      {"msam", with(SamVariant::kMsam)},
      {"fsam", with(SamVariant::kFsam), 4},
      {"vasso", with(SamVariant::kVasso), 4},
      {"gsam", with(SamVariant::kGsam), 4},
      {"looksam", with(SamVariant::kLookSam), 4},
      {"cosine", cosine, 4},
      {"micro", with(SamVariant::kSam, SamScope::kMicro), 0, 2 + 2},
      {"micro_fp32_accumulators", with(SamVariant::kSam, SamScope::kMicro, fp32_sums), 0, 2 + 4},
  };
}

class SamMemory : public ::testing::TestWithParam<Extra> {};
INSTANTIATE_TEST_SUITE_P(Methods, SamMemory, ::testing::ValuesIn(extras()),
                         [](const auto& info) { return info.param.name; });

TEST_P(SamMemory, IsWhatTheArithmeticSays) {
  constexpr int kWorld = 2;
  for (const int64_t stage : {0, 1}) {
    SCOPED_TRACE("stage " + std::to_string(stage));
    Config config = GetParam().config;
    config.zero_stage = stage;
    Config base_config = config;
    base_config.sam = {};
    const Held base = held_by(base_config, kWorld);
    const Held sam = held_by(config, kWorld);
    const double a_parameter =
        GetParam().sharded / (stage == 0 ? 1 : kWorld) + GetParam().replicated;
    const auto extra = static_cast<int64_t>(a_parameter * kNumel);
    EXPECT_EQ(sam.of_sam, extra);
    EXPECT_EQ(sam.stated - base.stated, extra);
    EXPECT_GE(sam.live - base.live, kWorld * extra);
    EXPECT_LE(sam.live - base.live, kWorld * (extra + 8));  // and a number (the slope along e)
  }
}

// One rank, so that no other's graph comes and goes meanwhile: during its passes SAM holds nothing
// that the base optimizer's step does not.
TEST_P(SamMemory, NothingIsHeldDuringAStepThatIsNotHeldBetweenSteps) {
  Config config = GetParam().config;
  if (config.sam.scope == SamScope::kGroup) config.sam.group_size = 1;
  Config base_config = config;
  base_config.sam = {};
  const Held base = held_by(base_config, 1);
  const Held sam = held_by(config, 1);
  EXPECT_LE((sam.peak - sam.live) - (base.peak - base.live), kSmall);
}

}  // namespace
}  // namespace zerosharp
