#include "engine/data/sampler.h"

#include <numeric>
#include <utility>

#include "kernels/error.h"

namespace zerosharp {
namespace {

/// SplitMix64 (Steele et al. 2014): the same numbers on every platform, unlike std distributions.
class SplitMix {
 public:
  explicit SplitMix(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  /// Uniform in [0, bound) without bias (rejection of the incomplete last interval).
  uint64_t below(uint64_t bound) {
    const uint64_t limit = UINT64_MAX - UINT64_MAX % bound;
    uint64_t value = next();
    while (value >= limit) value = next();
    return value % bound;
  }

 private:
  uint64_t state_;
};

}  // namespace

Sampler::Sampler(int64_t num_samples, int64_t global_batch, int rank, int world,
                 int64_t micro_batch, int64_t accumulation, uint64_t seed, bool shuffle)
    : num_samples_(num_samples),
      global_batch_(global_batch),
      rank_(rank),
      world_(world),
      micro_batch_(micro_batch),
      seed_(seed),
      shuffle_(shuffle) {
  if (micro_batch < 1 || accumulation < 1 || world < 1 ||
      micro_batch * accumulation * world != global_batch) {
    fail_config("train_batch_size ", global_batch, " is not train_micro_batch_size_per_gpu ",
                micro_batch, " * gradient_accumulation_steps ", accumulation, " * ", world,
                " ranks");
  }
  if (rank < 0 || rank >= world) {
    fail_config("rank ", rank, " is outside [0, ", world, "), the ranks of the run");
  }
  if (num_samples < world) {
    fail_config("the data set has ", num_samples, " samples for ", world,
                " ranks; use fewer ranks or more data (data.path)");
  }
  if (num_samples < global_batch) {
    fail_config("the data set has ", num_samples, " samples, fewer than train_batch_size ",
                global_batch, "; lower the batch size or use more data (data.path)");
  }
}

std::vector<int64_t> Sampler::indices(int64_t step, int64_t micro) {
  // Micro-batches are consecutive runs of the global batch, interleaved over ranks.
  const int64_t first = step * global_batch_ + (micro * world_ + rank_) * micro_batch_;
  std::vector<int64_t> samples(static_cast<size_t>(micro_batch_));
  for (int64_t i = 0; i < micro_batch_; ++i) {
    samples[static_cast<size_t>(i)] = sample_at(first + i);
  }
  return samples;
}

int64_t Sampler::sample_at(int64_t position) {
  const int64_t epoch = position / num_samples_;
  const int64_t offset = position % num_samples_;
  if (!shuffle_) return offset;
  if (epoch != epoch_) load_epoch(epoch);
  return order_[static_cast<size_t>(offset)];
}

void Sampler::load_epoch(int64_t epoch) {
  order_.resize(static_cast<size_t>(num_samples_));
  std::iota(order_.begin(), order_.end(), int64_t{0});
  SplitMix mixer(seed_);
  SplitMix random(mixer.next() ^ static_cast<uint64_t>(epoch) * 0xD1342543DE82EF95ull);
  for (size_t i = order_.size() - 1; i > 0; --i) {  // Fisher–Yates
    std::swap(order_[i], order_[random.below(i + 1)]);
  }
  epoch_ = epoch;
}

double Sampler::epochs(int64_t steps) const noexcept {
  return static_cast<double>(steps) * static_cast<double>(global_batch_) /
         static_cast<double>(num_samples_);
}

}  // namespace zerosharp
