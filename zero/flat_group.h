// One parameter group in flat form: working weights, gradient accumulator, and the owned run of
// master and optimizer states. Stages differ only in which run is owned.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "zero/communicator.h"
#include "zero/grad_sink.h"
#include "zero/layout.h"

namespace zerosharp {

struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};

struct FlatGroupOptions {
  DType working = DType::kBF16;
  DType accumulator = DType::kBF16;
  bool shard_states = true;  ///< false (stage 0): every rank owns everything
  int64_t align = 64;        ///< shard length is a multiple of this many elements
};

/// Elements [begin, end) of the flat buffer that share an update count.
struct UpdateRun {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t step = 0;  ///< update number of these elements, 1 for their first
};

/// Turns the parameters into views of one flat buffer of the working dtype. Names, shapes and (up
/// to the rounding to the working dtype) values stay; every rank ends with rank 0's values; the
/// master keeps fp32 values exactly. Parameters must be distinct, on one device, floating point and
/// dense, which build_groups (group_builder.h) has checked. All methods run on the calling thread
/// and the device's current stream.
class FlatGroup {
 public:
  /// Collective over `communicator`.
  FlatGroup(std::vector<NamedParameter> parameters, const FlatGroupOptions& options,
            Communicator& communicator);

  const GroupLayout& layout() const noexcept { return layout_; }
  const std::vector<NamedParameter>& parameters() const noexcept { return parameters_; }
  /// The run whose master and states live here.
  ShardRange owned() const noexcept { return owned_; }
  /// This rank's equal share of the buffer, whatever it owns.
  ShardRange share() const noexcept { return share_; }

  const at::Tensor& weights() const noexcept { return weights_; }  ///< padded_numel, working dtype
  const at::Tensor& master() const noexcept { return master_; }    ///< owned().size(), fp32
  const std::vector<at::Tensor>& states() const noexcept {
    return states_;
  }  ///< owned().size(), fp32
  GradSink& gradients() noexcept { return *sink_; }
  const GradSink& gradients() const noexcept { return *sink_; }

  /// Throws ShapeError naming a parameter that is no longer a view of the flat buffer: training
  /// would go on without it.
  void check_bound() const;
  /// Takes the values of such parameters into the flat buffer (rounded to the working dtype) and
  /// makes them views of it again. Throws ShapeError if one has another number of elements.
  void rebind();

  /// Allocates zero-filled states until there are `count`; those there are stay.
  void allocate_states(int count);

  /// The owned elements to update when the parameters flagged in `touched` have gradients, as few
  /// runs as possible; `steps_applied()` numbers them.
  std::vector<UpdateRun> update_runs(const std::vector<char>& touched) const;
  /// The owned runs that `update_runs` leaves out.
  std::vector<ShardRange> untouched_runs(const std::vector<char>& touched) const;
  /// Counts one applied update of the flagged parameters.
  void count_update(const std::vector<char>& touched);
  const std::vector<int64_t>& steps_applied() const noexcept { return steps_applied_; }

  /// weights[run] ← round(master[run]) for a run inside owned().
  void cast_master(ShardRange run);
  /// master ← weight for owned elements whose working weight is not round(master).
  void adopt_weights();

 private:
  void bind(size_t index, Communicator& communicator);
  bool is_bound(size_t index) const;

  std::vector<NamedParameter> parameters_;
  GroupLayout layout_;
  ShardRange share_;
  ShardRange owned_;
  at::Tensor weights_;
  at::Tensor master_;
  std::vector<at::Tensor> states_;
  std::shared_ptr<GradSink> sink_;
  std::vector<int64_t> steps_applied_;  // per parameter, as torch.optim counts
};

}  // namespace zerosharp
