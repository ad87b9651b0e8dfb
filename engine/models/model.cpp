#include "engine/models/model.h"

#include <torch/torch.h>

#include "engine/models/gpt.h"
#include "engine/models/mlp.h"
#include "engine/models/resnet.h"
#include "kernels/error.h"

namespace zerosharp {
namespace {

constexpr int64_t kImagePixels = 28 * 28;
constexpr int64_t kImageClasses = 10;

}  // namespace

at::Tensor TrainableModel::loss(const at::Tensor& inputs, const at::Tensor& targets) {
  const at::Tensor scores = logits(inputs);
  return at::cross_entropy_loss(scores.reshape({-1, scores.size(-1)}), targets.reshape({-1}));
}

std::shared_ptr<TrainableModel> make_model(const ModelConfig& config, int64_t seed) {
  if (config.type == "gpt") return std::make_shared<Gpt>(config, seed);
  if (config.type == "mlp") {
    return std::make_shared<Mlp>(config, kImagePixels, kImageClasses, seed);
  }
  if (config.type == "resnet") return std::make_shared<ResNet>(config, kImageClasses, seed);
  fail_config("model.type must be gpt, mlp or resnet, got \"", config.type, "\"");
}

}  // namespace zerosharp
