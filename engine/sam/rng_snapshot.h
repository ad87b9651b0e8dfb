// Replay of random numbers, so that SAM's second pass draws the dropout masks of the first.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

namespace zerosharp {

/// The state of LibTorch's default generators of the CPU and, if given, of one CUDA device.
class RngSnapshot {
 public:
  explicit RngSnapshot(at::Device device);
  /// Puts the generators back to where they were at construction.
  void restore() const;

 private:
  at::Device device_;
  at::Tensor cpu_state_;
  at::Tensor cuda_state_;
};

/// Copies of module buffers, to undo what a pass did to them (batch-norm statistics).
class BufferSnapshot {
 public:
  explicit BufferSnapshot(const std::vector<at::Tensor>& buffers);
  void restore() const;

 private:
  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> copies_;
};

}  // namespace zerosharp
