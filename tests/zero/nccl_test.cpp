// Collectives over NCCL: as many ranks as there are GPUs (up to 4), as threads with a GPU each, on
// the caller's stream and on the communicator's own.
#include "zero/comm/nccl_communicator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/error.h"
#include "tests/zero/device_floats.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;

constexpr int kMaxRanks = 4;

/// Brings rank 0's bytes to the threads of one test.
class Mailbox {
 public:
  void exchange(int rank, std::string& bytes) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (rank == 0) {
      bytes_ = bytes;
      filled_ = true;
      arrived_.notify_all();
    }
    arrived_.wait(lock, [&] { return filled_; });
    bytes = bytes_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  bool filled_ = false;
  std::string bytes_;
};

class OverNccl : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!built_with_nccl()) GTEST_SKIP() << "this build has no NCCL";
    if (num_gpus() == 0) GTEST_SKIP() << "no CUDA device answers";
  }

  /// Runs `body` on one thread a GPU.
  static void on_all_gpus(const std::function<void(Communicator&)>& body) {
    const int size = std::min(num_gpus(), kMaxRanks);
    Mailbox mailbox;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        check(cudaSetDevice(rank));
        try {
          const auto comm = make_nccl_communicator(
              rank, size, [&](std::string& bytes) { mailbox.exchange(rank, bytes); });
          body(*comm);
        } catch (const std::exception& error) {
          ADD_FAILURE() << "rank " << rank << ": " << error.what();
        }
      });
    }
    for (auto& thread : threads) thread.join();
  }
};

/// Small whole numbers: sums are exact in any order.
std::vector<float> input(int rank, int64_t numel) {
  std::vector<float> values(static_cast<size_t>(numel));
  for (int64_t i = 0; i < numel; ++i) {
    values[static_cast<size_t>(i)] = static_cast<float>((i * 7 + rank * 13) % 101 - 50);
  }
  return values;
}

double reduced(ReduceOp op, int size, int64_t i) {
  const auto value = [&](int rank) { return static_cast<double>((i * 7 + rank * 13) % 101 - 50); };
  double result = value(0);
  for (int rank = 1; rank < size; ++rank) {
    const double v = value(rank);
    result = op == ReduceOp::kMax   ? std::max(result, v)
             : op == ReduceOp::kMin ? std::min(result, v)
                                    : result + v;
  }
  return op == ReduceOp::kMean ? result / size : result;
}

constexpr ReduceOp kReductions[] = {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMax,
                                    ReduceOp::kMin};

TEST_F(OverNccl, AllReduce) {
  on_all_gpus([](Communicator& comm) {
    EXPECT_STREQ(comm.name(), "nccl");
    for (const ReduceOp op : kReductions) {
      for (const int64_t numel : {0, 1, 7, 1000, 65537}) {
        for (const bool async : {false, true}) {
          const DeviceFloats buffer(input(comm.rank(), numel));
          async ? comm.all_reduce_async(buffer.span(), op, buffer.stream()).wait()
                : comm.all_reduce(buffer.span(), op, buffer.stream());
          const std::vector<float> result = buffer.values();
          for (int64_t i = 0; i < numel; ++i) {
            const double exact = reduced(op, comm.size(), i);
            // Only the mean is rounded: by a factor 1/N and a product, half an ulp each.
            ASSERT_NEAR(result[static_cast<size_t>(i)], exact, std::abs(exact) * 0x1p-22);
          }
        }
      }
    }
  });
}

