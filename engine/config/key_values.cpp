#include "engine/config/key_values.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "kernels/error.h"

namespace zerosharp {
namespace {

using Kind = JsonNode::Kind;

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream{std::string(text)};
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

bool is_number(const JsonNode& node) {
  return node.kind == Kind::kInteger || node.kind == Kind::kNumber;
}

/// Turns 5e8 and 2.0 into integers; false for fractions and what 64 bits cannot hold.
bool make_integer(JsonNode& node) {
  if (node.kind == Kind::kInteger) return true;
  if (node.kind != Kind::kNumber || node.number != std::floor(node.number)) return false;
  if (std::fabs(node.number) >= 9.0e18) return false;
  node.kind = Kind::kInteger;
  node.integer = static_cast<int64_t>(node.number);
  return true;
}

std::string range_text(const KeySpec& key) {
  std::ostringstream text;
  if (std::isfinite(key.most)) {
    text << "between " << key.least << " and " << key.most;
  } else {
    text << "of at least " << key.least;
  }
  return text.str();
}

bool has_choice(const KeySpec& key, const std::string& name) {
  const auto choices = split(key.choices, '|');
  return std::any_of(choices.begin(), choices.end(),
                     [&](const std::string& choice) { return lower(choice) == lower(name); });
}

/// A time becomes a string with a unit.
std::string time_mismatch(JsonNode& node, const KeySpec& key) {
  const bool bare = is_number(node) && !key.choices.empty();
  if (!bare && node.kind != Kind::kString) {
    return "must be a time with a unit, such as \"100ba\", \"2ep\" or \"0.1dur\"";
  }
  std::string text = node.kind == Kind::kString ? node.string : node.literal;
  if (!text.empty() && !key.choices.empty() &&
      std::isdigit(static_cast<unsigned char>(text.back()))) {
    text += key.choices;
  }
  try {
    parse_time(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  node.kind = Kind::kString;
  node.string = text;
  return "";
}

/// Empty if `node` fits `key`; else what it should be.
std::string mismatch(JsonNode& node, const KeySpec& key) {
  const auto in_range = [&](double value) {
    return value >= key.least && value <= key.most && std::isfinite(value);
  };
  switch (key.type) {
    case KeyType::kBool:
      return node.kind == Kind::kBool ? "" : "must be true or false";
    case KeyType::kInteger:
      if (!make_integer(node)) return "must be an integer";
      return in_range(node.number) ? "" : "must be an integer " + range_text(key);
    case KeyType::kNumber:
      if (!is_number(node)) return "must be a number";
      return in_range(node.number) ? "" : "must be a number " + range_text(key);
    case KeyType::kString:
      return node.kind == Kind::kString ? "" : "must be a string";
    case KeyType::kChoice:
      if (node.kind == Kind::kString && has_choice(key, node.string)) return "";
      return "must be one of " + std::string(key.choices);
    case KeyType::kNumbers:
    case KeyType::kIntegers:
      if (node.kind != Kind::kArray) return "must be an array of numbers";
      for (JsonNode& item : node.items) {
        if (!is_number(item) || !in_range(item.number)) {
          return "must be an array of numbers " + range_text(key);
        }
        if (key.type == KeyType::kIntegers && !make_integer(item)) {
          return "must be an array of integers";
        }
      }
      return "";
    case KeyType::kStrings:
      if (node.kind == Kind::kString) return "";
      if (node.kind != Kind::kArray || node.items.empty()) {
        return "must be a string or an array of strings";
      }
      for (const JsonNode& item : node.items) {
        if (item.kind != Kind::kString) return "must be a string or an array of strings";
      }
      return "";
    case KeyType::kTime:
      return time_mismatch(node, key);
    case KeyType::kTimes:
      if (node.kind != Kind::kArray || node.items.empty()) return "must be an array of times";
      for (JsonNode& item : node.items) {
        std::string wrong = time_mismatch(item, key);
        if (!wrong.empty()) return wrong;
      }
      return "";
    case KeyType::kSection:
    case KeyType::kAny:
      return "";
  }
  return "";
}

/// {"enabled": false, …} asks for nothing.
bool is_disabled_section(const JsonNode& node) {
  if (node.kind != Kind::kObject) return false;
  if (node.members.empty()) return true;
  for (const auto& [name, value] : node.members) {
    if (name == "enabled") return value.kind == Kind::kBool && !value.boolean;
  }
  return false;
}

bool is_neutral(const JsonNode& node, const KeySpec& key) {
  if (node.kind == Kind::kNull || is_disabled_section(node)) return true;
  if (to_text(node) == key.neutral) return true;
  return is_number(node) && node.number == std::strtod(std::string(key.neutral).c_str(), nullptr);
}

}  // namespace

void Complaints::add(const std::string& where, const std::string& path, const std::string& text) {
  lines_.push_back(where + ": " + path + (path.empty() ? "" : ": ") + text);
}

void Complaints::throw_if_any() const {
  if (lines_.empty()) return;
  constexpr size_t kMost = 20;
  std::string text;
  for (size_t i = 0; i < std::min(kMost, lines_.size()); ++i) {
    text += (i == 0 ? "" : "\n") + lines_[i];
  }
  if (lines_.size() > kMost) {
    text += "\n… and " + std::to_string(lines_.size() - kMost) + " more";
  }
  throw ConfigError(text);
}

KeyValues::KeyValues(const JsonNode& root, const std::string& source,
                     const std::vector<std::string>& overrides, Complaints& complaints)
    : source_(source), complaints_(complaints) {
  walk(root, "");
  in_override_ = true;
  for (const std::string& assignment : overrides) override_with(assignment);
  in_override_ = false;
  read_cpu_offload();
  report_unresolved();
  report_ignored();
}

void KeyValues::walk(const JsonNode& object, const std::string& prefix) {
  for (const auto& [name, node] : object.members) {
    const std::string path = prefix.empty() ? name : prefix + "." + name;
    if (name.empty() || name.find('.') != std::string::npos) {
      complaints_.add(place(node), path,
                      "unknown key; sections are nested in a file: {\"sam\": {\"rho\": 0.1}}");
      continue;
    }
    visit(node, path);
  }
}

void KeyValues::visit(const JsonNode& node, const std::string& path) {
  const KeySpec* key = find_key(path);
  if (key == nullptr) {
    complaints_.add(place(node), path, "unknown key; " + suggest_key(path));
    return;
  }
  visit_known(node, path, *key);
}

void KeyValues::visit_known(const JsonNode& node, const std::string& path, const KeySpec& key) {
  if (key.effect == KeyEffect::kAlias) return visit_alias(node, path, std::string(key.meaning));
  if (key.type == KeyType::kSection) return visit_section(node, path);
  if (key.effect == KeyEffect::kRefused) {
    if (!is_neutral(node, key)) {
      complaints_.add(place(node), path,
                      std::string(key.meaning) + " (got " + to_text(node) + "); remove the key");
    }
    return;
  }
  values_.erase(path);
  unresolved_.erase(path);
  if (node.kind == Kind::kNull) return;  // as if it were absent
  const bool is_auto = node.kind == Kind::kString && lower(node.string) == "auto";
  if (is_auto && key.effect == KeyEffect::kHonoured && !has_choice(key, "auto")) {
    unresolved_.insert(path);
  } else if (is_auto && key.effect == KeyEffect::kNoEffect) {
    ignored_[key.meaning].insert(path);
  } else {
    take(node, path, key);
  }
}

/// Another name sets the key it stands for, unless the same source has set that already.
void KeyValues::visit_alias(const JsonNode& node, const std::string& path,
                            const std::string& target) {
  const auto other = values_.find(target);
  if (other != values_.end() && !in_override_) {
    complaints_.add(place(node), path,
                    "is another name for " + target + ", which is set at " + other->second.where +
                        "; remove one");
    return;
  }
  written_.insert(path);
  visit(node, target);
  alias_of_[target] = path;
}

void KeyValues::visit_section(const JsonNode& node, const std::string& path) {
  written_.insert(path);
  if (node.kind == Kind::kObject) return walk(node, path);
  if (node.kind == Kind::kNull) return erase_section(path);
  if (path == "zero_optimization" && node.kind == Kind::kBool) {
    warnings_.push_back(place(node) + ": zero_optimization: " + to_text(node) +
                        " is an old form; it is read as stage " + (node.boolean ? "1" : "0"));
    JsonNode stage;
    stage.kind = Kind::kInteger;
    stage.integer = node.boolean ? 1 : 0;
    stage.number = static_cast<double>(stage.integer);
    values_[path + ".stage"] = {stage, place(node)};
    return;
  }
  complaints_.add(place(node), path, "must be a section { … }, got " + to_text(node));
}

void KeyValues::erase_section(const std::string& path) {
  written_.erase(path);
  const auto below = [&](const auto& entry) { return entry.rfind(path + ".", 0) == 0; };
  std::erase_if(values_, [&](const auto& entry) { return below(entry.first); });
  std::erase_if(unresolved_, below);
}

void KeyValues::take(JsonNode node, const std::string& path, const KeySpec& key) {
  const auto alias = alias_of_.find(path);
  if (alias != alias_of_.end() && !in_override_) {
    complaints_.add(place(node), path, "is set by " + alias->second + " already; remove one");
    return;
  }
  if (key.type == KeyType::kBool) read_loose_bool(node, path);
  const std::string wrong = mismatch(node, key);
  if (!wrong.empty()) {
    complaints_.add(place(node), path, wrong + ", got " + to_text(node));
    return;
  }
  if (key.effect == KeyEffect::kNoEffect) {
    if (path != "$schema") ignored_[key.meaning].insert(path);
    return;
  }
  if (key.type == KeyType::kChoice) node.string = lower(node.string);
  std::string set_at = place(node);
  values_[path] = {std::move(node), std::move(set_at)};
}

/// Booleans as DeepSpeed's users write them: "true", "False", 1, 0.
void KeyValues::read_loose_bool(JsonNode& node, const std::string& path) {
  const std::string word = node.kind == Kind::kString ? lower(node.string) : to_text(node);
  const bool yes = word == "true" || word == "1";
  if (node.kind == Kind::kBool || (!yes && word != "false" && word != "0")) return;
  warnings_.push_back(place(node) + ": " + path + ": " + to_text(node) + " is read as " +
                      (yes ? "true" : "false") + "; write " + (yes ? "true" : "false"));
  node.kind = Kind::kBool;
  node.boolean = yes;
}

void KeyValues::override_with(const std::string& assignment) {
  const size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0) {
    complaints_.add("(override)", assignment, "an override has the form key.path=value");
    return;
  }
  const std::string path = assignment.substr(0, equals);
  const std::string text = assignment.substr(equals + 1);
  try {
    JsonNode node = read_json_value(text);
    const KeySpec* key = find_key(path);
    const bool is_text =
        key != nullptr && (key->type == KeyType::kString || key->type == KeyType::kStrings ||
                           key->type == KeyType::kTime);
    if (is_text && node.kind != Kind::kString && node.kind != Kind::kArray &&
        node.kind != Kind::kNull) {
      node = {};
      node.kind = Kind::kString;
      node.string = text;  // data.path=2024 names a file, not a number
    }
    visit(node, path);
  } catch (const ConfigError& error) {
    complaints_.add("(override)", path, error.what());
  }
}

/// The old key says the same as offload_optimizer.device; both at once say it twice.
void KeyValues::read_cpu_offload() {
  const std::string old_path = "zero_optimization.cpu_offload";
  const std::string path = "zero_optimization.offload_optimizer.device";
  const auto old = values_.find(old_path);
  if (old == values_.end()) return;
  const Entry entry = old->second;
  values_.erase(old);
  if (has(path)) {
    complaints_.add(entry.where, old_path, "is deprecated and " + path + " is set; remove it");
    return;
  }
  const std::string device = entry.node.boolean ? "cpu" : "none";
  warnings_.push_back(entry.where + ": " + old_path + " is deprecated; it is read as " + path +
                      " = \"" + device + "\"");
  JsonNode node;
  node.kind = Kind::kString;
  node.string = device;
  values_[path] = {node, entry.where};
}

void KeyValues::report_unresolved() {
  std::string paths;
  for (const std::string& path : unresolved_) paths += (paths.empty() ? "" : ", ") + path;
  if (paths.empty()) return;
  complaints_.add(source_, paths,
                  "\"auto\" is filled in by a trainer that knows the value; here it must be "
                  "given: write it into the file or add KEY=VALUE to the command");
}

void KeyValues::report_ignored() {
  for (const auto& [reason, paths] : ignored_) {
    std::string text;
    for (const std::string& path : paths) text += (text.empty() ? "" : ", ") + path;
    warnings_.push_back(source_ + ": known to DeepSpeed, no effect here: " + text + " (" +
                        std::string(reason) + ")");
  }
}

void KeyValues::check_used(const std::string& prefix, const std::string& type_key,
                           const std::string& type, const std::vector<std::string>& used) {
  const std::string chosen = type_key + " " + type;
  const bool overridden = where(type_key) == "(override)";
  for (const auto& [path, entry] : values_) {
    if (path.rfind(prefix, 0) != 0 || path == type_key) continue;
    if (std::find(used.begin(), used.end(), path.substr(prefix.size())) != used.end()) continue;
    if (overridden && entry.where != "(override)") {
      warn(entry.where + ": " + path + ": no effect with " + chosen);
    } else {
      complaints_.add(entry.where, path, "means nothing to " + chosen + "; remove it");
    }
  }
}

std::string KeyValues::place(const JsonNode& node) const {
  if (in_override_) return "(override)";
  if (node.line == 0) return source_;
  return source_ + ":" + std::to_string(node.line) + ":" + std::to_string(node.column);
}

bool KeyValues::has_section(const std::string& section) const {
  const auto next = values_.lower_bound(section + ".");
  return next != values_.end() && next->first.compare(0, section.size() + 1, section + ".") == 0;
}

const JsonNode* KeyValues::find(const std::string& path) const {
  const auto found = values_.find(path);
  return found == values_.end() ? nullptr : &found->second.node;
}

std::string KeyValues::text(const std::string& path) const {
  const JsonNode* node = find(path);
  return node == nullptr ? "" : to_text(*node);
}

std::string KeyValues::where(const std::string& path) const {
  const auto found = values_.find(path);
  return found == values_.end() ? source_ : found->second.where;
}

bool KeyValues::boolean(const std::string& path, bool fallback) const {
  const JsonNode* node = find(path);
  return node == nullptr ? fallback : node->boolean;
}

int64_t KeyValues::integer(const std::string& path, int64_t fallback) const {
  const JsonNode* node = find(path);
  return node == nullptr ? fallback : node->integer;
}

double KeyValues::number(const std::string& path, double fallback) const {
  const JsonNode* node = find(path);
  return node == nullptr ? fallback : node->number;
}

std::string KeyValues::string(const std::string& path, const std::string& fallback) const {
  const JsonNode* node = find(path);
  return node == nullptr ? fallback : node->string;
}

std::vector<double> KeyValues::numbers(const std::string& path) const {
  std::vector<double> values;
  if (const JsonNode* node = find(path)) {
    for (const JsonNode& item : node->items) values.push_back(item.number);
  }
  return values;
}

Time KeyValues::time(const std::string& path, const Time& fallback) const {
  const JsonNode* node = find(path);
  return node == nullptr ? fallback : parse_time(node->string);
}

std::vector<Time> KeyValues::times(const std::string& path) const {
  std::vector<Time> values;
  if (const JsonNode* node = find(path)) {
    for (const JsonNode& item : node->items) values.push_back(parse_time(item.string));
  }
  return values;
}

std::vector<std::string> KeyValues::strings(const std::string& path) const {
  std::vector<std::string> values;
  if (const JsonNode* node = find(path)) {
    if (node->kind == Kind::kString) return {node->string};
    for (const JsonNode& item : node->items) values.push_back(item.string);
  }
  return values;
}

}  // namespace zerosharp
