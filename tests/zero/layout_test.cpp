// Planning of flat buffers and shards.
#include "zero/layout.h"

#include <gtest/gtest.h>

#include "kernels/error.h"

namespace zerosharp {
namespace {

TEST(Layout, ShardsCoverTheBufferOnceAndInOrder) {
  for (const int world : {1, 2, 3, 8}) {
    for (const int64_t numel : {0, 1, 7, 64, 1000}) {
      for (const int64_t align : {1, 4, 64}) {
        SCOPED_TRACE(testing::Message() << world << " ranks, " << numel << ", align " << align);
        const GroupLayout layout = plan_group({numel}, world, align);
        int64_t next = 0;
        for (int rank = 0; rank < world; ++rank) {
          const ShardRange shard = layout.shard(rank);
          EXPECT_EQ(shard.begin, next);
          EXPECT_EQ(shard.begin % align, 0);
          EXPECT_EQ(shard.size(), layout.shard_numel());
          next = shard.end;
        }
        EXPECT_EQ(next, layout.padded_numel);
        EXPECT_GE(next, numel);
        EXPECT_LT(next - numel, world * align);
      }
    }
  }
}

TEST(Layout, ParametersLieBackToBackAndZeroSizesTakeNoRoom) {
  const GroupLayout layout = plan_group({3, 0, 5, 1, 0}, 2);
  EXPECT_EQ(layout.offsets, (std::vector<int64_t>{0, 3, 3, 8, 9}));
  EXPECT_EQ(layout.numel, 9);
  EXPECT_EQ(layout.padded_numel, 10);
}

TEST(Layout, MoreRanksThanElements) {
  const GroupLayout layout = plan_group({2, 1}, 8);
  EXPECT_EQ(layout.shard_numel(), 1);
  EXPECT_EQ(layout.padded_numel, 8);  // ranks 3 … 7 own padding alone
  EXPECT_EQ(layout.shard(7).begin, 7);
  EXPECT_EQ(plan_group({}, 8).padded_numel, 0);
  EXPECT_EQ(plan_group({0, 0}, 8).shard_numel(), 0);
}

// DeepSpeed #7640: counts beyond 2^31.
TEST(Layout, CountsAre64Bit) {
  const GroupLayout layout = plan_group({int64_t{65536} * 40000, 7}, 4);
  EXPECT_EQ(layout.numel, 2'621'440'007);
  EXPECT_EQ(layout.shard_numel(), 655'360'002);
  EXPECT_EQ(layout.offsets[1], 2'621'440'000);
  EXPECT_EQ(layout.shard(3).end, 4 * int64_t{655'360'002});
  EXPECT_EQ(layout.padded_numel - layout.numel, 1);
}

TEST(Layout, BadArgumentsAreNamed) {
  EXPECT_THROW((void)plan_group({1}, 0), ShapeError);
  EXPECT_THROW((void)plan_group({1}, 1, 0), ShapeError);
  EXPECT_THROW((void)plan_group({1, -2}, 1), ShapeError);
  EXPECT_THROW((void)plan_group({int64_t{1} << 62, 1}, 1), ShapeError);
}

}  // namespace
}  // namespace zerosharp
