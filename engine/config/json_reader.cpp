#include "engine/config/json_reader.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/error.h"

namespace zerosharp {
namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 64;

struct Position {
  int line = 1;
  int column = 1;
};

/// Lines and columns of offsets in one text.
class LineIndex {
 public:
  explicit LineIndex(const std::string& text) {
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\n') starts_.push_back(i + 1);
    }
  }
  Position at(size_t offset) const {
    const auto next = std::upper_bound(starts_.begin(), starts_.end(), offset);
    const auto line = static_cast<int>(next - starts_.begin());
    return {line, static_cast<int>(offset - *(next - 1)) + 1};
  }

 private:
  std::vector<size_t> starts_{0};
};

/// Index just behind the string that starts at `begin` (a quote), or the end of the text.
size_t skip_string(const std::string& text, size_t begin) {
  size_t i = begin + 1;
  while (i < text.size() && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
  return std::min(i + 1, text.size());
}

/// Index just behind the comment that starts at `begin`, or `begin` if none does.
size_t skip_comment(const std::string& text, size_t begin) {
  const bool line = text[begin] == '#' || text.compare(begin, 2, "//") == 0;
  if (line) return std::min(text.find('\n', begin), text.size());
  if (text.compare(begin, 2, "/*") != 0) return begin;
  const size_t end = text.find("*/", begin + 2);
  return end == std::string::npos ? text.size() : end + 2;
}

/// Comments and trailing commas become spaces, so that every other character keeps its place.
std::string blank_extras(std::string text) {
  constexpr size_t kNone = std::string::npos;
  size_t comma = kNone;  // a comma after which only blanks have come
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (const size_t end = skip_comment(text, i); end != i) {
      for (; i < end; ++i) {
        if (text[i] != '\n') text[i] = ' ';
      }
      continue;
    }
    if ((c == '}' || c == ']') && comma != kNone) text[comma] = ' ';
    if (c == ',') {
      comma = i;
    } else if (c != ' ' && c != '\t' && c != '\n' && c != '\r') {
      comma = kNone;
    }
    i = c == '"' ? skip_string(text, i) : i + 1;
  }
  return text;
}

/// A character iterator that leaves word of how far the parser has come.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, size_t* consumed) : at_(at), consumed_(consumed) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    ++at_;
    if (consumed_ != nullptr) ++*consumed_;
    return *this;
  }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  size_t* consumed_;
};

class Builder final : public nlohmann::json_sax<json> {
 public:
  Builder(const std::string& text, const std::string& source, const size_t& consumed)
      : lines_(text), source_(source), consumed_(consumed) {}

  JsonNode take_root() { return std::move(root_); }

