// A multilayer perceptron over flattened inputs.
#pragma once
#include <vector>

#include "engine/models/model.h"

namespace zerosharp {

/// Linear layers with ReLU between them, He initialization; names "layers.0.weight" …
class Mlp final : public TrainableModel {
 public:
  /// `inputs` features, then model.hidden_sizes, then `classes` scores.
  Mlp(const ModelConfig& config, int64_t inputs, int64_t classes, int64_t seed);

  /// `inputs`: [batch, …] of any floating type, flattened; returns [batch, classes].
  at::Tensor logits(const at::Tensor& inputs) override;

 private:
  std::vector<at::Tensor> weights_, biases_;
};

}  // namespace zerosharp
