// Windows of text by hand, the unigram loss by hand, and a message for each unusable file.
#include "engine/data/text.h"

#include <gtest/gtest.h>

#include <array>
#include <cctype>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/data/data_fixture.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;

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
  std::vector<int64_t> inputs(static_cast<size_t>(block));
  std::vector<int64_t> targets(static_cast<size_t>(block));
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

}  // namespace
}  // namespace zerosharp
