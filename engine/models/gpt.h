// GPT-2's decoder (Radford et al. 2019): pre-norm blocks, learned positions, tanh GELU.
#pragma once
#include <string>
#include <vector>

#include "engine/models/model.h"

namespace zerosharp {

/// Parameters carry GPT-2's names below "transformer."; linear weights are [out, in]. With a tied head
/// the token embedding is registered once and used twice.
class Gpt final : public TrainableModel {
 public:
  Gpt(const ModelConfig& config, int64_t seed);

  /// `inputs`: int64 [batch, time] with time ≤ block_size; returns [batch, time, vocabulary].
  at::Tensor logits(const at::Tensor& inputs) override;

  /// Continues `prompt` by `count` bytes sampled at `temperature` (> 0), seeded. Needs vocab_size 256.
  std::string generate(const std::string& prompt, int64_t count, double temperature, int64_t seed);

 private:
  struct Linear {
    at::Tensor weight, bias;
    at::Tensor operator()(const at::Tensor& x) const;
  };
  struct Norm {
    at::Tensor weight, bias;
    at::Tensor operator()(const at::Tensor& x) const;
  };
  struct Block {
    Norm norm1, norm2;
    Linear attention, attention_out, expand, contract;
  };

  Linear make_linear(torch::nn::Module& owner, int64_t in, int64_t out, double deviation,
                     const std::string& name);
  Norm make_norm(torch::nn::Module& owner, const std::string& name);
  at::Tensor attend(const Block& block, const at::Tensor& x) const;
  at::Tensor drop(const at::Tensor& x) const;

  ModelConfig config_;
  int64_t seed_;
  at::Tensor token_embedding_, position_embedding_;
  std::vector<Block> blocks_;
  Norm final_norm_;
  at::Tensor head_;  // [vocabulary, width]
};

}  // namespace zerosharp
