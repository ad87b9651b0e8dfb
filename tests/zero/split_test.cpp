// Communicators of some of the ranks: who is in them, that they do not mix, how long they live and
// how failures travel between them and the one they come from.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/error.h"
#include "zero/comm/thread_communicator.h"

namespace zerosharp {
namespace {

using Coloring = std::function<int(int rank, int world)>;

const std::vector<Coloring> kColorings = {
    [](int, int) { return 7; },                              // all together
    [](int rank, int) { return rank; },                      // each alone
    [](int rank, int) { return rank / 2; },                  // neighbours
    [](int rank, int) { return rank % 2; },                  // every second
    [](int rank, int) { return rank == 0 ? 1 << 30 : 0; },   // one, and the rest
    [](int rank, int world) { return (world - rank) / 3; },  // colors that fall
};

/// The ranks with the color of `rank`, in order.
std::vector<int> members(const Coloring& color, int rank, int world) {
  std::vector<int> result;
  for (int other = 0; other < world; ++other) {
    if (color(other, world) == color(rank, world)) result.push_back(other);
  }
  return result;
}

/// Values whose sums are rounded, so that the order of additions shows.
std::vector<float> input(int rank, int64_t numel) {
  std::vector<float> values(static_cast<size_t>(numel));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] =
        static_cast<float>(std::sin(static_cast<double>(i) + 0.1) * std::exp2(rank * 5 % 7));
  }
  return values;
}

/// Sum over `ranks` in order, in fp32.
std::vector<float> sum_over(const std::vector<int>& ranks, int64_t numel) {
  std::vector<float> sum = input(ranks[0], numel);
  for (size_t k = 1; k < ranks.size(); ++k) {
    const auto other = input(ranks[k], numel);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
  }
  return sum;
}

FlatSpan span(std::vector<float>& values) {
  return {values.data(), static_cast<int64_t>(values.size()), DType::kF32};
}

void expect_sum(Communicator& comm, const std::vector<int>& ranks, int rank, int64_t numel) {
  auto values = input(rank, numel);
  comm.all_reduce(span(values), ReduceOp::kSum);
  EXPECT_EQ(values, sum_over(ranks, numel));
}

class Split : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(World, Split, ::testing::Range(1, 9));

TEST_P(Split, NumbersRanksInTheirOrder) {
  for (const Coloring& color : kColorings) {
    run_thread_ranks(GetParam(), [&](Communicator& comm) {
      const auto group = comm.split(color(comm.rank(), comm.size()));
      const auto ranks = members(color, comm.rank(), comm.size());
      ASSERT_EQ(group->size(), static_cast<int>(ranks.size()));
      ASSERT_LT(group->rank(), group->size());
      EXPECT_EQ(ranks[static_cast<size_t>(group->rank())], comm.rank());
    });
  }
}

// Every collective, values that only the right ranks in the right order give.
TEST_P(Split, CollectivesAreThoseOfTheGroup) {
  for (const Coloring& color : kColorings) {
    run_thread_ranks(GetParam(), [&](Communicator& comm) {
      const auto group = comm.split(color(comm.rank(), comm.size()));
      const auto ranks = members(color, comm.rank(), comm.size());
      for (const int64_t numel : {0, 1, 7, 1000}) {
        expect_sum(*group, ranks, comm.rank(), numel);
        const int64_t padded = numel * group->size();
        auto values = input(comm.rank(), padded);
        group->reduce_scatter(span(values), ReduceOp::kSum);
        group->all_gather(span(values));
        EXPECT_EQ(values, sum_over(ranks, padded));
        for (int root = 0; root < group->size(); ++root) {
          values = input(comm.rank(), numel);
          group->broadcast(span(values), root);
          EXPECT_EQ(values, input(ranks[static_cast<size_t>(root)], numel));
        }
        group->barrier();
      }
    });
  }
}

// Groups make different numbers of calls, of different kinds, and the whole between them: a
// collective that waited for or read another group's ranks would hang or give other values.
TEST_P(Split, GroupsAndTheWholeDoNotMix) {
  const Coloring color = kColorings[3];
  run_thread_ranks(GetParam(), [&](Communicator& comm) {
    std::vector<int> everyone;
    for (int rank = 0; rank < comm.size(); ++rank) everyone.push_back(rank);
    const int mine = color(comm.rank(), comm.size());
    const auto ranks = members(color, comm.rank(), comm.size());
    const auto group = comm.split(mine);
    for (int round = 0; round < 20; ++round) {
      for (int call = 0; call < 1 + mine * (round % 4); ++call) {
        expect_sum(*group, ranks, comm.rank(), 10 + 3 * mine + call);
        if (mine == 1) group->barrier();
      }
      expect_sum(comm, everyone, comm.rank(), 33);
    }
  });
}

