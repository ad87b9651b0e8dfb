// The mean of flat gradients over ranks, sent in their own dtype or in another one.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "zero/communicator.h"
#include "zero/layout.h"

namespace zerosharp {

/// Averages flat gradient buffers of one dtype over ranks. Sent in another dtype (DeepSpeed's
/// communication_data_type) they are rounded to it, reduced in it and rounded back; what it cannot
/// hold becomes infinite, so that the step is skipped. Where nothing is sent, at one rank, nothing
/// is rounded. Runs on the calling thread and the device's current stream.
class GradientReducer {
 public:
  /// Serves buffers of up to `numel` elements. Allocates room for what is sent here, and only if
  /// `communication` differs from `accumulator` and there are `ranks` > 1.
  GradientReducer(DType accumulator, DType communication, int64_t numel, int ranks,
                  at::Device device);

  /// gradients ← their mean over `ranks`, the whole buffer. Collective.
  void all_reduce(const at::Tensor& gradients, Communicator& ranks) const;
  /// The same, valid in shard `ranks.rank()` of `ranks.size()` equal ones. Collective.
  void reduce_scatter(const at::Tensor& gradients, Communicator& ranks) const;

  int64_t bytes() const;

 private:
  template <class Reduce>
  void average(const at::Tensor& gradients, int ranks, ShardRange valid, Reduce reduce) const;

  at::Tensor sent_;  // undefined where nothing is converted
};

}  // namespace zerosharp
