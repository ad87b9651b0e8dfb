// Collectives over thread ranks: values, order and counters.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/element.h"
#include "zero/comm/thread_communicator.h"

namespace zerosharp {
namespace {

constexpr int64_t kSizes[] = {0, 1, 3, 7, 64, 1000, 65537};

/// A reproducible value of element `i` on `rank`: multiples of 1/8 below 32, exact in every type.
double value(int rank, int64_t i) {
  return static_cast<double>(
             (static_cast<uint64_t>(i) * 2654435761u + 97u * static_cast<uint64_t>(rank)) % 256) /
             8.0 -
         16.0;
}

/// A typed buffer with access by number.
class Numbers {
 public:
  Numbers(DType dtype, int64_t numel) : dtype_(dtype), numel_(numel) {
    bytes_.resize(static_cast<size_t>(numel * element_bytes(dtype)) + 1);
  }
  FlatSpan span() { return {bytes_.data(), numel_, dtype_}; }
  void set(int64_t i, double v) {
    switch (dtype_) {
      case DType::kF32:
        return put(i, static_cast<float>(v));
      case DType::kBF16:
        return put(i, kernels::to_bf16(static_cast<float>(v)));
      case DType::kF16:
        return put(i, kernels::to_f16(static_cast<float>(v)));
      case DType::kF64:
        return put(i, v);
      case DType::kI64:
        return put(i, static_cast<int64_t>(v));
    }
  }
  double get(int64_t i) const {
    switch (dtype_) {
      case DType::kF32:
        return take<float>(i);
      case DType::kBF16:
        return kernels::to_float(take<kernels::BF16>(i));
      case DType::kF16:
        return kernels::to_float(take<kernels::F16>(i));
      case DType::kF64:
        return take<double>(i);
      case DType::kI64:
        return static_cast<double>(take<int64_t>(i));
    }
    return 0;
  }
  const std::vector<char>& bytes() const { return bytes_; }

 private:
  template <class T>
  void put(int64_t i, T v) {
    std::memcpy(bytes_.data() + i * static_cast<int64_t>(sizeof v), &v, sizeof v);
  }
  template <class T>
  T take(int64_t i) const {
    T v;
    std::memcpy(&v, bytes_.data() + i * static_cast<int64_t>(sizeof v), sizeof v);
    return v;
  }
  DType dtype_;
  int64_t numel_;
  std::vector<char> bytes_;
};

void fill(Numbers& numbers, int rank, int64_t numel) {
  for (int64_t i = 0; i < numel; ++i) numbers.set(i, value(rank, i));
}

double reduced(ReduceOp op, int world, int64_t i, bool whole) {
  double result = whole ? std::trunc(value(0, i)) : value(0, i);
  for (int rank = 1; rank < world; ++rank) {
    const double v = whole ? std::trunc(value(rank, i)) : value(rank, i);
    if (op == ReduceOp::kMax) {
      result = std::max(result, v);
    } else if (op == ReduceOp::kMin) {
      result = std::min(result, v);
    } else {
      result += v;
    }
  }
  return op == ReduceOp::kMean ? result / world : result;
}

/// Sums of at most eight multiples of 1/8 below 32 are exact in fp32 and fp64. What remains is the
/// mean's division and the rounding to the type, each relative 2^-p of a type with p bits: 2^-24
/// for fp32, 2^-53 for fp64, 2^-8 for bf16, 2^-11 for fp16; products of two such errors are below
/// 2^-30.
double bound(DType dtype, ReduceOp op, double exact) {
  const bool divided = op == ReduceOp::kMean;
  switch (dtype) {
    case DType::kI64:
      return 0;
    case DType::kF64:
      return divided ? std::fabs(exact) * 0x1p-53 : 0;
    case DType::kF32:
      return divided ? std::fabs(exact) * 0x1p-24 : 0;
    case DType::kBF16:
      return std::fabs(exact) * (0x1p-8 + 0x1p-24 + 0x1p-30);
    case DType::kF16:
      return std::fabs(exact) * (0x1p-11 + 0x1p-24 + 0x1p-30);
  }
  return 0;
}

class Ranks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(World, Ranks, ::testing::Range(1, 9));

TEST_P(Ranks, AllReduceReduceScatterAndAllGather) {
  const int world = GetParam();
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI64}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMax, ReduceOp::kMin}) {
      const bool whole = dtype == DType::kI64;
      if (whole && op == ReduceOp::kMean) continue;
      for (const int64_t numel : kSizes) {
        std::vector<std::vector<char>> results(static_cast<size_t>(world));
        run_thread_ranks(world, [&](Communicator& comm) {
          Numbers all(dtype, numel);
          fill(all, comm.rank(), numel);
          comm.all_reduce(all.span(), op);
          results[static_cast<size_t>(comm.rank())] = all.bytes();
          for (int64_t i = 0; i < numel; ++i) {
            const double exact = reduced(op, world, i, whole);
            ASSERT_NEAR(all.get(i), exact, bound(dtype, op, exact));
          }
          // The two halves of an all-reduce give the same bits.
          const int64_t padded = (numel + world - 1) / world * world;
          Numbers halves(dtype, padded);
          fill(halves, comm.rank(), numel);
          comm.reduce_scatter(halves.span(), op);
          comm.all_gather(halves.span());
          for (int64_t i = 0; i < numel; ++i) ASSERT_EQ(halves.get(i), all.get(i));
        });
        for (const auto& result : results) EXPECT_EQ(result, results[0]);
      }
    }
  }
}

