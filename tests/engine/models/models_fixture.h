// Tiny models and inputs for the tests of the built-in models.
#pragma once
#include <torch/torch.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/config/config.h"

namespace zerosharp::testing {

constexpr int64_t kSeed = 3;

inline ModelConfig gpt_config() {
  ModelConfig config;
  config.type = "gpt";
  config.n_layer = 2;
  config.n_head = 2;
  config.n_embd = 8;
  config.block_size = 7;
  config.vocab_size = 11;
  return config;
}

inline ModelConfig mlp_config() {
  ModelConfig config;
  config.type = "mlp";
  config.hidden_sizes = {6, 5};
  return config;
}

inline ModelConfig resnet_config() {
  ModelConfig config;
  config.type = "resnet";
  config.width = 2;
  config.blocks_per_stage = 1;
  return config;
}

/// Whole numbers in [0, bound) that follow no pattern the models could use.
inline at::Tensor tokens(int64_t batch, int64_t time, int64_t bound, int64_t offset = 0) {
  const at::Tensor i = at::arange(batch * time, at::kLong) + offset;
  return (i * i * 7 + i * 3).remainder(bound).view({batch, time});
}

inline at::Tensor images(int64_t batch, at::IntArrayRef shape = {1, 28, 28}) {
  std::vector<int64_t> sizes{batch};
  sizes.insert(sizes.end(), shape.begin(), shape.end());
  auto generator = at::detail::createCPUGenerator(99);
  return at::rand(sizes, generator);
}

inline std::map<std::string, at::Tensor> by_name(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> parameters;
  for (const auto& item : module.named_parameters()) parameters[item.key()] = item.value();
  return parameters;
}

/// What the engine does to a model: every parameter in `dtype`, buffers left alone.
inline void set_parameters(torch::nn::Module& module, at::ScalarType dtype) {
  for (at::Tensor& parameter : module.parameters()) parameter.set_data(parameter.to(dtype));
}

/// Moves biases, norms and all else off the special values of initialization.
inline void disturb(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  auto generator = at::detail::createCPUGenerator(5);
  for (at::Tensor& parameter : module.parameters()) {
    parameter.add_(at::randn(parameter.sizes(), generator, parameter.options()), 0.2);
  }
}

/// The message of an error of kind `Kind` thrown by `body`; "" if none was.
template <class Kind>
std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Kind& error) {
    return error.what();
  }
  return "";
}

}  // namespace zerosharp::testing
