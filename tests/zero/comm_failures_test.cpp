// What happens when ranks disagree, fail or never come, and which arguments are refused.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/error.h"
#include "zero/comm/thread_communicator.h"

namespace zerosharp {
namespace {

/// The message of the CommError that `body` ends with.
std::string comm_error(int world, const std::function<void(Communicator&)>& body,
                       ThreadCommOptions options = {}) {
  try {
    run_thread_ranks(world, body, options);
  } catch (const CommError& error) {
    return error.what();
  }
  return "no CommError";
}

TEST(ThreadRanks, DifferentCountsAreNamed) {
  const std::string message = comm_error(2, [](Communicator& comm) {
    std::vector<float> data(8);
    comm.all_reduce({data.data(), comm.rank() == 0 ? 8 : 6, DType::kF32}, ReduceOp::kSum);
  });
  EXPECT_NE(message.find("all_reduce (sum) of 8 fp32"), std::string::npos) << message;
  EXPECT_NE(message.find("all_reduce (sum) of 6 fp32"), std::string::npos) << message;
}

TEST(ThreadRanks, DifferentReductionsDtypesAndRootsAreNamed) {
  const auto message = [&](const std::function<void(Communicator&, FlatSpan)>& call) {
    return comm_error(2, [&](Communicator& comm) {
      std::vector<double> mine(8);
      call(comm, {mine.data(), 8, DType::kF32});
    });
  };
  std::string text = message([](Communicator& comm, FlatSpan span) {
    comm.all_reduce(span, comm.rank() == 0 ? ReduceOp::kSum : ReduceOp::kMean);
  });
  EXPECT_NE(text.find("all_reduce (sum)"), std::string::npos) << text;
  EXPECT_NE(text.find("all_reduce (mean)"), std::string::npos) << text;
  text = message([](Communicator& comm, FlatSpan span) {
    if (comm.rank() == 1) span.dtype = DType::kBF16;
    comm.all_gather(span);
  });
  EXPECT_NE(text.find("all_gather of 8 fp32"), std::string::npos) << text;
  EXPECT_NE(text.find("all_gather of 8 bf16"), std::string::npos) << text;
  text = message([](Communicator& comm, FlatSpan span) { comm.broadcast(span, comm.rank()); });
  EXPECT_NE(text.find("broadcast from rank 0"), std::string::npos) << text;
  EXPECT_NE(text.find("broadcast from rank 1"), std::string::npos) << text;
}

TEST(ThreadRanks, DebugChecksSeeEveryPartOfACall) {
  struct Case {
    const char* name;
    std::function<void(Communicator&, FlatSpan)> call;
  };
  const Case cases[] = {
      {"reduction",
       [](Communicator& comm, FlatSpan span) {
         comm.reduce_scatter(span, comm.rank() == 0 ? ReduceOp::kMax : ReduceOp::kMin);
       }},
      {"dtype",
       [](Communicator& comm, FlatSpan span) {
         if (comm.rank() == 0) span.dtype = DType::kF16;
         comm.all_gather(span);
       }},
      {"count",
       [](Communicator& comm, FlatSpan span) {
         if (comm.rank() == 0) span.numel = 6;
         comm.all_gather(span);
       }},
      {"root", [](Communicator& comm, FlatSpan span) { comm.broadcast(span, comm.rank()); }},
      {"sequence",
       [](Communicator& comm, FlatSpan span) {
         if (comm.rank() == 0) comm.barrier();
         comm.all_gather(span);
       }},
      {"asynchronous call",
       [](Communicator& comm, FlatSpan span) {
         if (comm.rank() == 0) span.numel = 6;
         comm.all_gather_async(span).wait();
       }},
  };
  for (const Case& each : cases) {
    const std::string message = comm_error(2, [&](Communicator& comm) {
      comm.set_debug_checks(true);
      std::vector<float> data(8);
      each.call(comm, {data.data(), 8, DType::kF32});
    });
    EXPECT_NE(message.find("ranks disagree: rank"), std::string::npos) << each.name << message;
    EXPECT_NE(message.find("is at collective 1"), std::string::npos) << each.name << message;
  }
}

TEST(ThreadRanks, DebugChecksNameBothCalls) {
  const std::string message = comm_error(2, [](Communicator& comm) {
    comm.set_debug_checks(true);
    std::vector<float> data(8);
    comm.barrier();
    if (comm.rank() == 0) {
      comm.all_reduce({data.data(), 8, DType::kF32}, ReduceOp::kSum);
    } else {
      comm.all_gather({data.data(), 8, DType::kF32});
    }
  });
  EXPECT_NE(message.find("collective 2, all_reduce (sum)"), std::string::npos) << message;
  EXPECT_NE(message.find("collective 2, all_gather"), std::string::npos) << message;
}

TEST(ThreadRanks, ARankThatNeverComesIsNamed) {
  const auto start = std::chrono::steady_clock::now();
  const std::string message = comm_error(4,
                                         [](Communicator& comm) {
                                           if (comm.rank() != 2) comm.barrier();
                                         },
                                         {std::chrono::milliseconds(200)});
  EXPECT_NE(message.find("rank(s) 2"), std::string::npos) << message;
  EXPECT_NE(message.find("barrier"), std::string::npos) << message;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(ThreadRanks, AnExceptionOfOneRankEndsAll) {
  std::atomic<int> woken{0};
  try {
    run_thread_ranks(4, [&](Communicator& comm) {
      if (comm.rank() == 3) fail_config("the file is missing");
      try {
        comm.barrier();
      } catch (const CommError& error) {
        ++woken;
        EXPECT_NE(std::string(error.what()).find("the file is missing"), std::string::npos);
        throw;
      }
    });
    FAIL() << "no exception";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "rank 3: the file is missing");
  }
  EXPECT_EQ(woken, 3);
}

TEST(ThreadRanks, AfterAFailureEveryCallFailsAtOnce) {
  auto ranks = make_thread_communicators(2, {std::chrono::milliseconds(50)});
  EXPECT_THROW(ranks[0]->barrier(), CommError);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(ranks[0]->barrier(), CommError);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(40));
}

TEST(ThreadRanks, AsynchronousErrorsReachWait) {
  auto ranks = make_thread_communicators(2, {std::chrono::milliseconds(50)});
  std::vector<float> data(4);
  Work work = ranks[0]->all_reduce_async({data.data(), 4, DType::kF32}, ReduceOp::kSum);
  EXPECT_THROW(work.wait(), CommError);
}

TEST(ThreadRanks, AFailureOfAnAsynchronousCallEndsTheNextWithItsReason) {
  auto ranks = make_thread_communicators(2, {std::chrono::milliseconds(50)});
  std::vector<float> data(4);
  { const Work dropped = ranks[0]->all_gather_async({data.data(), 4, DType::kF32}); }
  for (const bool async : {false, true}) {
    try {
      if (async) {
        ranks[0]->all_gather_async({data.data(), 4, DType::kF32}).wait();
      } else {
        ranks[0]->barrier();
      }
      ADD_FAILURE() << "no error";
    } catch (const CommError& error) {
      EXPECT_NE(std::string(error.what()).find("which never came"), std::string::npos);
    }
  }
}

TEST(ThreadRanks, WorkMayOutliveItsCommunicator) {
  auto ranks = make_thread_communicators(2);
  std::vector<float> data = {1, 2, 3, 4};
  Work work = ranks[0]->all_reduce_async({data.data(), 4, DType::kF32}, ReduceOp::kSum);
  std::vector<float> other = {10, 20, 30, 40};
  std::thread peer([&] { ranks[1]->all_reduce({other.data(), 4, DType::kF32}, ReduceOp::kSum); });
  ranks[0].reset();  // its last call is made first
  work.wait();
  peer.join();
  EXPECT_EQ(data, (std::vector<float>{11, 22, 33, 44}));
  EXPECT_EQ(other, data);
}

TEST(Arguments, AreChecked) {
  auto comm = make_thread_communicators(2);
  std::vector<float> data(4);
  EXPECT_THROW(comm[0]->all_gather({data.data(), 3, DType::kF32}), ShapeError);
  EXPECT_THROW(comm[0]->all_reduce({nullptr, 3, DType::kF32}, ReduceOp::kSum), ShapeError);
  EXPECT_THROW(comm[0]->broadcast({data.data(), 4, DType::kF32}, 2), ConfigError);
  int64_t whole[2] = {1, 2};
  EXPECT_THROW(comm[0]->all_reduce({whole, 2, DType::kI64}, ReduceOp::kMean), ConfigError);
  EXPECT_THROW(make_thread_communicators(0), ConfigError);
}

}  // namespace
}  // namespace zerosharp
