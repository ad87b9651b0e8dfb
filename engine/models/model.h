// The built-in models, behind one interface.
#pragma once
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>

#include "engine/config/config.h"

namespace zerosharp {

/// A module that can be trained from batches of inputs and targets. Works in whatever dtype its
/// parameters have at the time of the call; logits and losses are fp32 (fp64 for fp64 parameters).
class TrainableModel : public torch::nn::Module {
 public:
  /// Scores of shape [batch…, classes].
  virtual at::Tensor logits(const at::Tensor& inputs) = 0;
  /// Mean cross entropy (nats) of `targets`: int64, of the shape of logits without its last
  /// dimension.
  at::Tensor loss(const at::Tensor& inputs, const at::Tensor& targets);
};

/// Builds the model of `config.type` in fp32 on the CPU. Every random parameter is drawn from a
/// generator of its own, seeded by (`seed`, parameter name), so initial values depend neither on
/// the number of ranks nor on what else the model holds. The mlp and resnet read 28 x 28 images of
/// 10 classes. Throws ConfigError for an unknown type or sizes that do not fit together.
std::shared_ptr<TrainableModel> make_model(const ModelConfig& config, int64_t seed);

}  // namespace zerosharp
