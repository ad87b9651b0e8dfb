// The small modules of the field cases: gradients that are known exactly.
#pragma once
#include <torch/torch.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "engine/config/config.h"

namespace zerosharp::testing {

/// V(n): one parameter w with w[i] = i + 1; the loss ⟨g, w⟩ makes g exactly the gradient.
struct VectorModule : torch::nn::Module {
  explicit VectorModule(int64_t n, double first = 1.0, double increment = 1.0) {
    w = register_parameter("w", at::arange(n, at::kFloat) * increment + first);
  }
  at::Tensor loss(const at::Tensor& gradient) const { return (w.to(at::kFloat) * gradient).sum(); }
  at::Tensor loss(double gradient) const { return loss(at::full(w.sizes(), gradient)); }
  at::Tensor w;
};

/// Q: loss ½|w|² + ⟨c, w⟩, gradient w + c.
struct QuadraticModule : torch::nn::Module {
  explicit QuadraticModule(std::vector<float> values) {
    w = register_parameter("w", at::tensor(values));
  }
  at::Tensor loss(const std::vector<float>& c) const {
    const at::Tensor x = w.to(at::kFloat);
    return 0.5 * (x * x).sum() + (at::tensor(c) * x).sum();
  }
  at::Tensor loss() const { return loss(std::vector<float>(static_cast<size_t>(w.numel()), 0.f)); }
  at::Tensor w;
};

/// MLP23: Linear(4,3), ReLU, Linear(3,2) on 8 fixed rows X[i,j] = sin(4i+j), Y[i,k] = cos(2i+k).
/// Of another width it has 7·width + 2 elements; from 64 elements on, ranks share them.
struct Mlp23 : torch::nn::Module {
  explicit Mlp23(int64_t seed = 0, int64_t width = 3) {
    auto first = register_module("0", std::make_shared<torch::nn::Module>());
    auto second = register_module("2", std::make_shared<torch::nn::Module>());
    w0 = first->register_parameter("weight", draw({width, 4}, seed, 1));
    b0 = first->register_parameter("bias", draw({width}, seed, 2));
    w2 = second->register_parameter("weight", draw({2, width}, seed, 3));
    b2 = second->register_parameter("bias", draw({2}, seed, 4));
  }
  at::Tensor forward(const at::Tensor& x) const {
    return at::linear(at::relu(at::linear(x, w0, b0)), w2, b2);
  }
  /// Mean squared error over rows [begin, end).
  at::Tensor loss(int64_t begin, int64_t end) const {
    const at::Tensor i = at::arange(begin, end, at::kFloat).unsqueeze(1);
    const at::Tensor x = at::sin(4 * i + at::arange(4, at::kFloat));
    const at::Tensor y = at::cos(2 * i + at::arange(2, at::kFloat));
    return at::mse_loss(forward(x.to(w0.scalar_type())).to(at::kFloat), y);
  }
  static at::Tensor draw(at::IntArrayRef sizes, int64_t seed, int64_t number) {
    auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed * 100 + number));
    return at::rand(sizes, generator) - 0.5;
  }
  at::Tensor w0, b0, w2, b2;
};

/// A configuration for `world` ranks without a file.
inline Config toy_config(kernels::OptimizerKind kind, double lr, int64_t stage = 1,
                         DType precision = DType::kF32) {
  Config config;
  config.source = "test";
  config.batch.micro_batch_size = 1;
  config.batch.accumulation_steps = 1;
  config.batch.train_batch_size = 1;
  config.gradient_clipping = 0;
  config.precision = precision;
  config.zero_stage = stage;
  config.optimizer.kind = kind;
  config.optimizer.lr = lr;
  config.train.steps = 100;
  return config;
}

inline Config sgd(double lr, int64_t stage = 1, DType precision = DType::kF32) {
  return toy_config(kernels::OptimizerKind::kSgd, lr, stage, precision);
}
inline Config adamw(double lr, int64_t stage = 1, DType precision = DType::kF32) {
  return toy_config(kernels::OptimizerKind::kAdamW, lr, stage, precision);
}

/// Bitwise equality of two tensors (NaNs and signed zeros included).
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor x = a.detach().contiguous();
  const at::Tensor y = b.detach().contiguous();
  return std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}

inline std::vector<float> values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().to(at::kFloat).contiguous().view({-1});
  return {flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel()};
}

}  // namespace zerosharp::testing