TEST_F(OverNccl, ReduceScatterThenAllGather) {
  on_all_gpus([](Communicator& comm) {
    const int64_t numel = 1000 * comm.size();
    for (const bool async : {false, true}) {
      const DeviceFloats buffer(input(comm.rank(), numel));
      if (async) {
        const Work reduce =
            comm.reduce_scatter_async(buffer.span(), ReduceOp::kSum, buffer.stream());
        comm.all_gather_async(buffer.span(), buffer.stream()).wait();
      } else {
        comm.reduce_scatter(buffer.span(), ReduceOp::kSum, buffer.stream());
        comm.all_gather(buffer.span(), buffer.stream());
      }
      const std::vector<float> result = buffer.values();
      for (int64_t i = 0; i < numel; ++i) {
        ASSERT_EQ(result[static_cast<size_t>(i)], reduced(ReduceOp::kSum, comm.size(), i));
      }
    }
  });
}

TEST_F(OverNccl, BroadcastFromEveryRootAndBarrier) {
  on_all_gpus([](Communicator& comm) {
    for (int root = 0; root < comm.size(); ++root) {
      const DeviceFloats buffer(input(comm.rank(), 100));
      comm.broadcast(buffer.span(), root, buffer.stream());
      EXPECT_EQ(buffer.values(), input(root, 100));
      comm.barrier();
    }
  });
}

/// Checks a sum over ranks first, first + step, … of the whole.
void expect_group_sum(Communicator& group, int rank, int first, int step) {
  const DeviceFloats buffer(input(rank, 1000));
  group.all_reduce(buffer.span(), ReduceOp::kSum, buffer.stream());
  std::vector<float> sum(1000, 0.0f);
  for (int k = 0; k < group.size(); ++k) {
    const auto other = input(first + k * step, 1000);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
  }
  EXPECT_EQ(buffer.values(), sum);
}

TEST_F(OverNccl, Groups) {
  on_all_gpus([](Communicator& comm) {
    EXPECT_THROW(comm.split(-1), CommError);
    const auto alone = comm.split(comm.rank());
    EXPECT_EQ(alone->size(), 1);
    const int first = comm.rank() % 2;
    const auto second = comm.split(first);
    EXPECT_EQ(second->size(), (comm.size() + 1 - first) / 2);
    EXPECT_EQ(second->rank(), comm.rank() / 2);
    for (int round = 0; round <= first; ++round) {  // the odd ranks make more calls
      expect_group_sum(*second, comm.rank(), first, 2);
    }
    expect_group_sum(comm, comm.rank(), 0, 1);
    const auto again = second->split(0);
    expect_group_sum(*again, comm.rank(), first, 2);
  });
}

TEST_F(OverNccl, DebugChecksLetEqualCallsPass) {
  on_all_gpus([](Communicator& comm) {
    comm.set_debug_checks(true);
    const DeviceFloats buffer(input(comm.rank(), 64));
    comm.all_reduce(buffer.span(), ReduceOp::kSum, buffer.stream());
    comm.all_reduce_async(buffer.span(), ReduceOp::kMax, buffer.stream()).wait();
    comm.barrier();
    EXPECT_EQ(comm.sequence(), 3);
  });
}

TEST_F(OverNccl, DebugChecksNameBothCalls) {
  if (num_gpus() < 2) GTEST_SKIP() << "one GPU is one rank, which agrees with itself";
  on_all_gpus([](Communicator& comm) {
    comm.set_debug_checks(true);
    const DeviceFloats buffer(input(comm.rank(), 64));
    const ReduceOp op = comm.rank() == 0 ? ReduceOp::kSum : ReduceOp::kMax;
    try {
      comm.all_reduce_async(buffer.span(), op, buffer.stream());
      ADD_FAILURE() << "no error";
    } catch (const CommError& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find("all_reduce (sum)"), std::string::npos) << message;
      EXPECT_NE(message.find("all_reduce (max)"), std::string::npos) << message;
    }
    EXPECT_THROW(comm.barrier(), CommError);  // and no call after it hangs
  });
}

TEST(Nccl, ManyRanksNeedAnExchange) {
  if (!built_with_nccl()) GTEST_SKIP() << "this build has no NCCL";
  EXPECT_THROW(make_nccl_communicator(0, 2, {}), ConfigError);
}

}  // namespace
}  // namespace zerosharp
