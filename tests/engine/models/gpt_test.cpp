// The GPT: names, tied head, causality, dropout and generated text.
#include "engine/models/gpt.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "kernels/error.h"
#include "tests/engine/models/models_fixture.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;

TEST(GptModel, NamesShapesAndOrderAreGpt2s) {
  const std::vector<std::string> layer = {
      "ln_1.weight",        "ln_1.bias",        "attn.c_attn.weight", "attn.c_attn.bias",
      "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight",        "ln_2.bias",
      "mlp.c_fc.weight",    "mlp.c_fc.bias",    "mlp.c_proj.weight",  "mlp.c_proj.bias"};
  std::vector<std::string> expected = {"transformer.wte.weight", "transformer.wpe.weight"};
  for (const std::string index : {"0", "1"}) {
    for (const std::string& name : layer) expected.push_back("transformer.h." + index + "." + name);
  }
  expected.insert(expected.end(), {"transformer.ln_f.weight", "transformer.ln_f.bias"});
  std::vector<std::string> names;
  const Gpt gpt(gpt_config(), kSeed);
  for (const auto& item : gpt.named_parameters()) names.push_back(item.key());
  EXPECT_EQ(names, expected);
  const auto parameters = by_name(gpt);
  EXPECT_EQ(parameters.at("transformer.h.0.attn.c_attn.weight").sizes(), (at::IntArrayRef{24, 8}));
  EXPECT_EQ(parameters.at("transformer.h.1.mlp.c_proj.weight").sizes(), (at::IntArrayRef{8, 32}));
}

int64_t num_parameters(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const at::Tensor& parameter : module.parameters()) count += parameter.numel();
  return count;
}

TEST(GptModel, ATiedHeadCountsOnce) {
  ModelConfig config = gpt_config();
  // 12·w² + 13·w a layer, embeddings (vocabulary + block)·w, the final norm 2·w.
  const int64_t body = 2 * (12 * 8 * 8 + 13 * 8) + (11 + 7) * 8 + 2 * 8;
  EXPECT_EQ(num_parameters(Gpt(config, kSeed)), body);
  config.tied_head = false;
  EXPECT_EQ(num_parameters(Gpt(config, kSeed)), body + 11 * 8);
}

TEST(GptModel, ATiedHeadsGradientIsTheSumOfBothUses) {
  ModelConfig config = gpt_config();
  Gpt tied(config, kSeed);
  config.tied_head = false;
  Gpt untied(config, kSeed);
  tied.to(at::kDouble);
  untied.to(at::kDouble);
  auto parts = by_name(untied);
  {
    const at::NoGradGuard no_grad;
    parts.at("lm_head.weight").copy_(parts.at("transformer.wte.weight"));
  }
  for (Gpt* gpt : {&tied, &untied}) gpt->loss(tokens(2, 7, 11), tokens(2, 7, 11, 1)).backward();
  const at::Tensor sum =
      parts.at("lm_head.weight").grad() + parts.at("transformer.wte.weight").grad();
  EXPECT_TRUE(at::allclose(by_name(tied).at("transformer.wte.weight").grad(), sum, 1e-12, 1e-14));
}

TEST(GptModel, ScoresDependOnThePastAlone) {
  Gpt gpt(gpt_config(), kSeed);
  gpt.to(at::kDouble);
  disturb(gpt);
  const at::Tensor inputs = tokens(2, 7, 11);
  const at::Tensor scores = gpt.logits(inputs);
  for (int64_t changed = 0; changed < 7; ++changed) {
    at::Tensor others = inputs.clone();
    others.select(1, changed).add_(1).remainder_(11);
    const at::Tensor moved = (gpt.logits(others) - scores).abs().amax(/*dim=*/{0, 2});
    for (int64_t time = 0; time < 7; ++time) {
      if (time < changed) {
        EXPECT_LT(moved[time].item<double>(), 1e-12) << changed << " seen at " << time;
      } else {
        EXPECT_GT(moved[time].item<double>(), 1e-6) << changed << " not seen at " << time;
      }
    }
  }
}

TEST(GptModel, ShorterSequencesAreBeginningsOfLongerOnes) {
  Gpt gpt(gpt_config(), kSeed);
  gpt.to(at::kDouble);
  for (const int64_t batch : {1, 3}) {
    const at::Tensor inputs = tokens(batch, 7, 11);
    const at::Tensor scores = gpt.logits(inputs);
    for (const int64_t time : {1, 2, 5, 7}) {
      const at::Tensor shorter = gpt.logits(inputs.narrow(1, 0, time));
      EXPECT_EQ(shorter.sizes(), (at::IntArrayRef{batch, time, 11}));
      EXPECT_TRUE(at::allclose(shorter, scores.narrow(1, 0, time), 1e-10, 1e-12)) << time;
    }
  }
}

