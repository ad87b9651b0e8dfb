// Training on a GPU: one rank over NCCL, several thread ranks on one device, against the CPU.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "engine/engine.h"
#include "engine/models/model.h"
#include "kernels/error.h"
#include "tests/support/sam_methods.h"
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

/// Where the passes are those of micro-batches there are two of them.
Config with_method(Config config, const SamMethod& method) {
  config.sam.enabled = true;
  config.sam.variant = method.variant;
  config.sam.scope = method.scope;
  config.sam.rho = method.variant == SamVariant::kAsam ? 0.5 : 0.05;
  if (method.scope == SamScope::kGroup) config.sam.group_size = 2;
  if (method.scope == SamScope::kMicro) config.batch.accumulation_steps = 2;
  config.sam.k = 3;
  config.sam.delta = 0.01;  // 1/(√v + δ) must not blow the last digits up
  // AE-SAM: two passes in the first five steps, one in the others, far from any doubt.
  config.train.steps = 9;
  config.sam.threshold_start = -1000;
  config.sam.threshold_end = 1000;
  return config;
}

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
  const int64_t rows = share / config.batch.accumulation_steps;
  std::vector<double> result;
  for (int step = 0; step < kSteps; ++step) {
    auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(step));
    const at::Tensor text = at::randint(0, 8, {kBatch, 17}, generator, at::kLong)
                                .narrow(0, comm.rank() * share, share)
                                .to(device);
    result.push_back(engine.train_batch([&](int64_t micro) {
      const at::Tensor part = text.narrow(0, micro * rows, rows);
      return model->loss(part.narrow(1, 0, 16), part.narrow(1, 1, 16));
    }));
    const EvalScope clean = engine.eval();  // Momentum-SAM's weights are perturbed otherwise
    for (const auto& group : engine.optimizer().flat_groups()) {
      const ShardRange own = group->owned();
      const at::Tensor weights = group->weights().narrow(0, own.begin, own.size()).cpu();
      EXPECT_TRUE(same_bits(weights, group->master().cpu().to(weights.scalar_type())));
    }
  }
  return result;
}

std::vector<double> on_threads(Config config, int world, at::Device device) {
  config.sam.group_size = world;  // of scope group
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

TEST_F(OnGpu, EveryMethodOfSamTrainsAsOnTheCpu) {
  for (const SamMethod& method : kSamMethods) {
    for (const int64_t stage : {0, 1}) {
      for (const int world : {1, 2}) {
        SCOPED_TRACE(::testing::Message()
                     << method.name << ", stage " << stage << ", " << world << " rank(s)");
        const Config config = with_method(gpt_config(DType::kF32, stage, true), method);
        const auto cpu = on_threads(config, world, at::kCPU);
        const auto cuda = on_threads(config, world, at::kCUDA);
        for (size_t i = 0; i < cpu.size(); ++i) EXPECT_NEAR(cuda[i], cpu[i], 1e-4 * cpu[0]);
        EXPECT_LT(cuda.back(), cuda.front());
      }
    }
  }
}

// In bf16 where all ranks share an e. Of others a rank has no masters at stage 1, so that its
// rounding is another; in fp32 there is none.
TEST_F(OnGpu, StagesAgreeBitwiseForEveryMethodOfSam) {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  for (const SamMethod& method : kSamMethods) {
    const bool shared = method.scope == SamScope::kGlobal;
    const auto losses_at = [&](int64_t stage) {
      const Config c = gpt_config(shared ? DType::kBF16 : DType::kF32, stage, true);
      return on_threads(with_method(c, method), 2, at::kCUDA);
    };
    EXPECT_EQ(losses_at(0), losses_at(1)) << method.name;
  }
  at::globalContext().setDeterministicAlgorithms(false, false);
}

// On a GPU the host does not know that the first pass failed, so the second one runs.
void expect_skip(const SamMethod& method, DType precision, int bad_pass, int64_t stage) {
  SCOPED_TRACE(::testing::Message() << method.name << ", " << dtype_name(precision)
                                    << ", fault in pass " << bad_pass << ", stage " << stage);
  run_thread_ranks(2, [&](Communicator& comm) {
    auto module = std::make_shared<VectorModule>(1000);
    module->to(at::kCUDA);
    Config config = with_method(adamw(0.1, stage, precision), method);
    config.fp16.initial_scale_power = 4;
    config.fp16.hysteresis = 1;
    Engine engine(module, config, comm);
    const at::Tensor masters = engine.optimizer().flat_groups()[0]->master().clone();
    const at::Tensor good = at::ones({1000}, at::kCUDA);
    at::Tensor bad = good.clone();
    if (comm.rank() == 1) bad[700] = HUGE_VAL;
    engine.train_batch([&](const PassContext& context) {
      return module->loss(context.pass == bad_pass ? bad : good);
    });
    EXPECT_FALSE(engine.was_step_applied());
    EXPECT_EQ(engine.skipped_steps(), 1);
    EXPECT_EQ(engine.loss_scale(), precision == DType::kF16 ? 8.0 : 1.0);
    {
      const EvalScope clean = engine.eval();
      const auto& group = engine.optimizer().flat_groups()[0];
      const ShardRange own = group->owned();
      const at::Tensor weights = group->weights().narrow(0, own.begin, own.size()).cpu();
      EXPECT_TRUE(same_bits(group->master().cpu(), masters.cpu()));
      EXPECT_TRUE(same_bits(weights, masters.cpu().to(weights.scalar_type())));
    }
    engine.train_batch([&](int64_t) { return module->loss(good); });
    EXPECT_TRUE(engine.was_step_applied());
    EXPECT_FALSE(same_bits(engine.optimizer().flat_groups()[0]->master().cpu(), masters.cpu()));
  });
}

TEST_F(OnGpu, NonFiniteGradientInEitherPassSkipsForEveryMethodOfSam) {
  for (const SamMethod& method : kSamMethods) {
    for (const DType precision : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const int bad_pass : {0, 1}) {
        if (method.variant == SamVariant::kMsam && bad_pass == 1) continue;  // it has one
        for (const int64_t stage : {0, 1}) expect_skip(method, precision, bad_pass, stage);
      }
    }
  }
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
