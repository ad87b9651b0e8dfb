#include "engine/models/resnet.h"

#include <torch/torch.h>

#include <cmath>

#include "engine/models/init.h"
#include "engine/models/scope.h"

namespace zerosharp {
namespace {

constexpr double kMomentum = 0.1;
constexpr double kEpsilon = 1e-5;

}  // namespace

at::Tensor ResNet::Conv::operator()(const at::Tensor& x) const {
  const int64_t padding = weight.size(2) / 2;
  return at::conv2d(x, weight, {}, at::IntArrayRef{stride, stride},
                    at::IntArrayRef{padding, padding});
}

at::Tensor ResNet::BatchNorm::operator()(const at::Tensor& x, bool training) const {
  const auto wide = mean.scalar_type();
  return at::batch_norm(x.to(wide), weight.to(wide), bias.to(wide), mean, variance, training,
                        kMomentum, kEpsilon, /*cudnn_enabled=*/true)
      .to(x.scalar_type());
}

ResNet::ResNet(const ModelConfig& config, int64_t classes, int64_t seed) : seed_(seed) {
  const int64_t width = config.width;
  stem_ = make_conv(*this, "", "stem", 1, width, 3, 1);
  stem_norm_ = make_norm(*this, "stem_norm", width);
  int64_t in = width;
  auto stages = add_scope(*this, "stages");
  for (int64_t stage = 0; stage < 3; ++stage) {
    auto scope = add_scope(*stages, std::to_string(stage));
    const int64_t out = width << stage;
    for (int64_t i = 0; i < config.blocks_per_stage; ++i) {
      const int64_t stride = stage > 0 && i == 0 ? 2 : 1;
      const std::string path = "stages." + std::to_string(stage) + "." + std::to_string(i) + ".";
      auto block = add_scope(*scope, std::to_string(i));
      blocks_.push_back(make_block(*block, path, in, out, stride));
      in = out;
    }
  }
  auto head = add_scope(*this, "head");
  const double deviation = std::sqrt(1.0 / static_cast<double>(in));
  head_weight_ = head->register_parameter(
      "weight", normal_tensor({classes, in}, deviation, seed, "head.weight"));
  head_bias_ = head->register_parameter("bias", at::zeros({classes}));
}

ResNet::Conv ResNet::make_conv(torch::nn::Module& owner, const std::string& path,
                               const std::string& name, int64_t in, int64_t out, int64_t size,
                               int64_t stride) {
  const double deviation = std::sqrt(2.0 / static_cast<double>(in * size * size));
  auto scope = add_scope(owner, name);
  return {scope->register_parameter("weight", normal_tensor({out, in, size, size}, deviation, seed_,
                                                            path + name + ".weight")),
          stride};
}

ResNet::BatchNorm ResNet::make_norm(torch::nn::Module& owner, const std::string& name,
                                    int64_t width) {
  auto scope = add_scope(owner, name);
  BatchNorm norm;
  norm.weight = scope->register_parameter("weight", at::ones({width}));
  norm.bias = scope->register_parameter("bias", at::zeros({width}));
  norm.mean = scope->register_buffer("running_mean", at::zeros({width}));
  norm.variance = scope->register_buffer("running_var", at::ones({width}));
  return norm;
}

ResNet::Block ResNet::make_block(torch::nn::Module& owner, const std::string& path, int64_t in,
                                 int64_t out, int64_t stride) {
  Block block;
  block.conv1 = make_conv(owner, path, "conv1", in, out, 3, stride);
  block.norm1 = make_norm(owner, "norm1", out);
  block.conv2 = make_conv(owner, path, "conv2", out, out, 3, 1);
  block.norm2 = make_norm(owner, "norm2", out);
  block.projects = in != out || stride != 1;
  if (block.projects) {
    block.shortcut = make_conv(owner, path, "shortcut", in, out, 1, stride);
    block.shortcut_norm = make_norm(owner, "shortcut_norm", out);
  }
  return block;
}

at::Tensor ResNet::logits(const at::Tensor& inputs) {
  const bool training = is_training();
  at::Tensor x = inputs.to(stem_.weight.scalar_type());
  x = at::relu(stem_norm_(stem_(x), training));
  for (const Block& block : blocks_) {
    at::Tensor y = at::relu(block.norm1(block.conv1(x), training));
    y = block.norm2(block.conv2(y), training);
    x = at::relu(y + (block.projects ? block.shortcut_norm(block.shortcut(x), training) : x));
  }
  return at_least_fp32(at::linear(x.mean({2, 3}), head_weight_, head_bias_));
}

}  // namespace zerosharp
