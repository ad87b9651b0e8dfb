// Every epoch is covered once, and a global batch is the same, whatever the ranks.
#include "engine/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "tests/engine/data/data_fixture.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;
using Indices = std::vector<int64_t>;

struct Split {
  int world;
  int64_t accumulation;
  int64_t micro_batch;
};

constexpr int64_t kGlobalBatch = 48;  // a multiple of every world · accumulation below

/// Every way to cut the global batch into 1 to 4 ranks and 1, 2 or 4 micro-batches.
std::vector<Split> all_splits() {
  std::vector<Split> splits;
  for (const int world : {1, 2, 3, 4}) {
    for (const int64_t accumulation : {1, 2, 4}) {
      splits.push_back({world, accumulation, kGlobalBatch / (world * accumulation)});
    }
  }
  return splits;
}

/// The samples of `step` over all ranks, in the order of the global batch.
Indices global_batch(const Split& split, int64_t num_samples, int64_t step, uint64_t seed,
                     bool shuffle = true) {
  std::vector<Sampler> ranks;
  for (int rank = 0; rank < split.world; ++rank) {
    ranks.emplace_back(num_samples, kGlobalBatch, rank, split.world, split.micro_batch,
                       split.accumulation, seed, shuffle);
  }
  Indices batch;
  for (int64_t micro = 0; micro < split.accumulation; ++micro) {
    for (Sampler& rank : ranks) {
      const Indices part = rank.indices(step, micro);
      EXPECT_EQ(static_cast<int64_t>(part.size()), split.micro_batch);
      batch.insert(batch.end(), part.begin(), part.end());
    }
  }
  return batch;
}

/// The permutation of epoch `epoch`, asked for one sample a step.
Indices epoch_order(int64_t num_samples, int64_t epoch, uint64_t seed) {
  Sampler sampler(num_samples, 1, 0, 1, 1, 1, seed, true);
  Indices order;
  for (int64_t i = 0; i < num_samples; ++i) {
    order.push_back(sampler.indices(epoch * num_samples + i, 0).front());
  }
  return order;
}

TEST(Sampler, CoversEveryEpochExactlyOnceOverAllRanks) {
  for (const int64_t num_samples : {48, 96, 100, 101}) {  // the last two do not divide
    for (const Split& split : all_splits()) {
      SCOPED_TRACE(::testing::Message() << num_samples << " samples, " << split.world << " ranks, "
                                        << split.accumulation << " micro-batches");
      constexpr int64_t kEpochs = 3;
      Indices stream;
      for (int64_t step = 0; static_cast<int64_t>(stream.size()) < kEpochs * num_samples; ++step) {
        const Indices batch = global_batch(split, num_samples, step, 5);
        stream.insert(stream.end(), batch.begin(), batch.end());
      }
      for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
        Indices seen(stream.begin() + epoch * num_samples,
                     stream.begin() + (epoch + 1) * num_samples);
        std::sort(seen.begin(), seen.end());
        Indices all(static_cast<size_t>(num_samples));
        std::iota(all.begin(), all.end(), int64_t{0});
        EXPECT_EQ(seen, all) << "epoch " << epoch;
      }
    }
  }
}

TEST(Sampler, GlobalBatchDependsNeitherOnRanksNorOnAccumulation) {
  constexpr int64_t kSamples = 100;  // step 2 reaches into the second epoch
  for (const int64_t step : {0, 1, 2, 7}) {
    const Indices whole = global_batch({1, 1, kGlobalBatch}, kSamples, step, 9);
    for (const Split& split : all_splits()) {
      EXPECT_EQ(global_batch(split, kSamples, step, 9), whole)
          << "step " << step << ", " << split.world << " ranks, " << split.accumulation
          << " micro-batches";
    }
  }
}

TEST(Sampler, OrderChangesEveryEpochAndRepeatsInASecondRun) {  // case B115
  for (const int64_t rank : {0, 1}) {
    std::vector<std::vector<Indices>> runs;
    for (int run = 0; run < 2; ++run) {
      Sampler sampler(8, 2, static_cast<int>(rank), 2, 1, 1, 7, true);
      std::vector<Indices> epochs(3);
      for (int64_t step = 0; step < 12; ++step) {
        epochs[static_cast<size_t>(step / 4)].push_back(sampler.indices(step, 0).front());
      }
      EXPECT_FALSE(epochs[0] == epochs[1] && epochs[1] == epochs[2]);
      runs.push_back(epochs);
    }
    EXPECT_EQ(runs[0], runs[1]);
  }
}

