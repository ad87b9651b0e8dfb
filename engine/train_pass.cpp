#include "engine/train_pass.h"

#include <torch/torch.h>

#include "kernels/error.h"

namespace zerosharp {

void check_loss(const at::Tensor& loss) {
  if (!loss.defined()) {
    fail_shape("the closure returned an undefined loss; return the loss tensor of the micro-batch");
  }
  if (loss.numel() != 1) {
    fail_shape("the closure returned a loss of shape ", loss.sizes(),
               "; return a scalar (for example loss.mean())");
  }
  if (!loss.requires_grad()) {
    fail_shape(
        "the closure returned a loss that is detached from the parameters; compute it with "
        "gradients enabled and return it before detach() or item()");
  }
}

void PassFailure::run(Bf16Optimizer& optimizer, const PassClosure& closure, PassContext context,
                      int64_t end, double loss_scale) {
  if (failed()) return;
  try {
    const at::AutoGradMode with_grad(true);
    for (const auto& group : optimizer.flat_groups()) group->check_bound();
    for (; context.micro < end; ++context.micro) {
      const at::Tensor loss = closure(context);
      check_loss(loss);
      (loss_scale == 1.0 ? loss : loss * loss_scale).backward();
      optimizer.add_loss(loss);
    }
  } catch (const CommError&) {
    throw;
  } catch (...) {
    error_ = std::current_exception();
    optimizer.mark_failed();
  }
}

void PassFailure::rethrow() const {
  if (error_) std::rethrow_exception(error_);
}

}  // namespace zerosharp
