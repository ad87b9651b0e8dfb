#include "engine/models/mlp.h"

#include <torch/torch.h>

#include <cmath>

#include "engine/models/init.h"
#include "engine/models/scope.h"

namespace zerosharp {

Mlp::Mlp(const ModelConfig& config, int64_t inputs, int64_t classes, int64_t seed) {
  std::vector<int64_t> sizes = config.hidden_sizes;
  sizes.insert(sizes.begin(), inputs);
  sizes.push_back(classes);
  auto layers = add_scope(*this, "layers");
  for (size_t i = 0; i + 1 < sizes.size(); ++i) {
    auto layer = add_scope(*layers, std::to_string(i));
    const std::string name = "layers." + std::to_string(i) + ".weight";
    const double deviation = std::sqrt(2.0 / static_cast<double>(sizes[i]));
    weights_.push_back(layer->register_parameter(
        "weight", normal_tensor({sizes[i + 1], sizes[i]}, deviation, seed, name)));
    biases_.push_back(layer->register_parameter("bias", at::zeros({sizes[i + 1]})));
  }
}

at::Tensor Mlp::logits(const at::Tensor& inputs) {
  at::Tensor x = inputs.flatten(1).to(weights_.front().scalar_type());
  for (size_t i = 0; i < weights_.size(); ++i) {
    x = at::linear(x, weights_[i], biases_[i]);
    if (i + 1 < weights_.size()) x = at::relu(x);
  }
  return at_least_fp32(x);
}

}  // namespace zerosharp
