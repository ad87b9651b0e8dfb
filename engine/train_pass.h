// One pass over the micro-batches of an accumulation boundary.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <functional>

#include "zero/bf16_optimizer.h"

namespace zerosharp {

/// Computes the loss of micro-batch `micro` (0 … accumulation − 1) with the weights as they are: a
/// scalar, mean over its samples, attached to the graph. It is called once a pass, so SAM calls it
/// twice for each micro-batch: it must compute the same thing again and not reuse a graph.
using LossClosure = std::function<at::Tensor(int64_t micro)>;

/// Which evaluation of the loss is asked for.
struct PassContext {
  int64_t micro = 0;      ///< 0 … accumulation − 1
  int pass = 0;           ///< 0: at the weights; 1: at SAM's perturbed weights
  bool last_pass = true;  ///< its gradient is the update's
};

/// A LossClosure that is told which pass it serves.
using PassClosure = std::function<at::Tensor(const PassContext& context)>;

/// Throws ShapeError if `loss` is undefined, not a scalar or detached from the parameters.
void check_loss(const at::Tensor& loss);

/// A failure inside the closure must not leave the other ranks waiting in a collective: it is kept,
/// told to them with the step's sums, and thrown once the boundary has been skipped by all.
class PassFailure {
 public:
  /// Runs loss and backward (scaled by `loss_scale`) of micro-batches context.micro … `end` − 1;
  /// after a failure it does nothing more. CommErrors are thrown at once, since no collective can
  /// follow them.
  void run(Bf16Optimizer& optimizer, const PassClosure& closure, PassContext context, int64_t end,
           double loss_scale);
  bool failed() const noexcept { return error_ != nullptr; }
  /// Throws what was kept, if anything.
  void rethrow() const;

 private:
  std::exception_ptr error_;
};

}  // namespace zerosharp
