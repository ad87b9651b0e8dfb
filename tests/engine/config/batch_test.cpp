// The batch arithmetic against DeepSpeed's table: total = micro · accumulation · ranks.
#include "engine/config/batch.h"

#include <limits>

#include "tests/engine/config/parse.h"

namespace zerosharp {
namespace {

using testing::expect_parts;

struct BatchCase {
  BatchConfig given;
  int world;
  BatchConfig derived;
};

TEST(Batch, FillsInWhatIsMissing) {
  const BatchCase cases[] = {
      {{32, 16, 1}, 2, {32, 16, 1}},                               // all three
      {{32, 8, 2}, 2, {32, 8, 2}},   {{32, 4, 0}, 2, {32, 4, 4}},  // total and micro
      {{32, 0, 4}, 2, {32, 4, 4}},                                 // total and accumulation
      {{0, 4, 4}, 2, {32, 4, 4}},                                  // micro and accumulation
      {{32, 0, 0}, 2, {32, 16, 1}},  {{0, 4, 0}, 2, {8, 4, 1}},         {{0, 2, 2}, 2, {8, 2, 2}},
      {{1, 0, 0}, 1, {1, 1, 1}},     {{9792, 0, 9}, 64, {9792, 17, 9}},
  };
  for (const BatchCase& c : cases) {
    SCOPED_TRACE(::testing::Message()
                 << c.given.train_batch_size << ", " << c.given.micro_batch_size << ", "
                 << c.given.accumulation_steps << " over " << c.world);
    const BatchConfig batch = derive_batch(c.given, c.world);
    EXPECT_EQ(batch.train_batch_size, c.derived.train_batch_size);
    EXPECT_EQ(batch.micro_batch_size, c.derived.micro_batch_size);
    EXPECT_EQ(batch.accumulation_steps, c.derived.accumulation_steps);
  }
}

std::string refusal(const BatchConfig& given, int world) {
  try {
    derive_batch(given, world);
  } catch (const ConfigError& error) {
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return {};
}

TEST(Batch, ShowsTheArithmeticThatDoesNotFit) {
  expect_parts(refusal({8, 2, 1}, 2),
               {"train_batch_size 8 != 2 * 1 * 2", "world size 2", "start 4 rank(s)"});
  expect_parts(refusal({32, 18, 1}, 2), {"32 != 18 * 1 * 2"});
  EXPECT_EQ(refusal({32, 18, 1}, 2).find("start"), std::string::npos);  // no number of ranks fits
  expect_parts(refusal({33, 17, 0}, 2), {"gradient_accumulation_steps would be 0",
                                         "33 / train_micro_batch_size_per_gpu 17", "world size 2"});
  expect_parts(refusal({33, 0, 0}, 2),
               {"train_micro_batch_size_per_gpu", "33 / 2", "remainder of 1", "a multiple of 2"});
  expect_parts(refusal({2, 0, 0}, 4),
               {"train_micro_batch_size_per_gpu would be 0", "world size 4"});
}

TEST(Batch, RefusesWhatNeedsNoArithmetic) {
  const std::string needed = "one of train_batch_size and train_micro_batch_size_per_gpu is needed";
  expect_parts(refusal({0, 0, 0}, 2), {needed.c_str()});
  expect_parts(refusal({0, 0, 4}, 2), {needed.c_str()});
  expect_parts(refusal({8, 0, 0}, 0), {"at least 1 rank", "0"});
  expect_parts(refusal({-8, 0, 0}, 2), {"train_batch_size must be greater than 0, got -8"});
  expect_parts(refusal({0, -1, 0}, 2), {"train_micro_batch_size_per_gpu", "-1"});
  expect_parts(refusal({8, 0, -2}, 2), {"gradient_accumulation_steps", "-2"});
}

TEST(Batch, NeverOverflows) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  expect_parts(refusal({0, most, 1}, 2), {"does not fit in 64 bits"});
  expect_parts(refusal({0, most / 2, 3}, 1), {"does not fit in 64 bits"});
  expect_parts(refusal({8, 0, most}, 2), {"does not fit in 64 bits"});
  expect_parts(refusal({8, most, most}, 2), {"does not fit in 64 bits"});
  EXPECT_EQ(derive_batch({most, 0, 0}, 1).micro_batch_size, most);
}

TEST(Batch, ErrorsPointToTheFile) {
  expect_parts(testing::error_of("{\n  \"train_batch_size\": 33\n}"),
               {"run.json:2:3: train_micro_batch_size_per_gpu would not be whole"});
  expect_parts(testing::error_of("{}"), {"run.json: ", "is needed"});
  expect_parts(testing::error_of(R"({"train_batch_size": 0})"),
               {"run.json:1:2: train_batch_size: must be an integer of at least 1, got 0"});
  expect_parts(testing::error_of(R"({"train_batch_size": "32"})"), {"integer", "got \"32\""});
}

}  // namespace
}  // namespace zerosharp
