// What sam.scope means for what is learned. On a diagonal linear network the scopes pull in
// opposite directions: SAM along the whole batch's gradient ends farther from the sparse truth than
// gradient descent does, SAM along each rank's own gradient ends nearer to it.
#include <gtest/gtest.h>

#include "tests/support/run_ranks.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;

constexpr int kRanks = 8;
constexpr int64_t kDimension = 60;
constexpr int64_t kRows = 32;
constexpr int kSteps = 1000;

/// y = ⟨β, x⟩ with β = u² − v², from u = v = 0.3; the truth β* has three ones.
struct DiagonalNetwork : torch::nn::Module {
  DiagonalNetwork() {
    auto generator = at::detail::createCPUGenerator(1);
    x = at::randn({kRows, kDimension}, generator);
    truth.narrow(0, 0, 3).fill_(1);
    y = at::mv(x, truth);
    u = register_parameter("u", at::full({kDimension}, 0.3));
    v = register_parameter("v", at::full({kDimension}, 0.3));
  }
  at::Tensor beta() const { return u * u - v * v; }
  /// Mean squared error on one rank's rows, always the same ones.
  at::Tensor loss(int rank) const {
    const int64_t rows = kRows / kRanks;
    return at::mse_loss(at::mv(x.narrow(0, rank * rows, rows), beta()),
                        y.narrow(0, rank * rows, rows));
  }
  /// ‖β − β*‖²
  double error() const { return (beta() - truth).square().sum().item<double>(); }

  at::Tensor x, y, truth = at::zeros({kDimension}), u, v;
};

struct Trained {
  double error = 0;
  double loss = 0;  ///< mean over all rows
};

Trained train_network(const Config& config) {
  Trained result;
  const auto module = train<DiagonalNetwork>(
      kRanks, config, make<DiagonalNetwork>(), [&](Engine& engine, DiagonalNetwork& m, int rank) {
        double loss = 0;
        for (int step = 0; step < kSteps; ++step) {
          loss = engine.train_batch([&](int64_t) { return m.loss(rank); });
        }
        if (rank == 0) result.loss = loss;
      });
  result.error = module->error();
  return result;
}

TEST(SamScopeSign, GlobalSamEndsFartherFromTheTruthThanDescentAndLocalSamNearer) {  // E4
  Config config = sgd(0.01);
  config.sam.rho = 0.3;
  const Trained descent = train_network(config);
  config.sam.enabled = true;
  const Trained global = train_network(config);
  config.sam.scope = SamScope::kLocal;
  const Trained local = train_network(config);

  SCOPED_TRACE(::testing::Message() << "descent " << descent.error << ", global " << global.error
                                    << ", local " << local.error);
  // All fit the rows; they differ in which fit they found.
  for (const Trained& one : {descent, global, local}) EXPECT_LT(one.loss, 0.01);
  EXPECT_GT(global.error, 1.5 * descent.error);
  EXPECT_LT(local.error, 0.5 * descent.error);
}

}  // namespace
}  // namespace zerosharp
