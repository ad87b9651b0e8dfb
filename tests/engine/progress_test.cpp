// What a person sees of a run: the progress line, notes and formats.
#include "engine/monitor/progress.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <sstream>

namespace zerosharp {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

StepRecord step_record(int64_t step, double loss, double step_ms) {
  StepRecord r;
  r.step = step;
  r.loss = loss;
  r.lr = 2.95e-4;
  r.grad_norm = 0.8125;
  r.step_ms = step_ms;
  r.tokens_per_s = 1.84e6;
  r.rss_bytes = int64_t{3} << 29;
  return r;
}

TEST(Progress, LineReadsLikeThis) {
  Progress progress(10000, 1, false);
  EXPECT_EQ(progress.line(step_record(1200, 3.25, 284)),
            "step  1200/10000  12% | loss 3.2500 (ema 3.250) | lr 2.95e-04 | gnorm 0.812 | 1.84M "
            "tok/s | mem 1.50 GiB | 284 ms | ETA 41:39");  // 8800 * 0.284 s = 2499.2 s
}

TEST(Progress, SamShowsTheSharpnessAndDeviceMemoryComesFirst) {
  Progress progress(4, 1, false);
  StepRecord r = step_record(1, 2.0, 1000);
  r.sam = StepRecord::Sam{};
  r.sam->loss_perturbed = 2.125;
  r.device_bytes = int64_t{5} << 20;
  EXPECT_EQ(progress.line(r),
            "step     1/4  25% | loss 2.0000 (ema 2.000) | lr 2.95e-04 | gnorm 0.812 | sharp "
            "+0.1250 | 1.84M tok/s | mem 5.0 MiB | 1000 ms | ETA 0:03");
}

std::string part_of(const std::string& line, const std::string& from, const std::string& to) {
  const size_t begin = line.find(from) + from.size();
  return line.substr(begin, line.find(to, begin) - begin);
}

TEST(Progress, AveragesAreMeansOfTheFirstTwentyThenExponential) {
  Progress progress(100, 1, false);
  double mean_loss = 0, mean_ms = 0;
  for (int step = 1; step <= 60; ++step) {
    const double loss = step % 7, ms = 1000.0 * (step % 5);
    const double weight = step <= 20 ? 1.0 / step : 1.0 / 20;
    mean_loss = (1 - weight) * mean_loss + weight * loss;
    mean_ms = (1 - weight) * mean_ms + weight * ms;
    const std::string line = progress.line(step_record(step, loss, ms));
    EXPECT_NEAR(std::stod(part_of(line, "(ema ", ")")), mean_loss, 0.0005 + 1e-12);
    EXPECT_EQ(part_of(line, "ETA ", "\n"), format_duration((100 - step) * mean_ms / 1000)) << line;
  }
}

TEST(Progress, LossThatIsNotFiniteLeavesTheAverageAlone) {
  Progress progress(10, 1, false);
  EXPECT_EQ(part_of(progress.line(step_record(1, kNaN, 1)), "loss ", " |"), "nan (ema 0.000)");
  EXPECT_EQ(part_of(progress.line(step_record(2, 4.0, 1)), "loss ", " |"), "4.0000 (ema 4.000)");
  EXPECT_EQ(part_of(progress.line(step_record(3, kInfinity, 1)), "loss ", " |"), "inf (ema 4.000)");
  EXPECT_EQ(part_of(progress.line(step_record(4, 2.0, 1)), "loss ", " |"), "2.0000 (ema 3.000)");
}

/// What `body` prints on stdout.
std::string printed(const std::function<void()>& body) {
  ::testing::internal::CaptureStdout();
  body();
  return ::testing::internal::GetCapturedStdout();
}

TEST(Progress, FileGetsTheFirstTheLastAndEveryIntervalStep) {
  Progress progress(25, 10, /*terminal=*/false);
  const std::string text = printed([&] {
    for (int step = 1; step <= 25; ++step) progress.show(step_record(step, 1, 1));
    progress.note("a note");
    progress.finish();
  });
  std::vector<std::string> starts;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) starts.push_back(line.substr(0, 13));
  EXPECT_EQ(starts, (std::vector<std::string>{"step     1/25", "step    10/25", "step    20/25",
                                              "step    25/25", "a note"}));
}

TEST(Progress, TerminalGetsOneLineRedrawnWithNotesAboveIt) {
  const std::string clear = "\r\033[K";
  Progress progress(25, 10, /*terminal=*/true);
  Progress twin(25, 10, true);
  std::string expected;
  const std::string text = printed([&] {
    progress.show(step_record(1, 1, 1));
    progress.note("a note");
    progress.note("another");
    progress.show(step_record(2, 1, 1));
    progress.finish();
    progress.finish();
  });
  const std::string first = twin.line(step_record(1, 1, 1));
  const std::string second = twin.line(step_record(2, 1, 1));
  EXPECT_EQ(text, clear + first + clear + "a note\nanother\n" + clear + second + "\n");
}

TEST(Format, TableAlignsItsValues) {
  EXPECT_EQ(format_table({{"config", "c.json"}, {"ZeRO stage", "1"}, {"", "x"}}),
            "  config      c.json\n"
            "  ZeRO stage  1\n"
            "              x\n");
  EXPECT_EQ(format_table({}), "");
}

TEST(Format, CountsBytesAndDurations) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1234), "1.23k");
  EXPECT_EQ(format_count(4.03e6), "4.03M");
  EXPECT_EQ(format_count(1.3e9), "1.30G");
  EXPECT_EQ(format_bytes(512), "0.5 KiB");
  EXPECT_EQ(format_bytes((int64_t{1} << 20) - 512), "1023.5 KiB");
  EXPECT_EQ(format_bytes(int64_t{1} << 20), "1.0 MiB");
  EXPECT_EQ(format_bytes(int64_t{3} << 40), "3072.00 GiB");
  EXPECT_EQ(format_duration(0), "0:00");
  EXPECT_EQ(format_duration(-3), "0:00");
  EXPECT_EQ(format_duration(40.6), "0:41");
  EXPECT_EQ(format_duration(59.7), "1:00");
  EXPECT_EQ(format_duration(3599.4), "59:59");
  EXPECT_EQ(format_duration(3723), "1:02:03");
}

}  // namespace
}  // namespace zerosharp
