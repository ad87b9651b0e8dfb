// Which samples a rank sees in which step.
#pragma once
#include <cstdint>
#include <vector>

namespace zerosharp {

/// A stateless order of samples: a stream of permutations of [0, num_samples), a new one every
/// epoch, cut into global batches one after the other (a batch may reach into the next epoch). The
/// samples of a step depend on the seed and the global batch only, not on ranks or accumulation;
/// over all ranks each epoch is covered exactly once.
class Sampler {
 public:
  /// Throws ConfigError if `global_batch` is not micro_batch · accumulation · world, if `rank` is
  /// outside [0, world), or if there are fewer samples than ranks or than one global batch.
  Sampler(int64_t num_samples, int64_t global_batch, int rank, int world, int64_t micro_batch,
          int64_t accumulation, uint64_t seed, bool shuffle);

  /// Sample indices of micro-batch `micro` (below accumulation) of `step`, both 0-based, on this
  /// rank. Steps may be asked for in any order; a new epoch costs one shuffle of num_samples
  /// indices.
  std::vector<int64_t> indices(int64_t step, int64_t micro);

  int64_t num_samples() const noexcept { return num_samples_; }
  /// Epochs completed when `steps` steps are done.
  double epochs(int64_t steps) const noexcept;

 private:
  int64_t sample_at(int64_t position);
  void load_epoch(int64_t epoch);

  int64_t num_samples_;
  int64_t global_batch_;
  int rank_;
  int world_;
  int64_t micro_batch_;
  uint64_t seed_;
  bool shuffle_;
  int64_t epoch_ = -1;
  std::vector<int64_t> order_;  // of the epoch loaded last
};

}  // namespace zerosharp
