#include "benchmarks/experiments/char_model.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "engine/models/init.h"

namespace zerosharp::experiments {
namespace {

constexpr int64_t kEmbedding = 16;
constexpr int64_t kWidth = 192;

int64_t character(unsigned char byte) {
  if (byte == '\n') return 95;
  return byte >= 32 && byte < 127 ? byte - 32 : 0;
}

}  // namespace

CharModel::CharModel(int64_t seed) {
  embedding_ = register_parameter("embedding",
                                  normal_tensor({kVocabulary, kEmbedding}, 1, seed, "embedding"));
  const std::vector<int64_t> sizes = {kContext * kEmbedding, kWidth, kWidth, kVocabulary};
  for (size_t i = 0; i + 1 < sizes.size(); ++i) {
    const std::string number = std::to_string(i);
    const bool last = i + 2 == sizes.size();
    const double deviation = std::sqrt((last ? 1.0 : 2.0) / static_cast<double>(sizes[i]));
    weights_.push_back(register_parameter(
        "weight" + number,
        normal_tensor({sizes[i + 1], sizes[i]}, deviation, seed, "weight" + number)));
    biases_.push_back(register_parameter("bias" + number, at::zeros({sizes[i + 1]})));
  }
}

at::Tensor CharModel::logits(const at::Tensor& inputs) {
  at::Tensor x = at::embedding(embedding_, inputs).flatten(1);
  for (size_t i = 0; i < weights_.size(); ++i) {
    x = at::linear(x, weights_[i], biases_[i]);
    if (i + 1 < weights_.size()) x = at::relu(x);
  }
  return x;
}

std::shared_ptr<CharModel> copy_of(const TrainableModel& model) {
  const at::NoGradGuard no_grad;
  auto copy = std::make_shared<CharModel>(0);
  const auto from = model.parameters();
  const auto to = copy->parameters();
  for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
  return copy;
}

at::Tensor read_characters(const std::vector<std::string>& paths) {
  std::vector<int64_t> characters;
  for (const std::string& path : paths) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    if (bytes.empty()) throw std::runtime_error(path + " cannot be read or is empty");
    std::transform(bytes.begin(), bytes.end(), std::back_inserter(characters),
                   [](char byte) { return character(static_cast<unsigned char>(byte)); });
  }
  return at::tensor(characters);
}

Samples windows(const at::Tensor& text, int64_t begin, int64_t count) {
  if (begin < kContext || begin + count > text.size(0)) {
    throw std::runtime_error("the text has " + std::to_string(text.size(0)) +
                             " characters, too few for " + std::to_string(begin + count));
  }
  const at::Tensor around = text.slice(0, begin - kContext, begin + count - 1);
  return {around.unfold(0, kContext, 1), text.slice(0, begin, begin + count)};
}

double mean_loss(TrainableModel& model, const Samples& samples) {
  const at::NoGradGuard no_grad;
  constexpr int64_t kRows = 5000;  // at a time
  double sum = 0;
  const int64_t rows = samples.targets.size(0);
  for (int64_t begin = 0; begin < rows; begin += kRows) {
    const int64_t end = std::min(begin + kRows, rows);
    sum += static_cast<double>(end - begin) *
           model.loss(samples.inputs.slice(0, begin, end), samples.targets.slice(0, begin, end))
               .item<double>();
  }
  return sum / static_cast<double>(rows);
}

Json char_config() {
  return Json::parse(R"({
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.002, "weight_decay": 0.01}},
    "scheduler": {"type": "cosine", "params": {"warmup_steps": 100, "alpha_f": 0.1}}
  })");
}

}  // namespace zerosharp::experiments