// Values whose sum is rounded: the order of additions shows. The reference adds in rank order.
TEST_P(Ranks, SumsAreMadeInRankOrder) {
  const auto inexact = [](int rank, int64_t i) {
    return static_cast<float>(std::sin(static_cast<double>(i) + 0.1) * std::exp2(rank * 5 % 7));
  };
  constexpr int64_t kNumel = 1001;
  run_thread_ranks(GetParam(), [&](Communicator& comm) {
    Numbers numbers(DType::kF32, kNumel);
    for (int64_t i = 0; i < kNumel; ++i) numbers.set(i, inexact(comm.rank(), i));
    comm.all_reduce(numbers.span(), ReduceOp::kSum);
    for (int64_t i = 0; i < kNumel; ++i) {
      float sum = inexact(0, i);
      for (int rank = 1; rank < comm.size(); ++rank) sum += inexact(rank, i);
      ASSERT_EQ(numbers.get(i), sum) << "element " << i;
    }
  });
}

TEST_P(Ranks, BroadcastFromEveryRoot) {
  for (int root = 0; root < GetParam(); ++root) {
    run_thread_ranks(GetParam(), [&](Communicator& comm) {
      Numbers numbers(DType::kF32, 100);
      fill(numbers, comm.rank(), 100);
      comm.broadcast(numbers.span(), root);
      for (int64_t i = 0; i < 100; ++i) ASSERT_EQ(numbers.get(i), value(root, i));
    });
  }
}

// 256 + 1 + 1 … is 256 when each addition is rounded to bf16.
TEST_P(Ranks, Bf16IsSummedInFp32) {
  run_thread_ranks(GetParam(), [&](Communicator& comm) {
    Numbers numbers(DType::kBF16, 5);
    for (int64_t i = 0; i < 5; ++i) numbers.set(i, comm.rank() == 0 ? 256 : 1);
    comm.all_reduce(numbers.span(), ReduceOp::kSum);
    const double exact = 256 + comm.size() - 1;
    EXPECT_EQ(numbers.get(0), kernels::to_float(kernels::to_bf16(static_cast<float>(exact))));
  });
}

TEST_P(Ranks, AsynchronousCallsKeepTheirOrder) {
  run_thread_ranks(GetParam(), [&](Communicator& comm) {
    std::vector<Numbers> buffers;
    std::vector<Work> works;
    for (int k = 0; k < 6; ++k) buffers.emplace_back(DType::kF32, 8 * comm.size());
    for (int k = 0; k < 6; ++k) {
      for (int64_t i = 0; i < 8 * comm.size(); ++i) buffers[static_cast<size_t>(k)].set(i, k + 1);
      const FlatSpan span = buffers[static_cast<size_t>(k)].span();
      works.push_back(k % 3 == 0   ? comm.all_reduce_async(span, ReduceOp::kSum)
                      : k % 3 == 1 ? comm.reduce_scatter_async(span, ReduceOp::kSum)
                                   : comm.all_gather_async(span));
    }
    // A blocking call waits for those before it.
    Numbers last(DType::kF32, 1);
    last.set(0, 1);
    comm.all_reduce(last.span(), ReduceOp::kSum);
    EXPECT_EQ(last.get(0), comm.size());
    for (auto& work : works) work.wait();
    for (auto& work : works) EXPECT_NO_THROW(work.wait());
    const int64_t own = 8 * comm.rank();
    EXPECT_EQ(buffers[0].get(own), 1.0 * comm.size());
    EXPECT_EQ(buffers[1].get(own), 2.0 * comm.size());
    EXPECT_EQ(buffers[2].get(own), 3.0);
    EXPECT_EQ(comm.sequence(), 7);
  });
}

