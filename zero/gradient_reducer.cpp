#include "zero/gradient_reducer.h"

#include <torch/torch.h>

#include "kernels/cast.h"
#include "zero/device.h"

namespace zerosharp {

GradientReducer::GradientReducer(DType accumulator, DType communication, int64_t numel, int ranks,
                                 at::Device device) {
  if (communication == accumulator || ranks == 1) return;
  sent_ = at::zeros({numel}, at::TensorOptions().device(device).dtype(scalar_type(communication)));
}

void GradientReducer::all_reduce(const at::Tensor& gradients, Communicator& ranks) const {
  average(gradients, ranks.size(), {0, gradients.numel()},
          [&](FlatSpan span, Stream stream) { ranks.all_reduce(span, ReduceOp::kMean, stream); });
}

void GradientReducer::reduce_scatter(const at::Tensor& gradients, Communicator& ranks) const {
  const int64_t share = gradients.numel() / ranks.size();
  const ShardRange mine{ranks.rank() * share, (ranks.rank() + 1) * share};
  average(gradients, ranks.size(), mine, [&](FlatSpan span, Stream stream) {
    ranks.reduce_scatter(span, ReduceOp::kMean, stream);
  });
}

/// `reduce` averages a span; afterwards its elements `valid` are the mean.
template <class Reduce>
void GradientReducer::average(const at::Tensor& gradients, int ranks, ShardRange valid,
                              Reduce reduce) const {
  if (gradients.numel() == 0) return;
  const Stream stream = current_stream(gradients.device());
  const FlatSpan own = span_of(gradients);
  if (!sent_.defined() || ranks == 1) {
    reduce(own, stream);
    return;
  }
  const FlatSpan sent = span_of(sent_, 0, own.numel);
  kernels::cast(own.data, own.dtype, sent.data, sent.dtype, own.numel, stream);
  reduce(sent, stream);
  kernels::cast(address(sent_, valid.begin), sent.dtype, address(gradients, valid.begin), own.dtype,
                valid.size(), stream);
}

int64_t GradientReducer::bytes() const {
  return sent_.defined() ? static_cast<int64_t>(sent_.nbytes()) : 0;
}

}  // namespace zerosharp
