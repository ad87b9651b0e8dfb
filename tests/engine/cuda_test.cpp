// Training on a GPU: one rank over NCCL, several thread ranks on one device, against the CPU.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "engine/engine.h"
#include "engine/models/model.h"
#include "kernels/error.h"
#include "tests/support/toy_modules.h"
#include "zero/comm/nccl_communicator.h"
#include "zero/comm/thread_communicator.h"
#include "zero/device.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;

class OnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      load_cuda_backend();
    } catch (const CudaError& error) {
      GTEST_SKIP() << error.what();
    }
  }
};

constexpr int kSteps = 8;
constexpr int64_t kBatch = 8;

Config gpt_config(DType precision, int64_t stage, bool sam) {
  Config config = adamw(3e-3, stage, precision);
  config.gradient_clipping = 1.0;
  config.model.n_layer = 2;
  config.model.n_head = 2;
  config.model.n_embd = 32;
  config.model.block_size = 16;
  config.sam.enabled = sam;
  return config;
}

/// Losses of a small GPT on `comm`, each rank taking its share of the same batches.
std::vector<double> losses(const Config& config, Communicator& comm, at::Device device) {
  auto model = make_model(config.model, 3);
  model->to(device);
  Engine engine(model, config, comm);
  const int64_t share = kBatch / comm.size();
  std::vector<double> result;
  for (int step = 0; step < kSteps; ++step) {
    auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(step));
    const at::Tensor text = at::randint(0, 8, {kBatch, 17}, generator, at::kLong)
                                .narrow(0, comm.rank() * share, share)
                                .to(device);
    result.push_back(engine.train_batch(
        [&](int64_t) { return model->loss(text.narrow(1, 0, 16), text.narrow(1, 1, 16)); }));
    for (const auto& group : engine.optimizer().flat_groups()) {
      const ShardRange own = group->owned();
      const at::Tensor weights = group->weights().narrow(0, own.begin, own.size()).cpu();
      EXPECT_TRUE(same_bits(weights, group->master().cpu().to(weights.scalar_type())));
    }
  }
  return result;
}

std::vector<double> on_threads(const Config& config, int world, at::Device device) {
  std::vector<double> result;
  run_thread_ranks(world, [&](Communicator& comm) {
    const auto mine = losses(config, comm, device);
    if (comm.rank() == 0) result = mine;
  });
  return result;
}

// fp32 without TF32: the sums of products are made in other orders, 1e-4 is 1000 ulps of the loss.
TEST_F(OnGpu, TrainsAsTheCpuDoes) {
  for (const bool sam : {false, true}) {
    const Config config = gpt_config(DType::kF32, 1, sam);
    const auto cpu = on_threads(config, 1, at::kCPU);
    const auto cuda = on_threads(config, 1, at::kCUDA);
    for (int i = 0; i < kSteps; ++i) {
      EXPECT_NEAR(cuda[static_cast<size_t>(i)], cpu[static_cast<size_t>(i)], 1e-4 * cpu[0]);
    }
    EXPECT_LT(cuda.back(), cuda.front());
  }
}

TEST_F(OnGpu, ThreadRanksEqualOneRank) {
  for (const int64_t stage : {0, 1}) {
    for (const bool sam : {false, true}) {
      for (const DType precision : {DType::kF32, DType::kBF16}) {
        const Config config = gpt_config(precision, stage, sam);
        const auto one = on_threads(config, 1, at::kCUDA);
        const double bound = precision == DType::kF32 ? 1e-4 : 2e-2;
        for (const int world : {2, 4}) {
          const auto many = on_threads(config, world, at::kCUDA);
          for (int i = 0; i < kSteps; ++i) {
            EXPECT_NEAR(many[static_cast<size_t>(i)], one[static_cast<size_t>(i)], bound * one[0])
                << "stage " << stage << ", " << world << " ranks, step " << i;
          }
        }
      }
    }
  }
}

TEST_F(OnGpu, StagesAgreeBitwiseOnThreadRanks) {
  // Deterministic algorithms, so that embedding gradients do not depend on the order of atomics.
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  const auto replicated = on_threads(gpt_config(DType::kBF16, 0, true), 2, at::kCUDA);
  const auto sharded = on_threads(gpt_config(DType::kBF16, 1, true), 2, at::kCUDA);
  at::globalContext().setDeterministicAlgorithms(false, false);
  EXPECT_EQ(replicated, sharded);
}

TEST_F(OnGpu, OneRankOverNccl) {
  if (!built_with_nccl()) GTEST_SKIP() << "this build has no NCCL";
  auto nccl = make_nccl_communicator(0, 1, {});
  EXPECT_STREQ(nccl->name(), "nccl");
  const Config config = gpt_config(DType::kF32, 1, true);
  const auto over_nccl = losses(config, *nccl, at::kCUDA);
  const auto alone = on_threads(config, 1, at::kCUDA);
  for (int i = 0; i < kSteps; ++i) {
    EXPECT_NEAR(over_nccl[static_cast<size_t>(i)], alone[static_cast<size_t>(i)], 1e-5);
  }
}

TEST_F(OnGpu, NonFiniteGradientOfOneRankSkipsOnAll) {
  run_thread_ranks(2, [&](Communicator& comm) {
    auto module = std::make_shared<VectorModule>(100);
    module->to(at::kCUDA);
    Engine engine(module, adamw(0.1, 1, DType::kBF16), comm);
    const at::Tensor before = module->w.detach().clone();
    at::Tensor gradient = at::ones({100}, at::kCUDA);
    if (comm.rank() == 1) gradient[3] = HUGE_VAL;
    engine.train_batch([&](int64_t) { return module->loss(gradient); });
    EXPECT_FALSE(engine.was_step_applied());
    EXPECT_TRUE(same_bits(before.cpu(), module->w.cpu()));
    engine.train_batch([&](int64_t) { return module->loss(at::ones({100}, at::kCUDA)); });
    EXPECT_TRUE(engine.was_step_applied());
    EXPECT_EQ(engine.skipped_steps(), 1);
    EXPECT_EQ(engine.optimizer().flat_groups()[0]->steps_applied(), std::vector<int64_t>{1});
  });
}

}  // namespace
}  // namespace zerosharp
