// The built-in models, behind one interface.
#pragma once
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>

#include "engine/config/config.h"

namespace zerosharp {

/// A module that can be trained from batches of inputs and targets. Works in whatever dtype its
/// parameters have at the time of the call; logits and losses are fp32.
class TrainableModel : public torch::nn::Module {
 public:
  /// Scores of shape [batch…, classes], fp32.
  virtual at::Tensor logits(const at::Tensor& inputs) = 0;
  /// Mean cross entropy (nats) of `targets` (int64, the shape of logits without its last dimension).
  at::Tensor loss(const at::Tensor& inputs, const at::Tensor& targets);
};

/// Builds the model of `config.type`. Every parameter is drawn from a generator of its own, seeded by
/// (`seed`, parameter name), so initial values depend neither on the number of ranks nor on the
/// compiler. Throws ConfigError for an unknown type.
std::shared_ptr<TrainableModel> make_model(const ModelConfig& config, int64_t seed);

}  // namespace zerosharp
