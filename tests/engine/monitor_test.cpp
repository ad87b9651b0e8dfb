// What a run leaves in --out, and what it knows of itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "engine/monitor/metrics_writer.h"
#include "engine/monitor/process_memory.h"
#include "kernels/error.h"
#include "tests/support/running_program.h"

namespace zerosharp {
namespace {

using nlohmann::json;
using testing::read_text;
using testing::TemporaryFolder;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<json> rows_of(const std::string& path) {
  std::vector<json> rows;
  std::istringstream file(read_text(path));
  for (std::string line; std::getline(file, line);) rows.push_back(json::parse(line));
  return rows;
}

uint64_t bits(double value) { return std::bit_cast<uint64_t>(value); }

template <class Kind>
std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Kind& error) {
    return error.what();
  }
  return "no such error";
}

// --- metrics.jsonl -------------------------------------------------------------------------------

TEST(Metrics, EveryFieldOfAStepIsInItsRow) {
  TemporaryFolder folder;
  StepRecord r;
  r.step = 3;
  r.loss = 2.5;
  r.lr = 1e-3;
  r.grad_norm = 0.75;
  r.tokens = int64_t{1} << 53;
  r.step_ms = 12.5;
  r.tokens_per_s = 1e6;
  r.rss_bytes = 4096;
  r.device_bytes = 8192;
  r.skipped = 2;
  r.loss_scale = 65536;
  StepRecord with_sam = r;
  with_sam.sam = StepRecord::Sam{0.05, 0.04, 2.75, 0.5, 0.9, 0.7, 0.6};
  MetricsWriter writer(folder / "out");
  writer.write_step(r);
  writer.write_step(with_sam);
  writer.write_eval(3, 2.25);

  const json row = {{"step", 3},
                    {"loss", 2.5},
                    {"lr", 1e-3},
                    {"grad_norm", 0.75},
                    {"tokens", 9007199254740992},
                    {"step_ms", 12.5},
                    {"tokens_per_s", 1e6},
                    {"rss_bytes", 4096},
                    {"device_bytes", 8192},
                    {"skipped", 2},
                    {"loss_scale", 65536.0}};
  json sam_row = row;
  sam_row["sam"] = {{"rho", 0.05},     {"e_norm", 0.04},  {"loss_perturbed", 2.75}, {"moved", 0.5},
                    {"efficacy", 0.9}, {"realised", 0.7}, {"cosine", 0.6}};
  const json eval_row = {{"step", 3}, {"eval_loss", 2.25}};
  // Read while the writer is open: each row is there as soon as it is written.
  EXPECT_EQ(rows_of(folder / "out/metrics.jsonl"), (std::vector<json>{row, sam_row, eval_row}));
}

TEST(Metrics, NumbersComeBackBitForBit) {
  TemporaryFolder folder;
  std::vector<double> values = {0.1,
                                1.0 / 3.0,
                                -0.0,
                                1e-300,
                                std::nextafter(1.0, 2.0),
                                std::numeric_limits<double>::denorm_min(),
                                std::numeric_limits<double>::max(),
                                static_cast<double>(0.1f)};
  std::mt19937_64 random(17);
  while (values.size() < 2000) {
    const auto value = std::bit_cast<double>(random());
    if (std::isfinite(value)) values.push_back(value);
  }
  {
    MetricsWriter writer(folder / "out");
    for (const double value : values) {
      StepRecord r;
      r.loss = value;
      r.lr = value;
      writer.write_step(r);
    }
  }
  const auto rows = rows_of(folder / "out/metrics.jsonl");
  ASSERT_EQ(rows.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(bits(rows[i]["loss"].get<double>()), bits(values[i])) << values[i];
    EXPECT_EQ(bits(rows[i]["lr"].get<double>()), bits(values[i])) << values[i];
  }
}

TEST(Metrics, WhatJsonCannotSayIsNullAndMarked) {
  TemporaryFolder folder;
  MetricsWriter writer(folder / "out");
  for (const double value : {kNaN, kInfinity, -kInfinity}) {
    StepRecord r;
    r.step = 1;
    r.grad_norm = value;
    writer.write_step(r);
  }
  StepRecord in_sam;
  in_sam.sam = StepRecord::Sam{};
  in_sam.sam->loss_perturbed = kNaN;
  writer.write_step(in_sam);
  writer.write_eval(1, kNaN);
  writer.write_step(StepRecord{});

  const auto rows = rows_of(folder / "out/metrics.jsonl");
  ASSERT_EQ(rows.size(), 6u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(rows[i].at("grad_norm").is_null());
    EXPECT_EQ(rows[i].at("loss"), 0.0);
    EXPECT_EQ(rows[i].at("nan"), true);
  }
  EXPECT_TRUE(rows[3].at("sam").at("loss_perturbed").is_null());
  EXPECT_EQ(rows[3].at("nan"), true);
  EXPECT_TRUE(rows[4].at("eval_loss").is_null());
  EXPECT_EQ(rows[4].at("nan"), true);
  EXPECT_FALSE(rows[5].contains("nan"));
}

TEST(Metrics, RunBeginsItsFileAnew) {
  TemporaryFolder folder;
  MetricsWriter(folder / "out").write_eval(1, 1.0);
  MetricsWriter(folder / "out").write_eval(2, 1.0);
  const auto rows = rows_of(folder / "out/metrics.jsonl");
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].at("step"), 2);
}