TEST_P(Split, AsynchronousCallsOfGroupAndWholeOverlap) {
  run_thread_ranks(GetParam(), [&](Communicator& comm) {
    std::vector<int> everyone;
    for (int rank = 0; rank < comm.size(); ++rank) everyone.push_back(rank);
    const auto ranks = members(kColorings[2], comm.rank(), comm.size());
    const auto group = comm.split(comm.rank() / 2);
    auto whole = input(comm.rank(), 5000), part = input(comm.rank(), 4000);
    Work all = comm.all_reduce_async(span(whole), ReduceOp::kSum);
    Work some = group->all_reduce_async(span(part), ReduceOp::kSum);
    // Half of the ranks wait for the one first, half for the other.
    (comm.rank() % 2 == 0 ? all : some).wait();
    (comm.rank() % 2 == 0 ? some : all).wait();
    EXPECT_EQ(whole, sum_over(everyone, 5000));
    EXPECT_EQ(part, sum_over(ranks, 4000));
  });
}

TEST_P(Split, GroupsOfGroups) {
  run_thread_ranks(GetParam(), [&](Communicator& comm) {
    const auto half = comm.split(comm.rank() % 2);
    const auto quarter = half->split(half->rank() % 2);
    std::vector<int> ranks;
    for (int rank = comm.rank() % 4; rank < comm.size(); rank += 4) ranks.push_back(rank);
    EXPECT_EQ(quarter->size(), static_cast<int>(ranks.size()));
    expect_sum(*quarter, ranks, comm.rank(), 100);
    expect_sum(*half, members(kColorings[3], comm.rank(), comm.size()), comm.rank(), 100);
  });
}

TEST_P(Split, TwiceGivesGroupsThatDoNotMix) {
  run_thread_ranks(GetParam(), [&](Communicator& comm) {
    const auto first = comm.split(comm.rank() / 2);
    const auto second = comm.split(comm.rank() / 2);
    const auto ranks = members(kColorings[2], comm.rank(), comm.size());
    auto a = input(comm.rank(), 50), b = input(comm.rank(), 70);
    Work in_first = first->all_reduce_async(span(a), ReduceOp::kSum);
    second->all_reduce(span(b), ReduceOp::kSum);
    in_first.wait();
    EXPECT_EQ(a, sum_over(ranks, 50));
    EXPECT_EQ(b, sum_over(ranks, 70));
  });
}

TEST_P(Split, GroupsCountForThemselves) {
  run_thread_ranks(GetParam(), [&](Communicator& comm) {
    comm.barrier();
    const int64_t before = comm.sequence();
    const auto group = comm.split(comm.rank() / 2);
    EXPECT_EQ(comm.sequence(), before);
    EXPECT_EQ(group->sequence(), 0);
    auto values = input(comm.rank(), 6 * 8);
    group->all_reduce(span(values), ReduceOp::kSum);
    EXPECT_EQ(group->sequence(), 1);
    EXPECT_EQ(comm.sequence(), before);
    const int64_t size = group->size();  // a ring of the group's ranks
    EXPECT_EQ(group->stats().of(CollectiveOp::kAllReduce).bytes, 2 * 6 * 8 * 4 * (size - 1) / size);
    EXPECT_EQ(comm.stats().of(CollectiveOp::kAllReduce).calls, 0);
  });
}

TEST_P(Split, GroupsOutliveTheirOrigin) {
  const int world = GetParam();
  std::vector<std::unique_ptr<Communicator>> groups(static_cast<size_t>(world));
  run_thread_ranks(world, [&](Communicator& comm) {
    groups[static_cast<size_t>(comm.rank())] = comm.split(comm.rank() % 2);
  });
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      Communicator& group = *groups[static_cast<size_t>(rank)];
      const auto ranks = members(kColorings[3], rank, world);
      expect_sum(group, ranks, rank, 100);
      const auto again = group.split(0);
      expect_sum(*again, ranks, rank, 100);
    });
  }
  for (auto& thread : threads) thread.join();
}

// --- Failures ------------------------------------------------------------------------------------

/// True if `call` is refused, now or soon: the news travels from one communicator to the next.
bool ends(const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - start < std::chrono::seconds(10)) {
    try {
      call();
    } catch (const CommError&) {
      return true;
    }
  }
  return false;
}

