// From data sets to tensors: shapes, values, ranks side by side, evaluation that wraps around.
#include "engine/data/batches.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <vector>

#include "tests/engine/data/data_fixture.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;

using Batches = DataTest;

Config batch_config(int world, int64_t micro_batch, int64_t accumulation = 1) {
  Config config;
  config.batch.micro_batch_size = micro_batch;
  config.batch.accumulation_steps = accumulation;
  config.batch.train_batch_size = micro_batch * accumulation * world;
  config.data.shuffle = false;
  return config;
}

Config text_config(const std::string& path, int world, int64_t micro_batch) {
  Config config = batch_config(world, micro_batch);
  config.data.paths = {path};
  config.data.validation_fraction = 0.5;
  config.model.block_size = 2;
  return config;
}

at::Tensor longs(const std::vector<int64_t>& values) { return at::tensor(values, at::kLong); }

/// The bytes of `batch` row by row, as text.
std::string text_of(const at::Tensor& batch) {
  std::string text;
  const at::Tensor flat = batch.contiguous().view({-1});
  for (int64_t i = 0; i < flat.numel(); ++i) text += static_cast<char>(flat[i].item<int64_t>());
  return text;
}

TEST_F(Batches, TextIsDealtToRanksSideBySide) {
  const Config config = text_config(write("a", "abcdefghijklmnopqr"), 2, 2);  // 9 bytes each part
  for (const int rank : {0, 1}) {
    const auto batches = open_batches(config, rank, 2, at::kCPU);
    EXPECT_EQ(batches->num_train_samples(), 4);
    EXPECT_EQ(batches->num_eval_samples(), 4);
    EXPECT_EQ(batches->tokens_per_sample(), 2);
    const Batch batch = batches->train_batch(0, 0);
    EXPECT_EQ(batch.inputs.sizes(), (at::IntArrayRef{2, 2}));
    EXPECT_EQ(batch.inputs.scalar_type(), at::kLong);
    EXPECT_EQ(text_of(batch.inputs), rank == 0 ? "abcd" : "efgh");
    EXPECT_EQ(text_of(batch.targets), rank == 0 ? "bcde" : "fghi");
    const Batch eval = batches->eval_batch(3);  // the fourth round: wrapped around three times
    EXPECT_EQ(text_of(eval.inputs), rank == 0 ? "jklm" : "nopq");
    EXPECT_EQ(text_of(eval.targets), rank == 0 ? "klmn" : "opqr");
    EXPECT_EQ(batches->prompt(), "jklmnopqr");
    EXPECT_EQ(batches->describe(), "9 training bytes (4 windows of 2), 9 evaluation bytes");
  }
}

TEST_F(Batches, AskingTwiceGivesTheSame) {
  Config config = text_config(write("a", std::string(100, 'x') + std::string(100, 'y')), 1, 4);
  config.data.shuffle = true;
  const auto batches = open_batches(config, 0, 1, at::kCPU);
  for (const int64_t step : {0, 40, 3}) {
    const Batch first = batches->train_batch(step, 0);
    batches->train_batch(step + 30, 0);
    EXPECT_TRUE(at::equal(batches->train_batch(step, 0).inputs, first.inputs));
  }
}

TEST_F(Batches, NothingToEvaluateOnIsSaid) {
  Config config = text_config(write("a", "abcdefgh"), 1, 1);
  config.data.validation_fraction = 0;
  const auto batches = open_batches(config, 0, 1, at::kCPU);
  EXPECT_EQ(batches->num_eval_samples(), 0);
  EXPECT_TRUE(std::isnan(batches->baseline_loss()));
  EXPECT_EQ(
      message_of([&] { batches->eval_batch(0); }),
      "nothing is kept for evaluation: data.validation_fraction is 0 and data.test_path is not "
      "set; set one of them");
}

TEST_F(Batches, TextNeedsAKindForEveryByte) {
  Config config = text_config(write("a", "abcdefgh"), 1, 1);
  config.model.vocab_size = 255;
  EXPECT_EQ(message_of([&] { open_batches(config, 0, 1, at::kCPU); }),
            "model.vocab_size must be at least 256 for data.type text (bytes), got 255");
}

TEST_F(Batches, ArraysAreDealtByMicroBatchAndRank) {
  const at::Tensor inputs = at::arange(16, at::kFloat).view({8, 2});
  const at::Tensor targets = at::arange(8, at::kLong);
  const Config config = batch_config(/*world=*/2, /*micro_batch=*/2, /*accumulation=*/2);
  const auto batches = array_batches(inputs, targets, config, /*rank=*/1, /*world=*/2);
  EXPECT_TRUE(at::equal(batches->train_batch(0, 0).targets, longs({2, 3})));
  EXPECT_TRUE(at::equal(batches->train_batch(0, 1).targets, longs({6, 7})));
  EXPECT_TRUE(at::equal(batches->train_batch(0, 1).inputs, inputs.narrow(0, 6, 2)));
  EXPECT_TRUE(at::equal(batches->eval_batch(1).targets, longs({6, 7})));
  const auto singles = array_batches(inputs, targets, batch_config(2, 1), 1, 2);
  EXPECT_TRUE(at::equal(singles->eval_batch(1).targets, longs({3})));
  EXPECT_EQ(batches->num_eval_samples(), 8);
  EXPECT_TRUE(std::isnan(batches->baseline_loss()));
  EXPECT_EQ(batches->prompt(), "");
  EXPECT_THROW(array_batches(inputs, at::arange(7), config, 0, 2), ShapeError);
}

TEST_F(Batches, ImagesAreScaledToOne) {
  const auto number = [](char value) { return std::string(3, '\0') + value; };
  const std::string side = number(28);
  for (const std::string prefix : {"train", "t10k"}) {
    std::string pixels(2 * 28 * 28, '\0');
    pixels[1] = '\x33';  // 51 = 0.2 · 255
    pixels[28 * 28] = '\xff';
    write(prefix + "-images-idx3-ubyte",
          std::string("\0\0\x08\x03", 4) + number(2) + side + side + pixels);
    write(prefix + "-labels-idx1-ubyte", std::string("\0\0\x08\x01", 4) + number(2) + "\x07\x02");
  }
  Config config = batch_config(1, 2);
  config.data.type = "fashion_mnist";
  config.data.paths = {folder()};
  const Batch batch = open_batches(config, 0, 1, at::kCPU)->train_batch(0, 0);
  EXPECT_EQ(batch.inputs.sizes(), (at::IntArrayRef{2, 1, 28, 28}));
  EXPECT_EQ(batch.inputs.scalar_type(), at::kFloat);
  EXPECT_EQ(batch.inputs[0][0][0][1].item<float>(), 51.0f / 255.0f);
  EXPECT_EQ(batch.inputs[1][0][0][0].item<float>(), 1.0f);
  EXPECT_EQ(batch.inputs.count_nonzero().item<int64_t>(), 2);
  EXPECT_TRUE(at::equal(batch.targets, longs({7, 2})));
  config.data.paths = {folder(), folder()};
  EXPECT_EQ(message_of([&] { open_batches(config, 0, 1, at::kCPU); }),
            "data.path must name the one folder that holds the Fashion-MNIST files");
}

}  // namespace
}  // namespace zerosharp