TEST(Metrics, FolderThatCannotBeWrittenIsNamed) {
  TemporaryFolder folder;
  std::ofstream(folder / "file") << "not a folder";
  const std::string in_file = folder / "file/out";
  const std::string made = error_of<ConfigError>([&] { MetricsWriter writer(in_file); });
  EXPECT_EQ(made, "--out: the folder " + in_file +
                      " cannot be made: Not a directory; choose another with --out DIR");

  const std::string taken = folder / "taken";
  std::filesystem::create_directories(taken + "/metrics.jsonl");
  EXPECT_EQ(error_of<ConfigError>([&] { MetricsWriter writer(taken); }),
            "--out: " + taken +
                "/metrics.jsonl cannot be written: Is a directory; choose another folder with "
                "--out DIR");
}

TEST(Metrics, FullDiskIsAnErrorThatNamesTheFile) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "this system has no /dev/full";
  TemporaryFolder folder;
  const std::string out = folder / "out";
  std::filesystem::create_directories(out);
  std::filesystem::create_symlink("/dev/full", out + "/metrics.jsonl");
  std::filesystem::create_symlink("/dev/full", out + "/summary.json.tmp");
  MetricsWriter writer(out);
  EXPECT_EQ(error_of<Error>([&] { writer.write_step(StepRecord{}); }),
            "--out: writing " + out + "/metrics.jsonl failed: No space left on device");
  EXPECT_EQ(error_of<Error>([&] { writer.write_summary(RunSummary{}); }),
            "--out: " + out + "/summary.json.tmp cannot be written: No space left on device");
  EXPECT_FALSE(std::filesystem::exists(out + "/summary.json"));
}

// --- summary.json, config.json -------------------------------------------------------------------

TEST(Summary, EveryFieldIsThereAndOptionalOnesOnlyWhenKnown) {
  TemporaryFolder folder;
  MetricsWriter writer(folder / "out");
  RunSummary s;
  s.steps = 20;
  s.skipped = 1;
  s.tokens = 640;
  s.seconds = 1.5;
  s.seconds_to_first_step = 0.25;
  s.median_step_ms = 70.0;
  s.final_loss = kNaN;
  s.num_parameters = 1000;
  s.peak_rss_bytes_per_rank = {int64_t{5} << 30, 7};
  s.state_bytes = 16000;
  writer.write_summary(s);
  json expected = {{"steps", 20},
                   {"skipped", 1},
                   {"tokens", 640},
                   {"seconds", 1.5},
                   {"seconds_to_first_step", 0.25},
                   {"median_step_ms", 70.0},
                   {"final_loss", nullptr},
                   {"nan", true},
                   {"num_parameters", 1000},
                   {"peak_rss_bytes_per_rank", {5368709120, 7}},
                   {"state_bytes", 16000}};
  EXPECT_EQ(json::parse(read_text(folder / "out/summary.json")), expected);

  s.final_loss = 2.0;
  s.eval_loss = 2.25;
  s.unigram_loss = 3.0;
  writer.write_summary(s);
  expected.erase("nan");
  expected["final_loss"] = 2.0;
  expected["eval_loss"] = 2.25;
  expected["unigram_loss"] = 3.0;
  EXPECT_EQ(json::parse(read_text(folder / "out/summary.json")), expected);
}

TEST(Summary, FilesAreReplacedWholeAndLeaveNoTemporaryName) {
  TemporaryFolder folder;
  MetricsWriter writer(folder / "out");
  writer.write_config("{\"train\": {}}");
  EXPECT_EQ(read_text(folder / "out/config.json"), "{\"train\": {}}\n");

  RunSummary large;
  large.peak_rss_bytes_per_rank.assign(100000, 1);
  writer.write_summary(large);
  // Whoever has the old file open keeps reading the old file: it was replaced, not rewritten.
  std::ifstream old(folder / "out/summary.json");
  writer.write_summary(RunSummary{});
  EXPECT_EQ(json::parse(old).at("peak_rss_bytes_per_rank").size(), 100000u);
  EXPECT_EQ(json::parse(read_text(folder / "out/summary.json")).at("steps"), 0);

  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "out")) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"config.json", "metrics.jsonl", "summary.json"}));
}

// --- This process --------------------------------------------------------------------------------

TEST(ProcessMemory, ResidentBytesFollowWhatIsTouched) {
  constexpr size_t kSize = size_t{64} << 20;
  const int64_t before = rss_bytes();
  ASSERT_GT(before, 0);
  {
    std::vector<char> block(kSize);
    volatile char* touched = block.data();
    for (size_t i = 0; i < kSize; i += 4096) touched[i] = 1;
    EXPECT_GE(rss_bytes(), before + static_cast<int64_t>(kSize) / 10 * 9);
  }
  EXPECT_LT(rss_bytes(), before + static_cast<int64_t>(kSize) / 2);
  EXPECT_GE(peak_rss_bytes(), before + static_cast<int64_t>(kSize) / 10 * 9);
}

TEST(ProcessMemory, AgeGrowsWithTheClock) {
  const double first = process_age_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const double second = process_age_seconds();
  EXPECT_GT(first, -0.02);  // the kernel counts in ticks of 10 ms
  EXPECT_GE(second - first, 0.28);
  EXPECT_LT(first, 3600.0);
}

}  // namespace
}  // namespace zerosharp
