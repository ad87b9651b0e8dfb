// Samplers and readers: every epoch is covered once whatever the ranks, and each bad file has its
// message.
#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "engine/data/fashion_mnist.h"
#include "engine/data/sampler.h"
#include "engine/data/text.h"
#include "kernels/error.h"

namespace zerosharp {
namespace {

using Indices = std::vector<int64_t>;

/// What a ConfigError thrown by `body` says; "" if nothing was thrown.
template <class Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

/// A folder that is empty at the start of each test and gone at its end.
class DataTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              ("zerosharp_data_test_" + std::string(test->name()) + std::to_string(getpid()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string folder() const { return folder_.string(); }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }

 private:
  std::filesystem::path folder_;
};

// ---- Sampler

struct Split {
  int world;
  int64_t accumulation;
  int64_t micro_batch;
};

constexpr int64_t kGlobalBatch = 48;  // a multiple of every world · accumulation below

/// Every way to cut the global batch into 1 to 4 ranks and 1, 2 or 4 micro-batches.
std::vector<Split> all_splits() {
  std::vector<Split> splits;
  for (const int world : {1, 2, 3, 4}) {
    for (const int64_t accumulation : {1, 2, 4}) {
      splits.push_back({world, accumulation, kGlobalBatch / (world * accumulation)});
    }
  }
  return splits;
}

/// The samples of `step` over all ranks, in the order of the global batch.
Indices global_batch(const Split& split, int64_t num_samples, int64_t step, uint64_t seed,
                     bool shuffle = true) {
  std::vector<Sampler> ranks;
  for (int rank = 0; rank < split.world; ++rank) {
    ranks.emplace_back(num_samples, kGlobalBatch, rank, split.world, split.micro_batch,
                       split.accumulation, seed, shuffle);
  }
  Indices batch;
  for (int64_t micro = 0; micro < split.accumulation; ++micro) {
    for (Sampler& rank : ranks) {
      const Indices part = rank.indices(step, micro);
      EXPECT_EQ(static_cast<int64_t>(part.size()), split.micro_batch);
      batch.insert(batch.end(), part.begin(), part.end());
    }
  }
  return batch;
}

/// The permutation of epoch `epoch`, asked for one sample a step.
Indices epoch_order(int64_t num_samples, int64_t epoch, uint64_t seed) {
  Sampler sampler(num_samples, 1, 0, 1, 1, 1, seed, true);
  Indices order;
  for (int64_t i = 0; i < num_samples; ++i) {
    order.push_back(sampler.indices(epoch * num_samples + i, 0).front());
  }
  return order;
}

TEST(Sampler, CoversEveryEpochExactlyOnceOverAllRanks) {
  for (const int64_t num_samples : {48, 96, 100, 101}) {  // the last two do not divide
    for (const Split& split : all_splits()) {
      SCOPED_TRACE(testing::Message() << num_samples << " samples, " << split.world << " ranks, "
                                      << split.accumulation << " micro-batches");
      constexpr int64_t kEpochs = 3;
      Indices stream;
      for (int64_t step = 0; static_cast<int64_t>(stream.size()) < kEpochs * num_samples; ++step) {
        const Indices batch = global_batch(split, num_samples, step, 5);
        stream.insert(stream.end(), batch.begin(), batch.end());
      }
      for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
        Indices seen(stream.begin() + epoch * num_samples,
                     stream.begin() + (epoch + 1) * num_samples);
        std::sort(seen.begin(), seen.end());
        Indices all(static_cast<size_t>(num_samples));
        std::iota(all.begin(), all.end(), int64_t{0});
        EXPECT_EQ(seen, all) << "epoch " << epoch;
      }
    }
  }
}

TEST(Sampler, GlobalBatchDependsNeitherOnRanksNorOnAccumulation) {
  constexpr int64_t kSamples = 100;  // step 2 reaches into the second epoch
  for (const int64_t step : {0, 1, 2, 7}) {
    const Indices whole = global_batch({1, 1, kGlobalBatch}, kSamples, step, 9);
    for (const Split& split : all_splits()) {
      EXPECT_EQ(global_batch(split, kSamples, step, 9), whole)
          << "step " << step << ", " << split.world << " ranks, " << split.accumulation
          << " micro-batches";
    }
  }
}

TEST(Sampler, OrderChangesEveryEpochAndRepeatsInASecondRun) {  // case B115
  for (const int64_t rank : {0, 1}) {
    std::vector<std::vector<Indices>> runs;
    for (int run = 0; run < 2; ++run) {
      Sampler sampler(8, 2, static_cast<int>(rank), 2, 1, 1, 7, true);
      std::vector<Indices> epochs(3);
      for (int64_t step = 0; step < 12; ++step) {
        epochs[static_cast<size_t>(step / 4)].push_back(sampler.indices(step, 0).front());
      }
      EXPECT_FALSE(epochs[0] == epochs[1] && epochs[1] == epochs[2]);
      runs.push_back(epochs);
    }
    EXPECT_EQ(runs[0], runs[1]);
  }
}

TEST(Sampler, StepsCanBeAskedForInAnyOrder) {
  Sampler forward(10, 4, 0, 1, 4, 1, 3, true);
  Sampler backward(10, 4, 0, 1, 4, 1, 3, true);
  std::vector<Indices> expected;
  for (int64_t step = 0; step < 20; ++step) expected.push_back(forward.indices(step, 0));
  for (int64_t step = 19; step >= 0; --step) {
    EXPECT_EQ(backward.indices(step, 0), expected[static_cast<size_t>(step)]);
  }
}

TEST(Sampler, SeedDecidesTheOrder) {
  std::set<Indices> orders;
  for (uint64_t seed = 0; seed < 20; ++seed) orders.insert(epoch_order(50, 0, seed));
  EXPECT_EQ(orders.size(), 20u);
}

TEST(Sampler, WithoutShuffleSamplesComeInOrder) {
  Sampler sampler(5, 3, 0, 1, 3, 1, 1, false);
  EXPECT_EQ(sampler.indices(0, 0), (Indices{0, 1, 2}));
  EXPECT_EQ(sampler.indices(1, 0), (Indices{3, 4, 0}));
  EXPECT_EQ(sampler.indices(2, 0), (Indices{1, 2, 3}));
}

TEST(Sampler, EveryPermutationIsEquallyLikely) {
  // 24 permutations of 4 samples in 24 000 epochs of one seed and of as many seeds. Pearson's
  // statistic has 23 degrees of freedom: mean 23, variance 46; a fair shuffle exceeds 23 +
  // 6·sqrt(46) = 63.7 with probability 1e-5, and the seeds are fixed. The naive swap with any
  // position gives > 1000.
  constexpr int kDraws = 24000;
  for (const bool by_epoch : {true, false}) {
    std::map<Indices, int> counts;
    Sampler one(4, 4, 0, 1, 4, 1, 11, true);
    for (int i = 0; i < kDraws; ++i) {
      ++counts[by_epoch ? one.indices(i, 0)
                        : Sampler(4, 4, 0, 1, 4, 1, static_cast<uint64_t>(i), true).indices(0, 0)];
    }
    EXPECT_EQ(counts.size(), 24u);
    double statistic = 0;
    for (const auto& [order, count] : counts) {
      statistic += (count - kDraws / 24.0) * (count - kDraws / 24.0) / (kDraws / 24.0);
    }
    EXPECT_LT(statistic, 63.7) << (by_epoch ? "over epochs" : "over seeds");
  }
}

TEST(Sampler, EpochsAreCountedInGlobalBatches) {
  const Sampler sampler(100, 40, 0, 2, 20, 1, 1, true);
  EXPECT_DOUBLE_EQ(sampler.epochs(0), 0.0);
  EXPECT_DOUBLE_EQ(sampler.epochs(5), 2.0);
  EXPECT_EQ(sampler.num_samples(), 100);
}

TEST(Sampler, RefusesWhatCannotBeDealt) {
  EXPECT_EQ(message_of([] { Sampler(3, 4, 0, 4, 1, 1, 1, true); }),
            "the data set has 3 samples for 4 ranks; use fewer ranks or more data (data.path)");
  EXPECT_EQ(
      message_of([] { Sampler(7, 8, 0, 2, 2, 2, 1, true); }),
      "the data set has 7 samples, fewer than train_batch_size 8; lower the batch size or use "
      "more data (data.path)");
  EXPECT_EQ(message_of([] { Sampler(0, 1, 0, 1, 1, 1, 1, true); }),
            "the data set has 0 samples for 1 ranks; use fewer ranks or more data (data.path)");
  EXPECT_EQ(message_of([] { Sampler(99, 9, 0, 2, 2, 2, 1, true); }),
            "train_batch_size 9 is not train_micro_batch_size_per_gpu 2 * "
            "gradient_accumulation_steps 2 * 2 ranks");
  EXPECT_EQ(message_of([] { Sampler(99, 0, 0, 0, 1, 1, 1, true); }),
            "train_batch_size 0 is not train_micro_batch_size_per_gpu 1 * "
            "gradient_accumulation_steps 1 * 0 ranks");
  EXPECT_EQ(message_of([] { Sampler(99, 8, 2, 2, 2, 2, 1, true); }),
            "rank 2 is outside [0, 2), the ranks of the run");
}

// ---- Text

using Text = DataTest;

DataConfig text_config(std::vector<std::string> paths, double fraction = 0.0) {
  DataConfig config;
  config.paths = std::move(paths);
  config.validation_fraction = fraction;
  return config;
}

/// Inputs and targets of a window, as text.
std::array<std::string, 2> window(const TextDataset& text, int64_t index, int64_t block,
                                  bool train) {
  Indices inputs(static_cast<size_t>(block));
  Indices targets(static_cast<size_t>(block));
  train ? text.train_window(index, inputs.data(), targets.data())
        : text.eval_window(index, inputs.data(), targets.data());
  return {std::string(inputs.begin(), inputs.end()), std::string(targets.begin(), targets.end())};
}

TEST_F(Text, WindowsFollowEachOtherAndTargetsAreOneByteAhead) {
  const TextDataset text(text_config({write("a", "abcdefghijk")}), 3);
  // 11 bytes: windows at 0, 3 and 6 need 4 bytes each; one at 9 would need the bytes 9 to 12.
  ASSERT_EQ(text.num_train_windows(), 3);
  EXPECT_EQ(text.num_eval_windows(), 0);
  EXPECT_EQ(window(text, 0, 3, true), (std::array<std::string, 2>{"abc", "bcd"}));
  EXPECT_EQ(window(text, 1, 3, true), (std::array<std::string, 2>{"def", "efg"}));
  EXPECT_EQ(window(text, 2, 3, true), (std::array<std::string, 2>{"ghi", "hij"}));
  EXPECT_THROW(window(text, 3, 3, true), std::out_of_range);
  EXPECT_THROW(window(text, -1, 3, true), std::out_of_range);
}

TEST_F(Text, LengthsThatFitExactlyAreUsedWhole) {
  for (const auto& [bytes, windows] : {std::pair{4, 1}, {6, 1}, {7, 2}, {9, 2}, {10, 3}}) {
    const TextDataset text(text_config({write("a", std::string(static_cast<size_t>(bytes), 'x'))}),
                           3);
    EXPECT_EQ(text.num_train_windows(), windows) << bytes << " bytes";
  }
}

TEST_F(Text, BytesAreNotCharacters) {
  const TextDataset text(text_config({write("a", std::string("\xff\x00\x80", 3))}), 2);
  int64_t inputs[2], targets[2];
  text.train_window(0, inputs, targets);
  EXPECT_EQ(inputs[0], 255);
  EXPECT_EQ(inputs[1], 0);
  EXPECT_EQ(targets[0], 0);
  EXPECT_EQ(targets[1], 128);
}

TEST_F(Text, TheEndOfEachFileIsKeptAndNoWindowCrossesABorder) {
  const DataConfig config =
      text_config({write("a", "aaaaaaaaAAAA"), write("b", "bbbbbbBBB")}, 0.34);
  const TextDataset text(config, 2);  // keeps floor(12 · 0.34) = 4 and floor(9 · 0.34) = 3 bytes
  EXPECT_EQ(text.num_train_bytes(), 14);
  EXPECT_EQ(text.num_eval_bytes(), 7);
  EXPECT_EQ(text.num_train_windows(), 3 + 2);
  EXPECT_EQ(text.num_eval_windows(), 1 + 1);
  for (const bool train : {true, false}) {
    const int64_t count = train ? text.num_train_windows() : text.num_eval_windows();
    for (int64_t i = 0; i < count; ++i) {
      const auto [inputs, targets] = window(text, i, 2, train);
      const std::string all = inputs + targets;
      EXPECT_EQ(all, std::string(4, all[0]));
      EXPECT_EQ(std::isupper(all[0]) != 0, !train);
    }
  }
  EXPECT_EQ(text.eval_text(3), "AAA");
  EXPECT_EQ(text.eval_text(99), "AAAA");
}

TEST_F(Text, ASeparateTestFileLeavesAllOfTheOthersForTraining) {
  DataConfig config = text_config({write("a", "aaaaaaaa")}, 0.5);
  config.test_path = write("t", "tttt");
  const TextDataset text(config, 3);
  EXPECT_EQ(text.num_train_bytes(), 8);
  EXPECT_EQ(text.num_eval_bytes(), 4);
  EXPECT_EQ(window(text, 0, 3, false), (std::array<std::string, 2>{"ttt", "ttt"}));
}

TEST_F(Text, NothingKeptGivesNoBaselineAndAPromptFromTheTrainingPart) {
  const TextDataset text(text_config({write("a", "abcdef")}), 2);
  EXPECT_TRUE(std::isnan(text.unigram_loss()));
  EXPECT_EQ(text.eval_text(2), "ab");
}

TEST_F(Text, UnigramLossByHand) {
  // Trains on "aaab", evaluates on "abc": (count + 1) / (4 + 256) is 4/260, 2/260 and 1/260.
  DataConfig config = text_config({write("a", "aaab")});
  config.test_path = write("t", "abc");
  const double expected = -(std::log(4.0 / 260) + std::log(2.0 / 260) + std::log(1.0 / 260)) / 3;
  EXPECT_NEAR(TextDataset(config, 2).unigram_loss(), expected, 1e-14);
}

TEST_F(Text, FilesThatCannotBeUsed) {
  const auto message = [](const DataConfig& config) {
    return message_of([&] { TextDataset(config, 8); });
  };
  const std::string none = path("none");
  EXPECT_EQ(message(text_config({none})),
            "data.path: the text file " + none + " does not exist; check data.path");
  const std::string empty = write("empty", "");
  EXPECT_EQ(message(text_config({empty})), "data.path: the text file " + empty + " is empty");
  EXPECT_EQ(message(text_config({folder()})),
            "data.path: " + folder() + " is a folder; name a text file (or a list of them)");
  EXPECT_EQ(message(text_config({})), "data.path is missing; name the text file(s) to train on");
  const std::string tiny = write("tiny", "12345");
  EXPECT_EQ(message(text_config({tiny})),
            "data.path: " + tiny +
                " has 5 bytes but model.block_size 8 needs at least 9; use more "
                "text or a smaller block");
  const std::string nine = write("nine", "123456789");
  EXPECT_EQ(message(text_config({nine})), "");
  EXPECT_EQ(message(text_config({nine}, 0.5)),
            "data.path: " + nine +
                " gives 5 training bytes and 4 evaluation bytes, but "
                "model.block_size 8 needs at least 9 of each; use more text or a smaller block");
  DataConfig separate = text_config({nine});
  separate.test_path = none;
  EXPECT_EQ(message(separate),
            "data.test_path: the text file " + none + " does not exist; check data.test_path");
}

// ---- Fashion-MNIST

class FashionMnist : public DataTest {
 protected:
  static std::string big_endian(uint32_t value) {
    std::string bytes;
    for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(value >> shift & 0xFF);
    return bytes;
  }
  static std::string images(uint32_t count, uint32_t magic = 0x803, uint32_t side = 28) {
    std::string bytes = big_endian(magic) + big_endian(count) + big_endian(side) + big_endian(side);
    for (uint32_t i = 0; i < count * side * side; ++i) bytes += static_cast<char>(i % 251);
    return bytes;
  }
  static std::string labels(const std::string& values, uint32_t magic = 0x801) {
    return big_endian(magic) + big_endian(static_cast<uint32_t>(values.size())) + values;
  }
  std::string write_gz(const std::string& name, const std::string& bytes) const {
    const gzFile file = gzopen(path(name).c_str(), "wb");
    EXPECT_EQ(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())),
              static_cast<int>(bytes.size()));
    EXPECT_EQ(gzclose(file), Z_OK);
    return path(name);
  }
  std::string message() const {
    return message_of([&] { read_fashion_mnist(folder(), true); });
  }

  static constexpr const char* kImages = "train-images-idx3-ubyte";
  static constexpr const char* kLabels = "train-labels-idx1-ubyte";
};

