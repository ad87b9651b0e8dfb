#include "engine/sam/micro_scratch.h"

#include <torch/torch.h>

namespace zerosharp {

MicroScratch::MicroScratch(Bf16Optimizer& base) : base_(base) {
  for (const auto& group : base.flat_groups()) {
    weights_.push_back(at::empty_like(group->weights()));
    contents_.push_back(group->gradients().empty_contents());
  }
}

void MicroScratch::save_weights() {
  for (size_t g = 0; g < weights_.size(); ++g) {
    weights_[g].copy_(base_.flat_groups()[g]->weights());
  }
}

void MicroScratch::restore_weights() {
  for (size_t g = 0; g < weights_.size(); ++g) {
    at::Tensor weights = base_.flat_groups()[g]->weights();
    weights.copy_(weights_[g]);
  }
  base_.set_perturbed(false);
}

void MicroScratch::swap_accumulators() {
  for (size_t g = 0; g < contents_.size(); ++g) {
    base_.flat_groups()[g]->gradients().swap(contents_[g]);
  }
}

int64_t MicroScratch::bytes() const {
  int64_t bytes = 0;
  for (size_t g = 0; g < weights_.size(); ++g) {
    bytes += static_cast<int64_t>(weights_[g].nbytes() + contents_[g].accumulator.nbytes());
  }
  return bytes;
}

}  // namespace zerosharp
