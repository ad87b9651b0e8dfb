#include "engine/sam/rng_snapshot.h"

#include <torch/torch.h>

namespace zerosharp {
namespace {

at::Tensor generator_state(at::Generator generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_generator_state(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace

RngSnapshot::RngSnapshot(at::Device device)
    : device_(device), cpu_state_(generator_state(at::detail::getDefaultCPUGenerator())) {
  if (device.is_cuda()) {
    cuda_state_ = generator_state(at::globalContext().defaultGenerator(device));
  }
}

void RngSnapshot::restore() const {
  set_generator_state(at::detail::getDefaultCPUGenerator(), cpu_state_);
  if (cuda_state_.defined()) {
    set_generator_state(at::globalContext().defaultGenerator(device_), cuda_state_);
  }
}

BufferSnapshot::BufferSnapshot(const std::vector<at::Tensor>& buffers) : buffers_(buffers) {
  copies_.reserve(buffers.size());
  for (const auto& buffer : buffers) copies_.push_back(buffer.detach().clone());
}

void BufferSnapshot::restore() const {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < buffers_.size(); ++i) buffers_[i].copy_(copies_[i]);
}

}  // namespace zerosharp
