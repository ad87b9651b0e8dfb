// From a configured data set to tensors.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "engine/config/config.h"

namespace zerosharp {

struct Batch {
  at::Tensor
      inputs;  ///< text: int64 [batch, time]; images: fp32 [batch, 1, rows, columns] in [0, 1]
  at::Tensor targets;  ///< text: int64 [batch, time]; images: int64 [batch]
};

/// Samples of a rank by step and micro-batch. Stateless: asking twice for the same micro-batch
/// gives the same tensors, which is what SAM's second pass needs.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// Micro-batch `micro` of `step` (0-based), on `device`.
  virtual Batch train_batch(int64_t step, int64_t micro) = 0;
  /// Evaluation batch `index` of this rank; ranks take turns, samples wrap around. Throws
  /// ConfigError if num_eval_samples() is 0.
  virtual Batch eval_batch(int64_t index) = 0;
  virtual int64_t num_train_samples() const = 0;
  virtual int64_t num_eval_samples() const = 0;
  /// Predicted things in one sample (bytes of a window; 1 for an image).
  virtual int64_t tokens_per_sample() const = 0;
  /// One line for the run header.
  virtual std::string describe() const = 0;
  /// Evaluation loss of a model without context, NaN where there is none.
  virtual double baseline_loss() const = 0;
  /// Start of the evaluation text; empty where there is none.
  virtual std::string prompt() const = 0;
};

/// Opens what `config.data` names. Throws ConfigError before anything is trained.
std::unique_ptr<BatchSource> open_batches(const Config& config, int rank, int world,
                                          at::Device device);

/// The same for arrays in memory: `inputs` [n, …] and `targets` [n, …], evaluation from the same.
std::unique_ptr<BatchSource> array_batches(at::Tensor inputs, at::Tensor targets,
                                           const Config& config, int rank, int world);

}  // namespace zerosharp
