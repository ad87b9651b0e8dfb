// A character model small enough to train many times, and pieces of text to train it on.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/experiments/experiment.h"

namespace zerosharp::experiments {

constexpr int64_t kContext = 16;  ///< characters that predict the next
constexpr int64_t kVocabulary = 96;

/// Embedding of 16, two layers of 192 with ReLU, scores of 96 characters: 107 thousand parameters.
class CharModel final : public TrainableModel {
 public:
  explicit CharModel(int64_t seed);
  /// `inputs`: [batch, kContext] of characters 0 … 95.
  at::Tensor logits(const at::Tensor& inputs) override;
  /// The matrices of the three layers, [outputs, inputs].
  const std::vector<at::Tensor>& layers() const noexcept { return weights_; }

 private:
  at::Tensor embedding_;
  std::vector<at::Tensor> weights_, biases_;
};

/// A new model with the parameter values of `model`.
std::shared_ptr<CharModel> copy_of(const TrainableModel& model);

/// The bytes of the files, one after the other, as characters: printable ASCII and line ends keep
/// apart, anything else is a space. Throws std::runtime_error for a file that cannot be read.
at::Tensor read_characters(const std::vector<std::string>& paths);

/// Characters [begin, begin + count) of `text`, each with the kContext characters before it. Throws
/// std::runtime_error if the text is too short.
Samples windows(const at::Tensor& text, int64_t begin, int64_t count);

/// Mean cross entropy in nats a character. Without gradients.
double mean_loss(TrainableModel& model, const Samples& samples);

/// AdamW with lr 2e-3 after 100 steps of LR warm-up, cosine to a tenth, clipping at 1, decay 0.01.
Json char_config();

}  // namespace zerosharp::experiments
