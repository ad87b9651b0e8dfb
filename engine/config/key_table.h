// Every key a configuration may hold, in one table: it drives parsing, checks, warnings and help.
#pragma once
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace zerosharp {

enum class KeyType {
  kSection,  ///< an object whose members are in the table
  kBool,
  kInteger,  ///< 5e8 and 2.0 are integers
  kNumber,
  kString,
  kChoice,    ///< one of `choices`, in any case
  kNumbers,   ///< array of numbers
  kIntegers,  ///< array of integers
  kStrings,   ///< a string or an array of strings
  kTime,      ///< a time string; `choices` is the unit of a bare number, if one may stand
  kTimes,     ///< array of time strings
  kAny        ///< anything; not looked into
};

enum class KeyEffect {
  kHonoured,
  kAlias,     ///< another name of the honoured key that `meaning` names
  kNoEffect,  ///< known to DeepSpeed; one warning with the reason
  kRefused  ///< an error with the reason, unless the value is `neutral` or the section is disabled
};

struct KeySpec {
  std::string_view path;
  KeyType type = KeyType::kAny;
  std::string_view fallback;  ///< default, as JSON text; empty: none
  std::string_view meaning;   ///< with unit; for kNoEffect and kRefused the reason
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  std::string_view choices = {};  ///< "a|b|c"
  KeyEffect effect = KeyEffect::kHonoured;
  std::string_view neutral = {};  ///< JSON text that asks for nothing ("false", "1"…)
};

/// Sorted by section as documented.
const std::vector<KeySpec>& key_table();

/// The entry of `path`, or null.
const KeySpec* find_key(std::string_view path);

/// The remedy for an unknown key: where a key of that name belongs, or the nearest known name.
std::string suggest_key(const std::string& path);

/// The honoured keys with type, default, range and meaning, one a line, for `--help`.
std::string describe_keys();

}  // namespace zerosharp
