// N ranks on shares of a batch equal one rank on the whole batch: every optimizer, accumulation,
// clipping, SAM, stage and precision.
#include <gtest/gtest.h>

#include "tests/support/run_ranks.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;
using kernels::OptimizerKind;

constexpr int kSteps = 20;
constexpr int64_t kRows = 8;  // the whole batch

struct Trajectory {
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<float> weights;
};

/// Trains MLP23 for 20 steps; the rows are dealt to ranks and micro-batches in equal consecutive
/// runs.
Trajectory run(int world, Config config, int64_t accumulation) {
  config.batch.accumulation_steps = accumulation;
  const int64_t rows = kRows / (world * accumulation);
  Trajectory result;
  auto module =
      train<Mlp23>(world, config, make<Mlp23>(0), [&](Engine& engine, Mlp23& m, int rank) {
        for (int step = 0; step < kSteps; ++step) {
          const double loss = engine.train_batch([&](int64_t micro) {
            const int64_t begin = (micro * world + rank) * rows;
            return m.loss(begin, begin + rows);
          });
          expect_clean_weights(engine);
          if (rank != 0) continue;
          result.losses.push_back(loss);
          result.norms.push_back(engine.global_grad_norm());
        }
        EXPECT_EQ(engine.skipped_steps(), 0);
      });
  for (const auto& parameter : module->parameters()) {
    const auto flat = values(parameter);
    result.weights.insert(result.weights.end(), flat.begin(), flat.end());
  }
  return result;
}

class EqualityMatrix : public ::testing::TestWithParam<OptimizerKind> {
 protected:
  static Config config(int64_t stage, bool clip, bool sam, DType precision) {
    // Lion's update is a sign: a rounding difference in a gradient near zero moves a weight by
    // 2·lr, so it runs at a rate at which even that stays below the bound.
    const double lr = GetParam() == OptimizerKind::kLion ? 1e-4 : 0.01;
    Config config = toy_config(GetParam(), lr, stage, precision);
    config.optimizer.weight_decay = 0.01;
    if (GetParam() == OptimizerKind::kSgd) config.optimizer.momentum = 0.9;
    config.gradient_clipping = clip ? 0.1 : 0;
    config.sam.enabled = sam;
    config.sam.rho = 0.05;
    return config;
  }
};

INSTANTIATE_TEST_SUITE_P(Optimizers, EqualityMatrix,
                         ::testing::Values(OptimizerKind::kAdamW, OptimizerKind::kAdam,
                                           OptimizerKind::kSgd, OptimizerKind::kLion,
                                           OptimizerKind::kAdagrad),
                         [](const auto& info) { return kind_name(info.param); });

// In fp32 the runs differ by the order of summation only: a few ulps (6e-8) of the gradient a step,
// which 20 steps of these contracting updates do not amplify beyond 100 ulps. Adam divides by √v,
// so an error relative to the gradient stays relative to the update: 20 · lr · 1e-5 bounds the
// weights.
TEST_P(EqualityMatrix, Fp32) {
  for (const bool clip : {false, true}) {
    for (const bool sam : {false, true}) {
      const Trajectory whole = run(1, config(0, clip, sam, DType::kF32), 1);
      for (const int64_t stage : {0, 1}) {
        for (const int world : {1, 2, 4}) {
          for (const int64_t accumulation : {1, 2}) {
            SCOPED_TRACE(::testing::Message()
                         << "stage " << stage << ", " << world << " ranks, accumulation "
                         << accumulation << (clip ? ", clip" : "") << (sam ? ", SAM" : ""));
            const Trajectory parts =
                run(world, config(stage, clip, sam, DType::kF32), accumulation);
            for (int i = 0; i < kSteps; ++i) {
              const auto step = static_cast<size_t>(i);
              EXPECT_NEAR(parts.losses[step], whole.losses[step], 1e-5 * whole.losses[step]);
              EXPECT_NEAR(parts.norms[step], whole.norms[step], 1e-4 * whole.norms[step] + 1e-7);
            }
            for (size_t i = 0; i < whole.weights.size(); ++i) {
              EXPECT_NEAR(parts.weights[i], whole.weights[i], 1e-5);
            }
          }
        }
      }
    }
  }
}

// The reduction of stage 0 is that of stage 1 followed by a gather, and every element is updated by
// the same arithmetic wherever it lies: the stages agree to the last bit, in every precision.
TEST_P(EqualityMatrix, StagesAgreeBitwise) {
  for (const DType precision : {DType::kF32, DType::kBF16}) {
    for (const bool sam : {false, true}) {
      for (const int world : {1, 2, 4}) {
        const Trajectory replicated = run(world, config(0, true, sam, precision), 2);
        const Trajectory sharded = run(world, config(1, true, sam, precision), 2);
        EXPECT_EQ(replicated.losses, sharded.losses);
        EXPECT_EQ(replicated.norms, sharded.norms);
        EXPECT_EQ(replicated.weights, sharded.weights);
      }
    }
  }
}

// In bf16 a gradient element carries a relative error of 2^-9 from rounding, however the batch is
// cut; weights are stored with 8 bits. A whole run and a cut run may therefore differ by one
// working ulp where a master lies near a rounding boundary; the losses of these 20 steps, whose
// weights are below 1, stay within 20 · lr · 2^-8 plus the ulp's own effect, 2^-8 of the loss each.
TEST_P(EqualityMatrix, Bf16) {
  const Trajectory whole = run(1, config(0, false, false, DType::kBF16), 1);
  for (const int world : {2, 4}) {
    for (const int64_t accumulation : {1, 2}) {
      const Trajectory parts = run(world, config(1, false, false, DType::kBF16), accumulation);
      for (int i = 0; i < kSteps; ++i) {
        const auto step = static_cast<size_t>(i);
        EXPECT_NEAR(parts.losses[step], whole.losses[step], 0.02 * whole.losses[step]);
      }
    }
  }
}

}  // namespace
}  // namespace zerosharp
