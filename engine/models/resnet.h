// A small residual network (He et al. 2016) for 28 × 28 images.
#pragma once
#include <string>
#include <vector>

#include "engine/models/model.h"

namespace zerosharp {

/// Three stages of `blocks_per_stage` basic blocks with widths w, 2w, 4w; the second and third
/// halve the image. Batch norm computes in the dtype of its running statistics, which is fp32
/// whatever the parameters are set to. Names: "stem.weight", "stages.1.0.conv1.weight", "head.bias"
/// …
class ResNet final : public TrainableModel {
 public:
  /// He initialization (by inputs), norms the identity.
  ResNet(const ModelConfig& config, int64_t classes, int64_t seed);

  /// `inputs`: [batch, 1, 28, 28] of any floating type; returns [batch, classes].
  at::Tensor logits(const at::Tensor& inputs) override;

 private:
  struct Conv {
    at::Tensor weight;
    int64_t stride = 1;
    at::Tensor operator()(const at::Tensor& x) const;
  };
  struct BatchNorm {
    at::Tensor weight, bias, mean, variance;
    at::Tensor operator()(const at::Tensor& x, bool training) const;
  };
  struct Block {
    Conv conv1, conv2, shortcut;
    BatchNorm norm1, norm2, shortcut_norm;
    bool projects = false;
  };

  Conv make_conv(torch::nn::Module& owner, const std::string& path, const std::string& name,
                 int64_t in, int64_t out, int64_t size, int64_t stride);
  BatchNorm make_norm(torch::nn::Module& owner, const std::string& name, int64_t width);
  Block make_block(torch::nn::Module& owner, const std::string& path, int64_t in, int64_t out,
                   int64_t stride);

  int64_t seed_;
  Conv stem_;
  BatchNorm stem_norm_;
  std::vector<Block> blocks_;
  at::Tensor head_weight_, head_bias_;
};

}  // namespace zerosharp