  bool null() override {
    return scalar(JsonNode::Kind::kNull, [](JsonNode&) {});
  }
  bool boolean(bool value) override {
    return scalar(JsonNode::Kind::kBool, [&](JsonNode& node) { node.boolean = value; });
  }
  bool number_integer(number_integer_t value) override { return integer(value); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<uint64_t>(INT64_MAX)) {
      return number_float(static_cast<double>(value), std::to_string(value));
    }
    return integer(static_cast<int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t& literal) override {
    return scalar(JsonNode::Kind::kNumber, [&](JsonNode& node) {
      node.number = value;
      node.literal = literal;
    });
  }
  bool string(string_t& value) override {
    return scalar(JsonNode::Kind::kString, [&](JsonNode& node) { node.string = value; });
  }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(JsonNode::Kind::kObject); }
  bool start_array(std::size_t) override { return open(JsonNode::Kind::kArray); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    JsonNode& object = *stack_.back();
    const Position position = here(name.size() + 2);
    for (const auto& [known, node] : object.members) {
      if (known != name) continue;
      fail_config(source_, ":", position.line, ":", position.column, ": key \"", name,
                  "\" stands twice in one object (first in line ", node.line, "); remove one");
    }
    JsonNode node;
    node.line = position.line;
    node.column = position.column;
    object.members.push_back({name, std::move(node)});
    return true;
  }

  bool parse_error(std::size_t offset, const std::string&, const json::exception& error) override {
    const Position position = lines_.at(offset > 0 ? offset - 1 : 0);
    std::string reason = error.what();
    if (const size_t colon = reason.rfind("column "); colon != std::string::npos) {
      if (const size_t start = reason.find(": ", colon); start != std::string::npos) {
        reason = reason.substr(start + 2);
      }
    }
    fail_config(source_, ":", position.line, ":", position.column, ": not valid JSON: ", reason);
  }

 private:
  Position here(size_t back) const { return lines_.at(consumed_ >= back ? consumed_ - back : 0); }

  bool integer(int64_t value) {
    return scalar(JsonNode::Kind::kInteger, [&](JsonNode& node) {
      node.integer = value;
      node.number = static_cast<double>(value);
      node.literal = std::to_string(value);
    });
  }

  /// The place the next value belongs to.
  JsonNode& slot() {
    if (stack_.empty()) return root_;
    JsonNode& parent = *stack_.back();
    if (parent.kind == JsonNode::Kind::kObject) return parent.members.back().value;
    parent.items.emplace_back();
    JsonNode& item = parent.items.back();
    const Position position = here(1);
    item.line = position.line;
    item.column = position.column;
    return item;
  }

  template <class Fill>
  bool scalar(JsonNode::Kind kind, Fill fill) {
    JsonNode& node = slot();
    node.kind = kind;
    fill(node);
    return true;
  }

  bool open(JsonNode::Kind kind) {
    if (stack_.size() >= kMaxDepth) {
      const Position position = here(1);
      fail_config(source_, ":", position.line, ":", position.column, ": nested deeper than ",
                  kMaxDepth, " levels");
    }
    JsonNode& node = slot();
    node.kind = kind;
    stack_.push_back(&node);
    return true;
  }

  bool close() {
    stack_.pop_back();
    return true;
  }

  LineIndex lines_;
  const std::string& source_;
  const size_t& consumed_;
  JsonNode root_;
  std::vector<JsonNode*> stack_;  // open containers; only the innermost one grows
};

void parse(const std::string& text, const std::string& source, JsonNode& root) {
  size_t consumed = 0;
  Builder builder(text, source, consumed);
  const CountingIterator begin(text.data(), &consumed);
  const CountingIterator end(text.data() + text.size(), nullptr);
  json::sax_parse(begin, end, &builder);
  root = builder.take_root();
}

}  // namespace

JsonNode read_json(const std::string& text, const std::string& source) {
  std::string clean = text.compare(0, 3, "\xEF\xBB\xBF") == 0 ? "   " + text.substr(3) : text;
  clean = blank_extras(std::move(clean));
  if (clean.find_first_not_of(" \t\r\n") == std::string::npos) {
    fail_config(source, ": the file is empty; a configuration is a JSON object { … }");
  }
  JsonNode root;
  parse(clean, source, root);
  if (root.kind != JsonNode::Kind::kObject) {
    fail_config(source, ":1:1: the top level must be an object { … }, got ", to_text(root));
  }
  return root;
}

JsonNode read_json_value(const std::string& text) {
  JsonNode node;
  if (json::accept(text)) {
    parse(text, "override", node);
  } else {
    node.kind = JsonNode::Kind::kString;
    node.string = text;
  }
  node.line = 0;
  return node;
}

std::string to_text(const JsonNode& node) {
  std::string text;
  switch (node.kind) {
    case JsonNode::Kind::kNull:
      text = "null";
      break;
    case JsonNode::Kind::kBool:
      text = node.boolean ? "true" : "false";
      break;
    case JsonNode::Kind::kInteger:
    case JsonNode::Kind::kNumber:
      text = node.literal;
      break;
    case JsonNode::Kind::kString:
      text = json(node.string).dump(-1, ' ', false, json::error_handler_t::replace);
      break;
    case JsonNode::Kind::kArray:
      for (const auto& item : node.items) text += (text.empty() ? "" : ", ") + to_text(item);
      text = "[" + text + "]";
      break;
    case JsonNode::Kind::kObject:
      text = "{…}";
      break;
  }
  constexpr size_t kMost = 60;
  return text.size() > kMost ? text.substr(0, kMost) + "…" : text;
}

}  // namespace zerosharp