TEST_F(FashionMnist, ReadsPlainAndCompressedFiles) {
  for (const bool compressed : {false, true}) {
    for (const bool train : {true, false}) {
      const std::string prefix = train ? "train" : "t10k";
      const auto put = [&](const std::string& name, const std::string& bytes) {
        compressed ? write_gz(name + ".gz", bytes) : write(name, bytes);
      };
      put(prefix + "-images-idx3-ubyte", images(3));
      put(prefix + "-labels-idx1-ubyte", labels(std::string("\x09\x00\x04", 3)));
      const LabelledImages read = read_fashion_mnist(folder(), train);
      EXPECT_EQ(read.count, 3);
      EXPECT_EQ(read.rows, 28);
      EXPECT_EQ(read.columns, 28);
      EXPECT_EQ(read.labels, (std::vector<uint8_t>{9, 0, 4}));
      ASSERT_EQ(read.pixels.size(), 3u * 28 * 28);
      for (size_t i = 0; i < read.pixels.size(); ++i) ASSERT_EQ(read.pixels[i], i % 251);
    }
    std::filesystem::remove(path("train-images-idx3-ubyte"));
    std::filesystem::remove(path("train-labels-idx1-ubyte"));
    std::filesystem::remove(path("t10k-images-idx3-ubyte"));
    std::filesystem::remove(path("t10k-labels-idx1-ubyte"));
  }
}

