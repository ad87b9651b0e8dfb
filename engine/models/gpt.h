// GPT-2's decoder (Radford et al. 2019): pre-norm blocks, learned positions, tanh GELU.
#pragma once
#include <string>
#include <vector>

#include "engine/models/model.h"

namespace zerosharp {

/// Parameters carry GPT-2's names below "transformer."; linear weights are [out, in]. With a tied
/// head the token embedding is registered once and used twice; else the head is "lm_head.weight".
class Gpt final : public TrainableModel {
 public:
  /// N(0, 0.02²), projections into the residual stream scaled by 1/√(2·n_layer), biases 0, norms
  /// the identity. Throws ConfigError if n_embd is not a multiple of n_head.
  Gpt(const ModelConfig& config, int64_t seed);

  /// `inputs`: int64 [batch, time]; returns [batch, time, vocabulary]. Throws ShapeError if time is
  /// greater than block_size.
  at::Tensor logits(const at::Tensor& inputs) override;

  /// `prompt` (a line feed if empty) continued by `count` bytes, sampled at `temperature` from a
  /// generator of their own seeded by `seed`; without dropout, without gradients. Each byte costs a
  /// forward pass over the last block_size bytes. Throws ConfigError if vocab_size is below 256 or
  /// the temperature is not above 0.
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

  // Each registers a module `name` below `owner`; `path` is its full name, which the initial values
  // depend on.
  at::Tensor make_weight(torch::nn::Module& owner, const std::string& name, at::IntArrayRef sizes,
                         double deviation, const std::string& path);
  Linear make_linear(torch::nn::Module& owner, const std::string& name, int64_t in, int64_t out,
                     double deviation, const std::string& path);
  Norm make_norm(torch::nn::Module& owner, const std::string& name);
  Block make_block(torch::nn::Module& owner, const std::string& path);
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