TEST(Sampler, StepsCanBeAskedForInAnyOrder) {
  Sampler forward(10, 4, 0, 1, 4, 1, 3, true);
  Sampler backward(10, 4, 0, 1, 4, 1, 3, true);
  std::vector<Indices> expected;
  for (int64_t step = 0; step < 20; ++step) expected.push_back(forward.indices(step, 0));
  for (int64_t step = 19; step >= 0; --step) {
    EXPECT_EQ(backward.indices(step, 0), expected[static_cast<size_t>(step)]);
  }
}

TEST(Sampler, SeedDecidesTheOrder) {
  std::set<Indices> orders;
  for (uint64_t seed = 0; seed < 20; ++seed) orders.insert(epoch_order(50, 0, seed));
  EXPECT_EQ(orders.size(), 20u);
}

TEST(Sampler, WithoutShuffleSamplesComeInOrder) {
  Sampler sampler(5, 3, 0, 1, 3, 1, 1, false);
  EXPECT_EQ(sampler.indices(0, 0), (Indices{0, 1, 2}));
  EXPECT_EQ(sampler.indices(1, 0), (Indices{3, 4, 0}));
  EXPECT_EQ(sampler.indices(2, 0), (Indices{1, 2, 3}));
}

TEST(Sampler, EveryPermutationIsEquallyLikely) {
  // 24 permutations of 4 samples in 24 000 epochs of one seed and of as many seeds. Pearson's
  // statistic has 23 degrees of freedom: mean 23, variance 46; a fair shuffle exceeds 23 +
  // 6·sqrt(46) = 63.7 with probability 1e-5, and the seeds are fixed. The naive swap with any
  // position gives > 1000.
  constexpr int kDraws = 24000;
  for (const bool by_epoch : {true, false}) {
    std::map<Indices, int> counts;
    Sampler one(4, 4, 0, 1, 4, 1, 11, true);
    for (int i = 0; i < kDraws; ++i) {
      ++counts[by_epoch ? one.indices(i, 0)
                        : Sampler(4, 4, 0, 1, 4, 1, static_cast<uint64_t>(i), true).indices(0, 0)];
    }
    EXPECT_EQ(counts.size(), 24u);
    double statistic = 0;
    for (const auto& [order, count] : counts) {
      statistic += (count - kDraws / 24.0) * (count - kDraws / 24.0) / (kDraws / 24.0);
    }
    EXPECT_LT(statistic, 63.7) << (by_epoch ? "over epochs" : "over seeds");
  }
}

TEST(Sampler, EpochsAreCountedInGlobalBatches) {
  const Sampler sampler(100, 40, 0, 2, 20, 1, 1, true);
  EXPECT_DOUBLE_EQ(sampler.epochs(0), 0.0);
  EXPECT_DOUBLE_EQ(sampler.epochs(5), 2.0);
  EXPECT_EQ(sampler.num_samples(), 100);
}

TEST(Sampler, RefusesWhatCannotBeDealt) {
  EXPECT_EQ(message_of([] { Sampler(3, 4, 0, 4, 1, 1, 1, true); }),
            "the data set has 3 samples for 4 ranks; use fewer ranks or more data (data.path)");
  EXPECT_EQ(
      message_of([] { Sampler(7, 8, 0, 2, 2, 2, 1, true); }),
      "the data set has 7 samples, fewer than train_batch_size 8; lower the batch size or use "
      "more data (data.path)");
  EXPECT_EQ(message_of([] { Sampler(0, 1, 0, 1, 1, 1, 1, true); }),
            "the data set has 0 samples for 1 ranks; use fewer ranks or more data (data.path)");
  EXPECT_EQ(message_of([] { Sampler(99, 9, 0, 2, 2, 2, 1, true); }),
            "train_batch_size 9 is not train_micro_batch_size_per_gpu 2 * "
            "gradient_accumulation_steps 2 * 2 ranks");
  EXPECT_EQ(message_of([] { Sampler(99, 0, 0, 0, 1, 1, 1, true); }),
            "train_batch_size 0 is not train_micro_batch_size_per_gpu 1 * "
            "gradient_accumulation_steps 1 * 0 ranks");
  EXPECT_EQ(message_of([] { Sampler(99, 8, 2, 2, 2, 2, 1, true); }),
            "rank 2 is outside [0, 2), the ranks of the run");
}

}  // namespace
}  // namespace zerosharp
