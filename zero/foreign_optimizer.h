// A LibTorch optimizer of the user's, stepping on the shards.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "zero/flat_group.h"
#include "zero/param_groups.h"

namespace torch::optim {
class Optimizer;
}

namespace zerosharp {

/// Owns the optimizer, the fp32 gradient of each shard and the shard tensors it steps on (which
/// share memory with the masters). Nobody outside sees its groups, so no schedule can bind to them.
class ForeignOptimizer {
 public:
  using Factory =
      std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor> shards)>;

  ForeignOptimizer(const std::vector<std::unique_ptr<FlatGroup>>& groups, const Factory& factory);
  ~ForeignOptimizer();

  /// Makes states by a zero-gradient step between a snapshot and a restore, so that a first real
  /// step finds them as a fresh optimizer would. Where that cannot be exact (the optimizer wants a
  /// closure, throws, or keeps states whose existence changes the next step) states stay lazy.
  /// Returns a note that says which.
  std::string initialize_states();

  /// One step on gradients · `grad_scale` with the learning rates of `groups`.
  void step(const std::vector<std::unique_ptr<FlatGroup>>& flat, const ParamGroups& groups,
            float grad_scale);

  int64_t gradient_bytes() const;

 private:
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::vector<at::Tensor> shards_;
};

}  // namespace zerosharp