TEST_P(Ranks, CountersAreThoseOfARing) {
  const int world = GetParam();
  run_thread_ranks(world, [&](Communicator& comm) {
    Numbers numbers(DType::kBF16, 80 * world);
    const int64_t bytes = 160 * world;
    comm.all_reduce(numbers.span(), ReduceOp::kSum);
    comm.reduce_scatter(numbers.span(), ReduceOp::kSum);
    comm.reduce_scatter(numbers.span(), ReduceOp::kSum);
    comm.all_gather_async(numbers.span()).wait();
    comm.broadcast(numbers.span(), 0);
    comm.barrier();
    const CommStats& stats = comm.stats();
    EXPECT_EQ(stats.of(CollectiveOp::kAllReduce).bytes, 2 * bytes * (world - 1) / world);
    EXPECT_EQ(stats.of(CollectiveOp::kReduceScatter).calls, 2);
    EXPECT_EQ(stats.of(CollectiveOp::kReduceScatter).bytes, 2 * bytes * (world - 1) / world);
    EXPECT_EQ(stats.of(CollectiveOp::kAllGather).bytes, bytes * (world - 1) / world);
    EXPECT_EQ(stats.of(CollectiveOp::kBroadcast).bytes, world > 1 && comm.rank() == 0 ? bytes : 0);
    EXPECT_EQ(stats.of(CollectiveOp::kBarrier).calls, 1);
    comm.reset_stats();
    EXPECT_EQ(comm.stats().of(CollectiveOp::kAllReduce).calls, 0);
  });
}

// Three hundred random collectives in a row, each checked.
TEST_P(Ranks, RandomSequences) {
  const int world = GetParam();
  run_thread_ranks(world, [&](Communicator& comm) {
    uint64_t state = 12345;
    for (int call = 0; call < 300; ++call) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      const int64_t numel = static_cast<int64_t>(state >> 40) % 50 * world;
      Numbers numbers(DType::kF32, numel);
      for (int64_t i = 0; i < numel; ++i) numbers.set(i, value(comm.rank(), i + call));
      const FlatSpan span = numbers.span();
      const bool async = (state >> 33) % 2 != 0;
      if ((state >> 35) % 2 != 0) {
        async ? comm.all_reduce_async(span, ReduceOp::kSum).wait()
              : comm.all_reduce(span, ReduceOp::kSum);
        for (int64_t i = 0; i < numel; ++i) {
          ASSERT_EQ(numbers.get(i), reduced(ReduceOp::kSum, world, i + call, false));
        }
      } else {
        async ? comm.all_gather_async(span).wait() : comm.all_gather(span);
        for (int64_t i = 0; i < numel; ++i) {
          ASSERT_EQ(numbers.get(i), value(static_cast<int>(i / (numel / world)), i + call));
        }
      }
    }
  });
}

TEST(SingleRank, EverythingIsTheIdentity) {
  auto comm = make_single_communicator();
  float data[2] = {1.5f, -2.0f};
  comm->all_reduce({data, 2, DType::kF32}, ReduceOp::kMean);
  comm->reduce_scatter({data, 2, DType::kF32}, ReduceOp::kSum);
  comm->all_gather_async({data, 2, DType::kF32}).wait();
  comm->broadcast({data, 2, DType::kF32}, 0);
  comm->barrier();
  EXPECT_EQ(data[0], 1.5f);
  EXPECT_EQ(data[1], -2.0f);
  EXPECT_EQ(comm->stats().of(CollectiveOp::kAllReduce).bytes, 0);
}

}  // namespace
}  // namespace zerosharp
