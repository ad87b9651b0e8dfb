#include "engine/monitor/progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace zerosharp {
namespace {

template <class... Args>
std::string format(const char* pattern, Args... args) {
  char text[512];
  std::snprintf(text, sizeof text, pattern, args...);
  return text;
}

/// Exponential mean over about the last 20 values, unbiased at the start.
void average(double& mean, double value, int64_t seen) {
  const double weight = std::max(0.05, 1.0 / static_cast<double>(seen));
  mean += weight * (value - mean);
}

}  // namespace

std::string format_table(const std::vector<std::pair<std::string, std::string>>& rows) {
  size_t width = 0;
  for (const auto& [name, value] : rows) width = std::max(width, name.size());
  std::string text;
  for (const auto& [name, value] : rows) {
    text += "  " + name + std::string(width - name.size() + 2, ' ') + value + "\n";
  }
  return text;
}

std::string format_count(double value) {
  if (value >= 1e9) return format("%.2fG", value / 1e9);
  if (value >= 1e6) return format("%.2fM", value / 1e6);
  if (value >= 1e3) return format("%.2fk", value / 1e3);
  return format("%.0f", value);
}

std::string format_bytes(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes >= int64_t{1} << 30) return format("%.2f GiB", value / (1 << 30));
  if (bytes >= int64_t{1} << 20) return format("%.1f MiB", value / (1 << 20));
  return format("%.1f KiB", value / (1 << 10));
}

std::string format_duration(double seconds) {
  const auto total = static_cast<long>(std::max(0.0, std::round(seconds)));
  if (total >= 3600) return format("%ld:%02ld:%02ld", total / 3600, total / 60 % 60, total % 60);
  return format("%ld:%02ld", total / 60, total % 60);
}

Progress::Progress(int64_t total_steps, int64_t log_interval, bool terminal)
    : total_steps_(total_steps), log_interval_(log_interval), terminal_(terminal) {}

std::string Progress::line(const StepRecord& r) {
  if (std::isfinite(r.loss)) average(loss_average_, r.loss, ++losses_seen_);
  average(step_average_ms_, r.step_ms, ++steps_seen_);
  const double left = static_cast<double>(total_steps_ - r.step) * step_average_ms_ / 1000.0;
  const int percent = static_cast<int>(100 * r.step / std::max<int64_t>(total_steps_, 1));
  std::string text = format("step %5ld/%ld %3d%% | loss %.4f (ema %.3f) | lr %.2e | gnorm %.3f",
                            static_cast<long>(r.step), static_cast<long>(total_steps_), percent,
                            r.loss, loss_average_, r.lr, r.grad_norm);
  if (r.sam) text += format(" | sharp %+.4f", r.sam->loss_perturbed - r.loss);
  const int64_t memory = r.device_bytes > 0 ? r.device_bytes : r.rss_bytes;
  return text + " | " + format_count(r.tokens_per_s) + " tok/s | mem " + format_bytes(memory) +
         format(" | %.0f ms | ETA ", r.step_ms) + format_duration(left);
}

void Progress::show(const StepRecord& record) {
  const std::string text = line(record);
  if (terminal_) {
    std::printf("\r\033[K%s", text.c_str());
    drawn_ = true;
  } else if (record.step % log_interval_ == 0 || record.step == total_steps_ || record.step == 1) {
    std::printf("%s\n", text.c_str());
  }
  std::fflush(stdout);
}

void Progress::note(const std::string& text) {
  if (drawn_) std::printf("\r\033[K");
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
  drawn_ = false;
}

void Progress::finish() {
  if (drawn_) std::printf("\n");
  std::fflush(stdout);
  drawn_ = false;
}

}  // namespace zerosharp
