#include "engine/sam/kept_gradient.h"

#include <torch/torch.h>

#include "kernels/cast.h"
#include "kernels/mix.h"
#include "zero/device.h"

namespace zerosharp {
namespace {

/// a / b, 0 where b is 0.
at::Tensor ratio(const at::Tensor& a, const at::Tensor& b) {
  return at::where(b.gt(0), a / b, at::zeros_like(b));
}

}  // namespace

KeptGradient::KeptGradient(Bf16Optimizer& base) : base_(base) {
  for (const auto& group : base.flat_groups()) kept_.push_back(at::zeros_like(group->master()));
}

void KeptGradient::keep() {
  for (size_t g = 0; g < kept_.size(); ++g) {
    const FlatGroup& group = *base_.flat_groups()[g];
    const at::Tensor& gradients = group.gradients().accumulator();
    kernels::cast(address(gradients, group.owned().begin), dtype_of(gradients.scalar_type()),
                  address(kept_[g]), DType::kF32, group.owned().size(), base_.stream());
  }
}

void KeptGradient::measure() {
  StepSums& sums = base_.step_sums();
  for (size_t g = 0; g < kept_.size(); ++g) {
    const FlatGroup& group = *base_.flat_groups()[g];
    const ShardRange share = group.share();
    const at::Tensor& gradients = group.gradients().accumulator();
    kernels::dots(address(gradients, share.begin), dtype_of(gradients.scalar_type()),
                  static_cast<const float*>(address(kept_[g], share.begin - group.owned().begin)),
                  share.size(), sums.slots(StepSums::kDot), sums.workspace(), base_.stream());
  }
}

void KeptGradient::subtract_orthogonal(double alpha) {
  StepSums& sums = base_.step_sums();
  const at::Tensor xk = sums.slot_tensor(StepSums::kDot);
  const at::Tensor xx = sums.slot_tensor(StepSums::kFirst);
  const at::Tensor kk = sums.slot_tensor(StepSums::kSecond);
  const at::Tensor c = ratio(xk, xx);
  const at::Tensor zero = at::zeros_like(c);
  sums.set_matrix({1 + alpha * c, zero - alpha, zero, zero + 1});
  const at::Tensor orthogonal = at::relu(kk - c * xk);  // ‖k − c·x‖²
  sums.slot_tensor(StepSums::kSumSquares).copy_(xx + alpha * alpha * orthogonal);
  mix();
}

void KeptGradient::keep_orthogonal() {
  StepSums& sums = base_.step_sums();
  const at::Tensor c = ratio(sums.slot_tensor(StepSums::kDot), sums.slot_tensor(StepSums::kSecond));
  const at::Tensor zero = at::zeros_like(c);
  sums.set_matrix({zero + 1, zero, zero + 1, -c});
  mix();
}

void KeptGradient::add_kept(double alpha) {
  StepSums& sums = base_.step_sums();
  const at::Tensor xk = sums.slot_tensor(StepSums::kDot);
  const at::Tensor xx = sums.slot_tensor(StepSums::kFirst);
  const at::Tensor kk = sums.slot_tensor(StepSums::kSecond);
  const at::Tensor b = alpha * ratio(xx, kk).sqrt();
  const at::Tensor zero = at::zeros_like(b);
  sums.set_matrix({zero + 1, b, zero, zero + 1});
  sums.slot_tensor(StepSums::kSumSquares).copy_(xx + 2 * b * xk + b * b * kk);
  mix();
}

void KeptGradient::mix() {
  for (size_t g = 0; g < kept_.size(); ++g) {
    const FlatGroup& group = *base_.flat_groups()[g];
    const at::Tensor& gradients = group.gradients().accumulator();
    kernels::mix(address(gradients, group.owned().begin), dtype_of(gradients.scalar_type()),
                 static_cast<float*>(address(kept_[g])), group.owned().size(),
                 base_.step_sums().factors(StepSums::kMatrix), base_.stream());
  }
}

int64_t KeptGradient::bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& shard : kept_) bytes += static_cast<int64_t>(shard.nbytes());
  return bytes;
}

}  // namespace zerosharp
