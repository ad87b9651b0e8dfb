// Bytes of training state, as docs/design.md states them, against what the process grew by. Each
// case is measured in a process of its own, by the kernel's count of resident pages.
#include <gtest/gtest.h>
#include <malloc.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdio>

#include "engine/monitor/process_memory.h"
#include "tests/support/run_ranks.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;

constexpr int kRanks = 2;
// Each parameter is larger than 32 MiB in any dtype: glibc maps such blocks and unmaps them when
// freed.
constexpr int64_t kNumel = 20 << 20;
constexpr int64_t kParameters = 2;
constexpr double kTolerance = 0.05;

struct Case {
  const char* name;
  int64_t stage;
  int64_t accumulation;
  std::optional<DType> sent;
  double bytes_a_parameter;  ///< on each rank
};

void PrintTo(const Case& which, std::ostream* out) { *out << which.name; }

// Weights 2, gradients 2 (fp32 accumulators 4), master and moments 12 over the ranks that share
// them; sent in a dtype of their own, gradients take its 2 bytes more.
constexpr Case kCases[] = {
    {"stage 0", 0, 1, std::nullopt, 2 + 2 + 12},
    {"stage 1", 1, 1, std::nullopt, 2 + 2 + 12.0 / kRanks},
    {"stage 1, accumulated in fp32", 1, 2, std::nullopt, 2 + 4 + 12.0 / kRanks},
    {"stage 1, accumulated in fp32, sent in bf16", 1, 2, DType::kBF16, 2 + 4 + 2 + 12.0 / kRanks},
};

struct Vectors : torch::nn::Module {
  explicit Vectors(int64_t numel) {
    for (int64_t i = 0; i < kParameters; ++i) {
      parameters.push_back(register_parameter("w" + std::to_string(i), at::zeros({numel})));
    }
  }
  at::Tensor loss() const { return parameters[0].sum() + parameters[1].sum(); }
  std::vector<at::Tensor> parameters;
};

/// Builds engines for parameters of `numel` elements on all ranks, makes two steps and returns what
/// the process has grown by since `before`, with everything else freed.
int64_t growth(const Case& which, int64_t numel, int64_t before) {
  Config config = adamw(0.1, which.stage, DType::kBF16);
  config.batch.accumulation_steps = which.accumulation;
  config.communication_dtype = which.sent;
  int64_t grown = 0;
  run_thread_ranks(kRanks, [&](Communicator& comm) {
    auto module = std::make_shared<Vectors>(numel);
    Engine engine(module, config, comm);
    for (int step = 0; step < 2; ++step) {
      engine.train_batch([&](int64_t) { return module->loss(); });
    }
    comm.barrier();
    if (comm.rank() == 0) {
      malloc_trim(0);
      grown = rss_bytes() - before;
    }
    comm.barrier();
  });
  return grown;
}

/// Ends the process: with 0 if the growth is what the arithmetic says.
[[noreturn]] void measure(const Case& which) {
  growth(which, 1000, 0);  // code, thread stacks and arenas are there before the measurement
  malloc_trim(0);
  const double grown =
      static_cast<double>(growth(which, kNumel, rss_bytes())) / (kRanks * kParameters * kNumel);
  std::fprintf(stderr, "%s: grew by %.3f bytes a parameter and rank, expected %.3f\n", which.name,
               grown, which.bytes_a_parameter);
  std::exit(std::abs(grown - which.bytes_a_parameter) <= kTolerance * which.bytes_a_parameter ? 0
                                                                                              : 1);
}

class MemoryGrowthDeathTest : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Stages, MemoryGrowthDeathTest, ::testing::ValuesIn(kCases));

TEST_P(MemoryGrowthDeathTest, IsWhatTheArithmeticSays) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // the child starts afresh
  EXPECT_EXIT(measure(GetParam()), ::testing::ExitedWithCode(0), "expected");
}

}  // namespace
}  // namespace zerosharp
