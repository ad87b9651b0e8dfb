// Composer's time strings ("100ba", "2ep", "0.1dur", "1h30m") and the clock they are read on.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace zerosharp {

enum class TimeUnit : uint8_t {
  kIteration,  ///< iter
  kEpoch,      ///< ep
  kBatch,      ///< ba: optimizer steps
  kSample,     ///< sp
  kToken,      ///< tok
  kDuration,   ///< dur: share of the run
  kSecond      ///< sec, and clock times
};

struct Time {
  double value = 0;  ///< whole but for kDuration
  TimeUnit unit = TimeUnit::kBatch;
};

/// Reads "<number><unit>" or a clock time "XhYmZs" (hours below 24, any of the three), in any case.
/// `default_unit` is that of a bare number. Throws ConfigError for anything else, for a fraction of
/// a unit other than dur, and for a value that is negative or not finite.
Time parse_time(std::string_view text, std::optional<TimeUnit> default_unit = std::nullopt);

/// "ba", "ep", …
const char* time_unit_name(TimeUnit unit) noexcept;
/// The same as a time string.
std::string time_text(const Time& time);

/// What a run measures time with. A step is a batch; a step, its samples and its tokens all advance
/// together, so any of the units can be counted in steps.
struct RunClock {
  std::optional<Time> max_duration;  ///< scaled already; empty: not known
  double scale_schedule_ratio = 1;
  int64_t batches_per_epoch = 0;  ///< 0: not known
  int64_t samples_per_batch = 0;
  int64_t tokens_per_batch = 0;

  /// `time` in batches, samples or tokens, whichever Composer converts it to; × `ratio` unless it
  /// is a share of the run. Every conversion cuts off the fraction, as Composer's do. `key` names
  /// the setting in messages. Throws ConfigError for iterations and seconds, and where the length
  /// of an epoch or of the run is needed and not known.
  Time concrete(const std::string& key, const Time& time, double ratio = 1) const;
  /// How far a run is after `batch` batches, in batches, samples or tokens.
  double elapsed(int64_t batch, TimeUnit unit) const noexcept;
  /// The first batch that does not begin before `time` (batches, samples or tokens).
  int64_t first_batch_at(const Time& time) const noexcept;
};

/// `max_duration` × `ratio`, whole. Throws ConfigError if nothing is left, and for units that are
/// no length of a run (dur, sec, iter).
Time scaled_duration(const Time& max_duration, double ratio);

}  // namespace zerosharp
