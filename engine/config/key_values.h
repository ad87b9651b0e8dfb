// The values a file and its overrides set, checked against the key table.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/config/json_reader.h"
#include "engine/config/key_table.h"
#include "engine/config/time_string.h"

namespace zerosharp {

/// Collects every complaint, so that a user sees them all at once.
class Complaints {
 public:
  /// "where: path: text"
  void add(const std::string& where, const std::string& path, const std::string& text);
  bool empty() const noexcept { return lines_.empty(); }
  /// Throws ConfigError with at most 20 lines, if there is any.
  void throw_if_any() const;

 private:
  std::vector<std::string> lines_;
};

/// What the configuration sets, by path. Values keep the place they were set at for messages.
class KeyValues {
 public:
  /// Walks `root`, then applies `overrides` ("key.path=value") over it; null takes a key back to
  /// its default. Complaints and warnings are collected, nothing is thrown.
  KeyValues(const JsonNode& root, const std::string& source,
            const std::vector<std::string>& overrides, Complaints& complaints);

  bool has(const std::string& path) const { return values_.count(path) != 0; }
  /// Whether `path` itself was written, be it an alias or a section.
  bool was_written(const std::string& path) const { return written_.count(path) != 0; }
  /// True if any key below `section` is set.
  bool has_section(const std::string& section) const;
  bool boolean(const std::string& path, bool fallback) const;
  int64_t integer(const std::string& path, int64_t fallback) const;
  double number(const std::string& path, double fallback) const;
  std::string string(const std::string& path,
                     const std::string& fallback) const;  ///< choices: lower case
  std::vector<double> numbers(const std::string& path) const;
  std::vector<std::string> strings(const std::string& path) const;
  Time time(const std::string& path, const Time& fallback) const;
  std::vector<Time> times(const std::string& path) const;

  /// The set value as JSON for messages; empty if `path` is not set.
  std::string text(const std::string& path) const;

  /// Looks for keys below `prefix` that mean nothing to `type`, the value of `type_key`, which
  /// reads `used` only: an error, or a warning where an override chose the type over a file written
  /// for another one.
  void check_used(const std::string& prefix, const std::string& type_key, const std::string& type,
                  const std::vector<std::string>& used);

  /// "file:line:column" or "(override)" of a set key; the source's name otherwise.
  std::string where(const std::string& path) const;
  const std::vector<std::string>& warnings() const noexcept { return warnings_; }
  void warn(const std::string& text) { warnings_.push_back(text); }

 private:
  struct Entry {
    JsonNode node;
    std::string where;
  };

  void walk(const JsonNode& object, const std::string& prefix);
  void visit(const JsonNode& node, const std::string& path);
  void visit_known(const JsonNode& node, const std::string& path, const KeySpec& key);
  void visit_alias(const JsonNode& node, const std::string& path, const std::string& target);
  void visit_section(const JsonNode& node, const std::string& path);
  void erase_section(const std::string& path);
  void take(JsonNode node, const std::string& path, const KeySpec& key);
  void override_with(const std::string& assignment);
  void read_loose_bool(JsonNode& node, const std::string& path);
  void read_cpu_offload();
  void report_unresolved();
  void report_ignored();
  std::string place(const JsonNode& node) const;
  const JsonNode* find(const std::string& path) const;

  std::string source_;
  Complaints& complaints_;
  std::map<std::string, Entry> values_;
  std::vector<std::string> warnings_;
  std::map<std::string_view, std::set<std::string>> ignored_;  // reason → paths
  std::map<std::string, std::string> alias_of_;                // target → the alias that set it
  std::set<std::string> written_;                              // aliases and sections
  std::set<std::string> unresolved_;                           // "auto"
  bool in_override_ = false;
};

}  // namespace zerosharp
