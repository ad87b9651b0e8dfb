// Where gradients go: straight from autograd into the group's flat accumulator, parameter by
// parameter, so that full-size gradients exist once and never twice.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "zero/layout.h"

namespace zerosharp {

/// The flat gradient accumulator of one group. Each parameter's gradient is added as soon as
/// autograd has accumulated it, in the accumulator's dtype (fp32 arithmetic, one rounding per add),
/// and `parameter.grad` is freed. The first contribution of a boundary overwrites, so nothing is
/// zeroed in advance. The hooks run on the thread (CUDA: the stream) of backward.
class GradSink : public std::enable_shared_from_this<GradSink> {
 public:
  /// `accumulator`: contiguous, `layout.padded_numel` elements, zero-filled here.
  GradSink(GroupLayout layout, std::vector<std::string> names, at::Tensor accumulator);

  /// Hooks the gradient accumulation of `parameter` number `index`. The parameter must already have
  /// its final dtype and storage. Hooks do nothing once this object is gone.
  void attach(int64_t index, const at::Tensor& parameter);
  /// True if the gradients of `parameter` go to a living sink.
  static bool is_attached(const at::Tensor& parameter);

  /// Forgets everything accumulated.
  void clear();
  /// Zeroes the room of parameters that received nothing, so that the whole buffer is valid.
  void fill_untouched();

  /// What has been accumulated, and of which parameters.
  struct Contents {
    at::Tensor accumulator;
    std::vector<char> touched;
  };
  /// A second accumulator of the same kind, with nothing in it.
  Contents empty_contents() const;
  void swap(Contents& other);

  bool touched(int64_t index) const { return touched_[index] != 0; }
  bool all_touched() const;
  const at::Tensor& accumulator() const noexcept { return accumulator_; }
  /// View of parameter `index` in the accumulator, flat.
  at::Tensor gradient(int64_t index) const;

 private:
  class Hook;
  void collect(int64_t index, const at::Tensor& parameter);
  void add(int64_t index, const at::Tensor& gradient);

  GroupLayout layout_;
  std::vector<std::string> names_;
  at::Tensor accumulator_;
  std::vector<char> touched_;
  std::vector<std::shared_ptr<void>> accumulator_nodes_;  // autograd holds them only weakly
};

}  // namespace zerosharp