TEST(GptModel, RefusesWhatDoesNotFit) {
  Gpt gpt(gpt_config(), kSeed);
  EXPECT_EQ(message_of<ShapeError>([&] { gpt.logits(tokens(1, 8, 11)); }),
            "gpt: a sequence of 8 tokens is longer than model.block_size 7");
  EXPECT_EQ(message_of<ConfigError>([&] { gpt.generate("a", 1, 1.0, 0); }),
            "gpt: text needs a model.vocab_size of at least 256 (bytes), got 11");
  ModelConfig config = gpt_config();
  config.n_head = 3;
  EXPECT_EQ(message_of<ConfigError>([&] { make_model(config, kSeed); }),
            "model.n_embd 8 is not a multiple of model.n_head 3");
  config.type = "lstm";
  EXPECT_EQ(message_of<ConfigError>([&] { make_model(config, kSeed); }),
            "model.type must be gpt, mlp or resnet, got \"lstm\"");
}

TEST(GptModel, DropsInTrainingModeOnly) {
  ModelConfig config = gpt_config();
  Gpt plain(config, kSeed);
  config.dropout = 0.5;
  Gpt dropping(config, kSeed);
  const at::Tensor inputs = tokens(2, 7, 11);
  EXPECT_FALSE(at::equal(dropping.logits(inputs), dropping.logits(inputs)));
  torch::manual_seed(4);
  const at::Tensor scores = dropping.logits(inputs);
  torch::manual_seed(4);
  EXPECT_TRUE(at::equal(dropping.logits(inputs), scores));
  dropping.eval();
  EXPECT_TRUE(at::allclose(dropping.logits(inputs), plain.logits(inputs), 1e-5, 1e-6));
}

ModelConfig byte_config() {
  ModelConfig config = gpt_config();
  config.vocab_size = 256;
  config.dropout = 0.3;
  return config;
}

TEST(Generate, SeedDecidesTheText) {
  Gpt gpt(byte_config(), kSeed);
  disturb(gpt);  // scores large enough for dropout to change the text, were it on
  const std::string text = gpt.generate("Emma", 20, 1.0, 1);
  EXPECT_EQ(text.substr(0, 4), "Emma");
  EXPECT_EQ(text.size(), 24u);
  torch::manual_seed(12345);  // neither the global generator nor dropout has a say
  EXPECT_EQ(gpt.generate("Emma", 20, 1.0, 1), text);
  EXPECT_NE(gpt.generate("Emma", 20, 1.0, 2), text);
  EXPECT_EQ(gpt.generate("Emma", 10, 1.0, 1), text.substr(0, 14));
}

TEST(Generate, RestoresTheModeAndNeedsNoPrompt) {
  Gpt gpt(byte_config(), kSeed);
  for (const bool training : {true, false}) {
    gpt.train(training);
    EXPECT_EQ(gpt.generate("", 3, 1.0, 1).size(), 1u + 3);
    EXPECT_EQ(gpt.is_training(), training);
  }
  EXPECT_EQ(gpt.generate("abc", 0, 1.0, 1), "abc");
  EXPECT_EQ(message_of<ConfigError>([&] { gpt.generate("a", 1, 0.0, 0); }),
            "gpt: generate needs a temperature > 0, got 0");
}

TEST(Generate, FollowsTheScores) {
  // A head that scores only byte k high for every input: with n = ones in the final norm's bias the
  // score of k is its row's sum. A low temperature then leaves no choice, also beyond 256 kinds.
  for (const int64_t vocabulary : {256, 300}) {
    ModelConfig config = byte_config();
    config.vocab_size = vocabulary;
    config.tied_head = false;
    Gpt gpt(config, kSeed);
    {
      const at::NoGradGuard no_grad;
      auto parameters = by_name(gpt);
      parameters.at("transformer.ln_f.weight").zero_();
      parameters.at("transformer.ln_f.bias").fill_(1);
      parameters.at("lm_head.weight").zero_();
      parameters.at("lm_head.weight")['z'].fill_(1);
      if (vocabulary > 256) parameters.at("lm_head.weight")[280].fill_(100);  // is no byte
    }
    EXPECT_EQ(gpt.generate("a", 30, 0.1, 1), "a" + std::string(30, 'z')) << vocabulary;
  }
}

}  // namespace
}  // namespace zerosharp