/// Rank 3 of 6 throws. Every other rank is inside a collective of `where` then, and must wake.
void expect_all_wake(const std::function<void(Communicator& all, Communicator& group)>& where) {
  std::atomic<int> woken{0};
  try {
    run_thread_ranks(6, [&](Communicator& comm) {
      const auto group = comm.split(comm.rank() % 3);
      try {
        comm.barrier();
        if (comm.rank() == 3) fail_config("the disk is full");
        while (true) where(comm, *group);
      } catch (const CommError& error) {
        ++woken;
        EXPECT_NE(std::string(error.what()).find("the disk is full"), std::string::npos)
            << error.what();
        EXPECT_THROW(comm.barrier(), CommError);
        EXPECT_TRUE(ends([&] { where(comm, *group); }));
        throw;
      }
    });
    ADD_FAILURE() << "no exception";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "rank 3: the disk is full");
  }
  EXPECT_EQ(woken, 5);
}

// The groups of ranks 1, 4 and 2, 5 go on calling collectives that all their ranks take part in.
TEST(SplitFailures, AnExceptionReachesRanksOfEveryGroup) {
  expect_all_wake([](Communicator&, Communicator& group) { group.barrier(); });
  expect_all_wake([](Communicator&, Communicator& group) {
    auto values = input(0, 10);
    group.all_reduce_async(span(values), ReduceOp::kSum).wait();
  });
  expect_all_wake([](Communicator& all, Communicator&) { all.barrier(); });
  expect_all_wake([](Communicator& all, Communicator& group) {
    all.rank() % 2 == 0 ? all.barrier() : group.barrier();
  });
}

TEST(SplitFailures, ARankThatNeverComesToItsGroupIsNamed) {
  try {
    run_thread_ranks(4,
                     [](Communicator& comm) {
                       const auto group = comm.split(comm.rank() / 2);
                       if (comm.rank() != 3) group->barrier();
                       if (comm.rank() != 3) comm.barrier();
                     },
                     {std::chrono::milliseconds(200)});
    ADD_FAILURE() << "no exception";
  } catch (const CommError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("never came"), std::string::npos) << text;
  }
}

TEST(SplitFailures, DisagreementInOneGroupIsItsOwn) {
  std::atomic<int> fine{0};
  try {
    run_thread_ranks(4, [&](Communicator& comm) {
      const auto group = comm.split(comm.rank() / 2);
      auto values = input(comm.rank(), 8);
      FlatSpan mine = span(values);
      if (comm.rank() == 3) mine.numel = 6;
      if (comm.rank() < 2) {  // this group is done before the other begins
        group->all_reduce(mine, ReduceOp::kSum);
        ++fine;
      }
      comm.barrier();
      if (comm.rank() >= 2) group->all_reduce(mine, ReduceOp::kSum);
      comm.barrier();
    });
    ADD_FAILURE() << "no exception";
  } catch (const CommError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("of 8 fp32"), std::string::npos) << text;
    EXPECT_NE(text.find("of 6 fp32"), std::string::npos) << text;
  }
  EXPECT_EQ(fine, 2);
}

TEST(SplitArguments, NegativeColorsAreRefusedAndChangeNothing) {
  for (const int world : {1, 3}) {
    run_thread_ranks(world, [](Communicator& comm) {
      try {
        comm.split(-1);
        ADD_FAILURE() << "no error";
      } catch (const CommError& error) {
        const std::string text = error.what();
        EXPECT_NE(text.find("at least 0, got -1"), std::string::npos) << text;
      }
      comm.barrier();  // still usable, as nobody had begun
      EXPECT_EQ(comm.split(0)->size(), comm.size());
    });
  }
}

TEST(SplitArguments, NegativeColorOfOneRankEndsAll) {
  try {
    run_thread_ranks(3, [](Communicator& comm) { comm.split(comm.rank() == 1 ? -5 : 0); });
    ADD_FAILURE() << "no exception";
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("rank 1: split needs a color"), std::string::npos)
        << error.what();
  }
}

TEST(SplitArguments, AfterAFailureThereAreNoGroups) {
  auto ranks = make_thread_communicators(2, {std::chrono::milliseconds(50)});
  EXPECT_THROW(ranks[0]->barrier(), CommError);
  try {
    ranks[0]->split(0);
    ADD_FAILURE() << "no error";
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("never came"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace zerosharp
