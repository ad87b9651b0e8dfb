#include "engine/config/time_string.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <sstream>

#include "kernels/error.h"

namespace zerosharp {
namespace {

constexpr std::array<const char*, 7> kUnits = {"iter", "ep", "ba", "sp", "tok", "dur", "sec"};
constexpr double kLongest = 9e15;  // whole numbers are exact below it

[[noreturn]] void refuse(std::string_view text, const char* why) {
  fail_config("\"", text.substr(0, 60), "\" is no time: ", why,
              "; write a number with a unit, such as \"100ba\" (batches), \"2ep\" (epochs), "
              "\"1000sp\" (samples), \"1e9tok\" (tokens) or \"0.1dur\" (share of the run)");
}

/// Reads a number at the start of `rest` and takes it off.
std::optional<double> take_number(std::string_view& rest) {
  double value = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (error != std::errc()) return std::nullopt;
  rest.remove_prefix(static_cast<size_t>(end - rest.data()));
  return value;
}

/// "1h30m", "45s": hours, minutes and seconds in this order, any of them.
std::optional<double> clock_seconds(std::string_view rest) {
  constexpr std::array<std::pair<char, double>, 3> kParts = {{{'h', 3600}, {'m', 60}, {'s', 1}}};
  if (rest.empty()) return std::nullopt;
  double total = 0;
  for (const auto& [letter, seconds] : kParts) {
    std::string_view ahead = rest;
    int64_t count = 0;
    const auto [end, error] = std::from_chars(ahead.data(), ahead.data() + ahead.size(), count);
    const auto digits = static_cast<size_t>(end - ahead.data());
    if (error != std::errc() || count < 0 || digits >= ahead.size() || *end != letter) continue;
    if (letter == 'h' && count >= 24) return std::nullopt;
    total += static_cast<double>(count) * seconds;
    rest.remove_prefix(digits + 1);
  }
  return rest.empty() ? std::optional(total) : std::nullopt;
}

}  // namespace

Time parse_time(std::string_view text, std::optional<TimeUnit> default_unit) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (const auto seconds = clock_seconds(lower)) return {*seconds, TimeUnit::kSecond};
  std::string_view rest = lower;
  const std::optional<double> value = take_number(rest);
  if (!value) refuse(text, "it does not begin with a number");
  if (!(*value >= 0 && *value <= kLongest)) refuse(text, "the number is out of range");
  std::optional<TimeUnit> unit = rest.empty() ? default_unit : std::nullopt;
  for (size_t i = 0; i < kUnits.size(); ++i) {
    if (rest == kUnits[i]) unit = static_cast<TimeUnit>(i);
  }
  if (!unit) refuse(text, rest.empty() ? "the unit is missing" : "the unit is not known");
  if (*unit != TimeUnit::kDuration && *value != std::floor(*value)) {
    refuse(text, "only dur can have a fraction");
  }
  return {*value, *unit};
}

const char* time_unit_name(TimeUnit unit) noexcept { return kUnits[static_cast<size_t>(unit)]; }

std::string time_text(const Time& time) {
  std::ostringstream text;
  text.precision(15);
  text << time.value << time_unit_name(time.unit);
  return text.str();
}

Time RunClock::concrete(const std::string& key, const Time& time, double ratio) const {
  const auto epoch = [&]() {
    if (batches_per_epoch > 0) return static_cast<double>(batches_per_epoch);
    fail_config(key, " \"", time_text(time),
                "\" counts epochs, but the number of batches in one is not known; set "
                "EngineOptions::batches_per_epoch, or give the time in batches (\"100ba\")");
  };
  switch (time.unit) {
    case TimeUnit::kDuration:
      if (!max_duration) {
        fail_config(key, " \"", time_text(time),
                    "\" is a share of the run, but its length is not known; set max_duration or "
                    "train.steps");
      }
      if (max_duration->unit == TimeUnit::kEpoch) {
        return {std::trunc(time.value * epoch() * max_duration->value), TimeUnit::kBatch};
      }
      return {std::trunc(time.value * max_duration->value), max_duration->unit};
    case TimeUnit::kEpoch:
      return {std::trunc(time.value * epoch() * ratio), TimeUnit::kBatch};
    case TimeUnit::kToken:
      if (tokens_per_batch == 0) {
        fail_config(key, " \"", time_text(time),
                    "\" counts tokens, but the number in a sample is not known; set "
                    "EngineOptions::tokens_per_sample, or give the time in batches (\"100ba\")");
      }
      [[fallthrough]];
    case TimeUnit::kBatch:
    case TimeUnit::kSample:
      return {std::trunc(time.value * ratio), time.unit};
    case TimeUnit::kIteration:
    case TimeUnit::kSecond:
      break;
  }
  fail_config(
      key, " \"", time_text(time),
      "\": schedules do not count seconds or iterations; give it in ba, ep, sp, tok or dur");
}

double RunClock::elapsed(int64_t batch, TimeUnit unit) const noexcept {
  int64_t a_batch = 1;
  if (unit == TimeUnit::kSample) a_batch = samples_per_batch;
  if (unit == TimeUnit::kToken) a_batch = tokens_per_batch;
  return static_cast<double>(batch) * static_cast<double>(a_batch);
}

int64_t RunClock::first_batch_at(const Time& time) const noexcept {
  const double a_batch = std::max(1.0, elapsed(1, time.unit));
  return static_cast<int64_t>(std::ceil(time.value / a_batch));
}

Time scaled_duration(const Time& max_duration, double ratio) {
  const TimeUnit unit = max_duration.unit;
  if (unit == TimeUnit::kDuration || unit == TimeUnit::kSecond || unit == TimeUnit::kIteration) {
    fail_config("max_duration \"", time_text(max_duration),
                "\": a run is measured in ep, ba, sp or tok");
  }
  const Time scaled = {std::trunc(max_duration.value * ratio), unit};
  if (scaled.value >= 1) return scaled;
  fail_config("max_duration \"", time_text(max_duration), "\"",
              ratio == 1 ? "" : " × scale_schedule_ratio",
              " leaves nothing to train; give it at least 1");
}

}  // namespace zerosharp
