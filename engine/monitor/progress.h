// What a person sees of a run.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/monitor/metrics_writer.h"

namespace zerosharp {

/// Lines of "name   value" with values aligned.
std::string format_table(const std::vector<std::pair<std::string, std::string>>& rows);

/// 1234 → "1.23k", 4030000 → "4.03M".
std::string format_count(double value);
/// Bytes in KiB, MiB or GiB.
std::string format_bytes(int64_t bytes);
/// Seconds as "0:41" or "1:02:03".
std::string format_duration(double seconds);

/// The progress line: redrawn in place on a terminal, else printed every `log_interval` steps. Only
/// rank 0 should have one. Notes go on lines of their own above it.
class Progress {
 public:
  Progress(int64_t total_steps, int64_t log_interval, bool terminal);

  /// The text of the line for `record`.
  std::string line(const StepRecord& record);
  void show(const StepRecord& record);
  void note(const std::string& text);
  /// Leaves the last line standing.
  void finish();

 private:
  int64_t total_steps_;
  int64_t log_interval_;
  bool terminal_;
  bool drawn_ = false;
  double loss_average_ = 0;  // exponential, over finite losses, so that the trend can be read
  double step_average_ms_ = 0;
  int64_t losses_seen_ = 0, steps_seen_ = 0;
};

}  // namespace zerosharp