TEST_F(FashionMnist, MissingFilesAndWrongKinds) {
  EXPECT_EQ(message(), "data.path: " + folder() +
                           " holds no train-images-idx3-ubyte (plain or .gz); "
                           "scripts/prepare-corpus --fashion-mnist brings it");
  const std::string images_path = write(kImages, labels("abc"));
  const std::string labels_path = write(kLabels, labels("\x01"));
  EXPECT_EQ(message(), "data.path: " + images_path + " is truncated: 11 bytes, its header has 16");
  write(kImages, images(1, 0x801));
  EXPECT_EQ(message(),
            "data.path: " + images_path + " is no such idx file: magic 2049 instead of 2051");
  write(kImages, images(1, 0x803, 14));
  EXPECT_EQ(message(),
            "data.path: " + images_path + " has images of 14 x 14 pixels instead of 28 x 28");
  write(kImages, images(1));
  write(kLabels, labels("\x01", 0x803));
  EXPECT_EQ(message(),
            "data.path: " + labels_path + " is no such idx file: magic 2051 instead of 2049");
  write(kLabels, labels("\x01"));
  EXPECT_EQ(message(), "");
}

TEST_F(FashionMnist, TruncatedAndOverlongFiles) {
  const std::string images_path = write(kImages, images(2).substr(0, 16 + 1567));
  const std::string labels_path = write(kLabels, labels("\x01\x02"));
  EXPECT_EQ(message(), "data.path: " + images_path + " has 1567 bytes of data but declares 1568");
  write(kImages, images(2) + "x");
  EXPECT_EQ(message(), "data.path: " + images_path + " has 1569 bytes of data but declares 1568");
  write(kImages, images(2));
  write(kLabels, labels("\x01\x02").substr(0, 9));
  EXPECT_EQ(message(), "data.path: " + labels_path + " has 1 bytes of data but declares 2");
  write(kLabels, "");
  EXPECT_EQ(message(), "data.path: " + labels_path + " is truncated: 0 bytes, its header has 8");
}

