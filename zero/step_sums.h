// The few numbers of one optimizer step that cross ranks, kept on the device and reduced in one
// small all-reduce; the host learns them only when it asks.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "zero/communicator.h"

namespace zerosharp {

class StepSums {
 public:
  /// kMoved … kPerturbation are kernels::perturb's statistics. kAscentLoss, kAscentNorm and
  /// kExpectedGap are SAM's first-pass loss, the norm ρ was measured by and the rise ⟨g, e⟩ it
  /// promises, summed over ranks. kDot … kSecond are kernels::dots of the gradient with a vector
  /// kept on the shard (⟨x, y⟩, ‖x‖², ‖y‖²). kNumFailed counts ranks whose closure threw,
  /// kFailedRanks adds up their numbers.
  enum Slot : int64_t {
    kSumSquares,
    kNonFinite,
    kDirection,  ///< ‖t²·g‖², where SAM weights g
    kLoss,
    kMoved,
    kRealised,
    kPerturbation,
    kAscentLoss,
    kAscentNorm,
    kExpectedGap,
    kDot,
    kFirst,
    kSecond,
    kNumFailed,
    kFailedRanks,
    kNumSlots
  };
  enum Factor : int64_t {
    kGradScale,
    kNorm,
    kAscent,     ///< e = kAscent·(t²·)g …
    kAscentRaw,  ///< … and the norm it was divided by, of the unscaled gradient
    kMatrix,     ///< four numbers for kernels::mix
    kNumFactors = kMatrix + 4
  };

  /// Room for the slots and for one "has a gradient" flag per parameter.
  StepSums(int64_t num_parameters, at::Device device);
  ~StepSums();

  /// Zeroes the slots and flags; the factors stay.
  void clear();
  /// kLoss += loss (a scalar tensor on the device); a non-finite loss also counts as kNonFinite.
  void add_loss(const at::Tensor& loss);
  /// Counts this rank as failed, and as non-finite so that the step is skipped.
  void mark_failed(int rank);
  void set_touched(const std::vector<char>& touched);
  void all_reduce(Communicator& communicator);
  /// this[to] += other[from], on the device.
  void add_slot(Slot to, const StepSums& other, Slot from);
  /// Takes over all slots and flags of `other`.
  void assign(const StepSums& other);
  /// The slot as a tensor of no dimensions, fp64, for arithmetic on the device.
  at::Tensor slot_tensor(Slot which) const;
  at::Tensor factor_tensor(Factor which) const;
  /// The matrix for kernels::mix from four fp64 tensors of no dimensions on the device; all NaN,
  /// so that mix does nothing, where anything was non-finite.
  void set_matrix(const std::array<at::Tensor, 4>& entries);

  double* slots(Slot first = kSumSquares);
  float* factors(Factor first = kGradScale);
  double* workspace();    ///< kReductionWorkspace doubles
  int64_t bytes() const;  ///< of device memory

  /// Starts copying slots, flags and factors to the host; `wait` makes them readable.
  void start_readback();
  void wait_readback();
  /// The flags as of now, for a rank that lacks some gradient itself (waits for the device).
  std::vector<char> read_touched();

  // After wait_readback():
  double slot(Slot which) const;
  float factor(Factor which) const;

 private:
  int64_t num_parameters_;
  at::Device device_;
  at::Tensor sums_;       // fp64: slots, then flags
  at::Tensor factors_;    // fp32
  at::Tensor workspace_;  // fp64
  at::Tensor flags_;      // host staging of the flags (pinned for CUDA)
  at::Tensor host_sums_;
  at::Tensor host_factors_;
  struct Event;
  std::unique_ptr<Event> copied_;
};

}  // namespace zerosharp
