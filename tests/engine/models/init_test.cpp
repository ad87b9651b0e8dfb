// Initial values depend on the seed and the name alone, and have the deviations of the papers.
#include "engine/models/init.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "engine/models/gpt.h"
#include "tests/engine/models/models_fixture.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;

TEST(Initialization, DependsOnSeedAndNameAlone) {
  for (const std::string name : {"transformer.wte.weight", "layers.0.weight"}) {
    const at::Tensor first = normal_tensor({5, 4}, 0.5, 7, name);
    torch::manual_seed(1);
    at::randn({3});  // the global generator moves
    EXPECT_TRUE(at::equal(normal_tensor({5, 4}, 0.5, 7, name), first));
    EXPECT_FALSE(at::equal(normal_tensor({5, 4}, 0.5, 8, name), first));
    EXPECT_FALSE(at::equal(normal_tensor({5, 4}, 0.5, 7, name + "2"), first));
  }
}

TEST(Initialization, LeavesTheGlobalGeneratorAlone) {
  torch::manual_seed(1);
  const at::Tensor expected = at::randn({4});
  torch::manual_seed(1);
  for (const ModelConfig& config : {gpt_config(), mlp_config(), resnet_config()}) {
    make_model(config, kSeed);
  }
  EXPECT_TRUE(at::equal(at::randn({4}), expected));
}

TEST(Initialization, SharedNamesHaveEqualValuesWhateverElseTheModelHolds) {
  ModelConfig plain = gpt_config();
  ModelConfig other = plain;
  other.tied_head = false;  // one parameter more
  other.bias = false;       // many fewer
  const Gpt a(plain, kSeed);
  const Gpt b(other, kSeed);
  const auto expected = by_name(a);
  int compared = 0;
  for (const auto& [name, value] : by_name(b)) {
    if (name == "lm_head.weight") continue;
    EXPECT_TRUE(at::equal(value, expected.at(name))) << name;
    ++compared;
  }
  EXPECT_EQ(compared, 2 + 2 * 6 + 1);
}

/// The configurations whose parameters have the most names.
std::vector<ModelConfig> all_configs() {
  ModelConfig gpt = gpt_config();
  gpt.n_layer = 6;
  gpt.tied_head = false;
  ModelConfig resnet = resnet_config();
  resnet.blocks_per_stage = 2;
  return {gpt, mlp_config(), resnet};
}

TEST(Initialization, EveryWeightIsDrawnForTheNameItIsRegisteredUnder) {
  for (const ModelConfig& config : all_configs()) {
    for (const auto& [name, value] : by_name(*make_model(config, kSeed))) {
      if (value.dim() < 2) continue;
      const at::Tensor unit = normal_tensor(value.sizes(), 1.0, kSeed, name);
      const double deviation = (value.norm() / unit.norm()).item<double>();
      EXPECT_TRUE(at::allclose(value, deviation * unit, 1e-5, 1e-7)) << config.type << " " << name;
    }
  }
}

TEST(Initialization, NoTwoWeightsAreDrawnAlike) {
  for (const ModelConfig& config : all_configs()) {
    std::set<float> first_values;  // in units of the deviation
    size_t drawn = 0;
    for (const auto& [name, value] : by_name(*make_model(config, kSeed))) {
      if (value.dim() < 2) continue;
      first_values.insert(
          normal_tensor(value.sizes(), 1.0, kSeed, name).view({-1})[0].item<float>());
      ++drawn;
    }
    EXPECT_GE(drawn, 3u);
    EXPECT_EQ(first_values.size(), drawn) << config.type;
  }
}

/// Standard deviation of `value` within 5 standard errors (σ/√(2n)) of `deviation`, mean of 0
/// (σ/√n).
void expect_normal(const at::Tensor& value, double deviation) {
  const auto n = static_cast<double>(value.numel());
  EXPECT_NEAR(value.std().item<double>(), deviation, 5 * deviation / std::sqrt(2 * n));
  EXPECT_NEAR(value.mean().item<double>(), 0, 5 * deviation / std::sqrt(n));
}

TEST(Initialization, DeviationsAreGpt2s) {
  ModelConfig config = gpt_config();
  config.n_embd = 64;
  config.n_layer = 3;
  config.vocab_size = 100;
  for (const auto& [name, value] : by_name(Gpt(config, kSeed))) {
    SCOPED_TRACE(name);
    const bool residual = name.find("c_proj.weight") != std::string::npos;
    if (value.dim() == 2) {
      expect_normal(value, residual ? 0.02 / std::sqrt(6.0) : 0.02);
    } else {
      const bool scale = name.find("weight") != std::string::npos;
      EXPECT_TRUE(at::equal(value, at::full_like(value, scale ? 1.0 : 0.0)));
    }
  }
}

TEST(Initialization, DeviationsAreHes) {
  for (const auto& [name, value] : by_name(*make_model(mlp_config(), kSeed))) {
    if (value.dim() == 2) expect_normal(value, std::sqrt(2.0 / value.size(1)));
  }
  for (const auto& [name, value] : by_name(*make_model(resnet_config(), kSeed))) {
    SCOPED_TRACE(name);
    if (value.dim() == 4) expect_normal(value, std::sqrt(2.0 / value[0].numel()));
    if (name == "head.weight") expect_normal(value, std::sqrt(1.0 / value.size(1)));
  }
}

TEST(Initialization, FirstLossIsThatOfAGuess) {
  // Scores of GPT-2's start are small: n_embd products of a normalized activation and N(0, 0.02²)
  // have deviation 0.02·√32 = 0.11, which moves the expected loss by 0.11²/2 = 0.007 from
  // ln(vocabulary).
  ModelConfig config = gpt_config();
  config.n_embd = 32;
  config.vocab_size = 256;
  config.block_size = 64;
  for (const bool tied : {true, false}) {
    config.tied_head = tied;
    const auto model = make_model(config, kSeed);
    const double loss = model->loss(tokens(8, 64, 251), tokens(8, 64, 251, 100)).item<double>();
    EXPECT_NEAR(loss, std::log(256.0), 0.05) << "tied " << tied;
  }
}

}  // namespace
}  // namespace zerosharp