TEST_F(FashionMnist, ACompressedFileCutShortIsFound) {
  const std::string images_path = write_gz(std::string(kImages) + ".gz", images(2));
  write(kLabels, labels("\x01\x02"));
  const auto size = std::filesystem::file_size(images_path);
  for (const auto cut : {size / 2, size - 1}) {
    std::filesystem::resize_file(images_path, cut);
    EXPECT_NE(message().find("data.path: " + images_path), std::string::npos) << message();
    write_gz(std::string(kImages) + ".gz", images(2));
  }
  EXPECT_EQ(message(), "");
}

TEST_F(FashionMnist, ImpossibleDimensionsAreRefusedBeforeAnythingIsAllocated) {
  const std::string images_path =
      write(kImages, big_endian(0x803) + big_endian(UINT32_MAX) + big_endian(UINT32_MAX) +
                         big_endian(UINT32_MAX));
  write(kLabels, labels("\x01"));
  EXPECT_EQ(message(), "data.path: " + images_path + " declares impossible dimensions");
}

TEST_F(FashionMnist, LabelsMustFitTheImages) {
  const std::string images_path = write(kImages, images(2));
  const std::string labels_path = write(kLabels, labels("\x01\x0a"));
  EXPECT_EQ(message(), "data.path: " + labels_path + " holds label 10; labels are 0 to 9");
  write(kLabels, labels("\x01\x02\x03"));
  EXPECT_EQ(message(),
            "data.path: " + images_path + " has 2 images but " + labels_path + " has 3 labels");
  write(kImages, images(0));
  write(kLabels, labels(""));
  EXPECT_EQ(message(), "data.path: " + labels_path + " holds no label");
}

}  // namespace
}  // namespace zerosharp
