// What perturbing micro-batch by micro-batch costs: a second accumulator and a copy of the weights.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "zero/bf16_optimizer.h"

namespace zerosharp {

/// Between two micro-batches no rank gathers anything, so each needs its own way back to clean
/// weights, and a place for first-pass gradients beside the accumulated ones: per parameter, the
/// bytes of a working weight and of an accumulator element.
class MicroScratch {
 public:
  explicit MicroScratch(Bf16Optimizer& base);

  /// Copies the (clean) working weights; once a boundary.
  void save_weights();
  void restore_weights();
  /// Exchanges the accumulators with the scratch ones; called in pairs.
  void swap_accumulators();
  int64_t bytes() const;

 private:
  Bf16Optimizer& base_;
  std::vector<at::Tensor> weights_;
  std::vector<GradSink::Contents> contents_;
};

}  // namespace zerosharp
