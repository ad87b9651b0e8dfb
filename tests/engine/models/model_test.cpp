// All built-in models: gradients against float64 differences, and the dtypes they work in.
#include "engine/models/model.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <string>

#include "engine/models/gpt.h"
#include "engine/models/mlp.h"
#include "engine/models/resnet.h"
#include "tests/engine/models/models_fixture.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;

/// Checks the gradient of `loss` against central differences in float64, along single elements of
/// each parameter and along one random direction through all of it. With step h = 1e-5 the
/// truncation is about h² = 1e-10 and rounding eps/h = 2e-11, relative to losses and curvatures of
/// order 1; a missing term is of order 1e-3 or more.
void expect_true_gradients(torch::nn::Module& module, const std::function<at::Tensor()>& loss) {
  constexpr double kStep = 1e-5;
  module.zero_grad();
  loss().backward();
  const at::NoGradGuard no_grad;
  auto generator = at::detail::createCPUGenerator(17);
  const auto check = [&](const std::string& name, at::Tensor& weight, const at::Tensor& direction) {
    const double expected = (weight.grad() * direction).sum().item<double>();
    weight.add_(direction, kStep);
    const double above = loss().item<double>();
    weight.sub_(direction, 2 * kStep);
    const double below = loss().item<double>();
    weight.add_(direction, kStep);
    EXPECT_NEAR((above - below) / (2 * kStep), expected, 1e-7 + 1e-6 * std::abs(expected)) << name;
  };
  for (auto& item : module.named_parameters()) {
    at::Tensor weight = item.value();
    ASSERT_TRUE(weight.grad().defined()) << item.key() << " has no gradient";
    at::Tensor direction = at::randn(weight.sizes(), generator, weight.options());
    check(item.key(), weight, direction / direction.norm());
    for (const int64_t element : {int64_t{0}, weight.numel() / 2, weight.numel() - 1}) {
      direction = at::zeros_like(weight);
      direction.view({-1})[element] = 1;
      check(item.key() + "[" + std::to_string(element) + "]", weight, direction);
    }
  }
}

TEST(Gradients, Gpt) {
  for (const bool tied : {true, false}) {
    for (const bool bias : {true, false}) {
      SCOPED_TRACE(::testing::Message() << "tied " << tied << ", bias " << bias);
      ModelConfig config = gpt_config();
      config.tied_head = tied;
      config.bias = bias;
      Gpt gpt(config, kSeed);
      gpt.to(at::kDouble);
      disturb(gpt);
      expect_true_gradients(gpt, [&] { return gpt.loss(tokens(2, 7, 11), tokens(2, 7, 11, 1)); });
    }
  }
}

TEST(Gradients, Mlp) {
  Mlp mlp(mlp_config(), 6, 3, kSeed);
  mlp.to(at::kDouble);
  disturb(mlp);
  const at::Tensor inputs = images(4, {2, 3}).to(at::kDouble);
  expect_true_gradients(mlp, [&] { return mlp.loss(inputs, tokens(4, 1, 3).view({4})); });
}

TEST(Gradients, ResNetInBothModes) {
  for (const bool training : {true, false}) {
    SCOPED_TRACE(training ? "training" : "evaluation");
    ResNet resnet(resnet_config(), 3, kSeed);
    resnet.to(at::kDouble);
    disturb(resnet);
    resnet.train(training);
    const at::Tensor inputs = images(3, {1, 9, 9}).to(at::kDouble);
    expect_true_gradients(resnet, [&] { return resnet.loss(inputs, tokens(3, 1, 3).view({3})); });
  }
}

TEST(Gradients, LossIsTheMeanOfNegativeLogProbabilities) {
  Mlp mlp(mlp_config(), 6, 3, kSeed);
  mlp.to(at::kDouble);
  const at::Tensor inputs = images(4, {6}).to(at::kDouble);
  const at::Tensor targets = at::tensor({2, 0, 1, 2}, at::kLong);
  const at::Tensor scores = mlp.logits(inputs);
  double nats = 0;
  for (int64_t row = 0; row < 4; ++row) {
    double sum = 0;
    for (int64_t k = 0; k < 3; ++k) sum += std::exp(scores[row][k].item<double>());
    nats += std::log(sum) - scores[row][targets[row].item<int64_t>()].item<double>();
  }
  EXPECT_NEAR(mlp.loss(inputs, targets).item<double>(), nats / 4, 1e-14);
}

