// Thread ranks whose buffers lie on one GPU give the bits of thread ranks on the CPU.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "tests/zero/device_floats.h"
#include "zero/comm/thread_communicator.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;

constexpr int kRanks[] = {2, 3, 4};

class ThreadRanksOnOneGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (num_gpus() == 0) GTEST_SKIP() << "no CUDA device answers";
  }
};

/// Values whose sums are rounded, so that the order of additions shows.
std::vector<float> input(int rank, int64_t numel) {
  std::vector<float> values(static_cast<size_t>(numel));
  for (int64_t i = 0; i < numel; ++i) {
    values[static_cast<size_t>(i)] =
        static_cast<float>(std::sin(static_cast<double>(i) + 0.1) * std::exp2(rank * 5 % 7));
  }
  return values;
}

using Calls = std::function<void(Communicator&, FlatSpan, Stream)>;

std::vector<std::vector<float>> on_cpu(int size, int64_t numel, const Calls& calls) {
  std::vector<std::vector<float>> results(static_cast<size_t>(size));
  run_thread_ranks(size, [&](Communicator& comm) {
    std::vector<float> values = input(comm.rank(), numel);
    calls(comm, {values.data(), numel, DType::kF32}, Stream::cpu());
    results[static_cast<size_t>(comm.rank())] = values;
  });
  return results;
}

std::vector<std::vector<float>> on_gpu(int size, int64_t numel, const Calls& calls) {
  std::vector<std::vector<float>> results(static_cast<size_t>(size));
  run_thread_ranks(size, [&](Communicator& comm) {
    const DeviceFloats buffer(input(comm.rank(), numel));
    calls(comm, buffer.span(), buffer.stream());
    results[static_cast<size_t>(comm.rank())] = buffer.values();
  });
  return results;
}

void expect_same(const Calls& calls) {
  for (const int size : kRanks) {
    for (const int64_t count : {0, 1, 7, 1000, 65537}) {
      SCOPED_TRACE(::testing::Message() << size << " ranks, " << count << " a rank");
      EXPECT_EQ(on_gpu(size, count * size, calls), on_cpu(size, count * size, calls));
    }
  }
}

TEST_F(ThreadRanksOnOneGpu, AllReduce) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMax, ReduceOp::kMin}) {
    expect_same([op](Communicator& comm, FlatSpan span, Stream stream) {
      comm.all_reduce(span, op, stream);
    });
  }
}

TEST_F(ThreadRanksOnOneGpu, ReduceScatterThenAllGather) {
  expect_same([](Communicator& comm, FlatSpan span, Stream stream) {
    comm.reduce_scatter(span, ReduceOp::kMean, stream);
    comm.all_gather(span, stream);
  });
}

TEST_F(ThreadRanksOnOneGpu, Broadcast) {
  expect_same([](Communicator& comm, FlatSpan span, Stream stream) {
    comm.broadcast(span, comm.size() - 1, stream);
  });
}

TEST_F(ThreadRanksOnOneGpu, Groups) {
  expect_same([](Communicator& comm, FlatSpan span, Stream stream) {
    const auto group = comm.split(comm.rank() % 2);
    group->all_reduce(span, ReduceOp::kSum, stream);
    comm.all_reduce(span, ReduceOp::kMean, stream);
    group->broadcast(span, group->size() - 1, stream);
  });
}

TEST_F(ThreadRanksOnOneGpu, AsynchronousCallsInARow) {
  expect_same([](Communicator& comm, FlatSpan span, Stream stream) {
    Work sum = comm.all_reduce_async(span, ReduceOp::kSum, stream);
    Work gather = comm.all_gather_async(span, stream);
    Work mean = comm.all_reduce_async(span, ReduceOp::kMean, stream);
    mean.wait();
    gather.wait();
    sum.wait();
  });
}

}  // namespace
}  // namespace zerosharp
