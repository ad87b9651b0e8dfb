// What lies where: planning of flat buffers and shards from element counts alone.
#pragma once
#include <cstdint>
#include <vector>

namespace zerosharp {

/// A half-open run of elements of one flat buffer.
struct ShardRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const noexcept { return end - begin; }
};

/// Places of the parameters of one group in its flat buffer.
struct GroupLayout {
  std::vector<int64_t> offsets;  ///< first element of each parameter
  std::vector<int64_t> numels;
  int64_t numel = 0;         ///< elements of all parameters
  int64_t padded_numel = 0;  ///< multiple of world · align; the tail is padding
  int world = 1;

  int64_t shard_numel() const noexcept { return padded_numel / world; }
  ShardRange shard(int rank) const noexcept {
    return {rank * shard_numel(), (rank + 1) * shard_numel()};
  }
};

/// Packs parameters of `numels` elements back to back in order and splits the buffer into `world`
/// equal shards whose length is a multiple of `align`. Zero-element parameters take no room.
/// Throws ShapeError if a count is negative, `world` < 1, `align` < 1 or a total exceeds 2^62.
[[nodiscard]] GroupLayout plan_group(const std::vector<int64_t>& numels, int world,
                                     int64_t align = 1);

}  // namespace zerosharp