/// Loss after the parameters' data was exchanged, as the engine does; gradients in the same dtype.
void expect_works_in(TrainableModel& model, at::ScalarType dtype, const at::Tensor& inputs,
                     const at::Tensor& targets) {
  const double exact = model.loss(inputs, targets).item<double>();
  set_parameters(model, dtype);
  const at::Tensor loss = model.loss(inputs, targets);
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_EQ(model.logits(inputs).scalar_type(), at::kFloat);
  // Weights are off by 2^-9 (bf16), as are activations after each of at most a dozen operators: a
  // few percent of the scores, whose deviation is about 1.
  EXPECT_NEAR(loss.item<double>(), exact, 0.1);
  loss.backward();
  for (const auto& item : model.named_parameters()) {
    EXPECT_EQ(item.value().grad().scalar_type(), dtype) << item.key();
    EXPECT_TRUE(at::isfinite(item.value().grad()).all().item<bool>()) << item.key();
    EXPECT_GT(item.value().grad().abs().sum().item<double>(), 0) << item.key();
  }
}

TEST(Dtypes, EveryModelWorksInWhatItsParametersAreSetTo) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(at::toString(dtype));
    expect_works_in(*make_model(gpt_config(), kSeed), dtype, tokens(2, 7, 11), tokens(2, 7, 11, 1));
    expect_works_in(*make_model(mlp_config(), kSeed), dtype, images(5), tokens(5, 1, 10).view({5}));
    expect_works_in(*make_model(resnet_config(), kSeed), dtype, images(5),
                    tokens(5, 1, 10).view({5}));
  }
}

TEST(Dtypes, OddSizes) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t time : {1, 7}) {
      const auto gpt = make_model(gpt_config(), kSeed);
      set_parameters(*gpt, dtype);
      const at::Tensor loss = gpt->loss(tokens(1, time, 11), tokens(1, time, 11, 1));
      EXPECT_NEAR(loss.item<double>(), std::log(11.0), 0.2);
      loss.backward();
    }
  }
}

TEST(Dtypes, BatchNormStatisticsStayInFp32) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(at::toString(dtype));
    ResNet resnet(resnet_config(), 10, kSeed);
    set_parameters(resnet, dtype);
    const at::Tensor inputs = images(4);
    resnet.logits(inputs);
    for (const auto& buffer : resnet.named_buffers()) {
      EXPECT_EQ(buffer.value().scalar_type(), at::kFloat) << buffer.key();
    }
    // The first layer by hand in float64: momentum 0.1 from 0 and 1, unbiased variance.
    const at::Tensor stem =
        at::conv2d(inputs.to(dtype), by_name(resnet).at("stem.weight"), {}, 1, 1).to(at::kDouble);
    const auto buffers = resnet.named_buffers();
    const at::Tensor mean = 0.1 * stem.mean({0, 2, 3});
    const at::Tensor variance = 0.9 + 0.1 * stem.var({0, 2, 3}, /*unbiased=*/true);
    // fp32 sums of 3136 values: 1e-6 relative is plenty; a bf16 statistic would be off by 2e-3.
    EXPECT_TRUE(at::allclose(buffers["stem_norm.running_mean"].to(at::kDouble), mean, 1e-5, 1e-6));
    EXPECT_TRUE(
        at::allclose(buffers["stem_norm.running_var"].to(at::kDouble), variance, 1e-5, 1e-6));
  }
}

TEST(Dtypes, BatchNormStatisticsMoveInTrainingModeOnly) {
  ResNet resnet(resnet_config(), 10, kSeed);
  resnet.logits(images(4));
  resnet.eval();
  const at::Tensor before = resnet.named_buffers()["stages.2.0.norm2.running_var"].clone();
  const at::Tensor scores = resnet.logits(images(4));
  EXPECT_TRUE(at::equal(resnet.named_buffers()["stages.2.0.norm2.running_var"], before));
  // With running statistics an image's scores do not depend on its neighbours.
  EXPECT_TRUE(at::allclose(resnet.logits(images(4).narrow(0, 1, 1))[0], scores[1], 1e-5, 1e-5));
}

}  // namespace
}  // namespace zerosharp
