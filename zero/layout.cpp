#include "zero/layout.h"

#include "kernels/error.h"

namespace zerosharp {
namespace {

constexpr int64_t kMaxNumel = int64_t{1} << 62;

}  // namespace

GroupLayout plan_group(const std::vector<int64_t>& numels, int world, int64_t align) {
  if (world < 1) fail_shape("plan_group: world must be at least 1, got ", world);
  if (align < 1) fail_shape("plan_group: align must be at least 1, got ", align);

  GroupLayout layout;
  layout.world = world;
  layout.numels = numels;
  layout.offsets.reserve(numels.size());
  for (size_t i = 0; i < numels.size(); ++i) {
    if (numels[i] < 0) {
      fail_shape("plan_group: parameter ", i, " has a negative element count, ", numels[i]);
    }
    if (numels[i] > kMaxNumel - layout.numel) {
      fail_shape("plan_group: more than 2^62 elements at parameter ", i);
    }
    layout.offsets.push_back(layout.numel);
    layout.numel += numels[i];
  }
  const int64_t per_rank = (layout.numel + world - 1) / world;
  const int64_t shard = (per_rank + align - 1) / align * align;
  layout.padded_numel = shard * world;
  return layout;
}

}  // namespace zerosharp
