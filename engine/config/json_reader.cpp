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

/// Line and column, both from 1, of the character at byte `offset`. Columns count characters (UTF-8
/// code points), as editors do.
Position position_at(const std::string& text, size_t offset) {
  Position position;
  for (size_t i = 0; i < std::min(offset, text.size()); ++i) {
    const bool continues = (static_cast<unsigned char>(text[i]) & 0xC0u) == 0x80u;
    if (text[i] == '\n') {
      position = {position.line + 1, 1};
    } else if (!continues) {
      ++position.column;
    }
  }
  return position;
}

[[noreturn]] void fail_at(const std::string& source, Position position, const std::string& what) {
  fail_config(source, ":", position.line, ":", position.column, ": ", what);
}

/// Index just behind the string that starts at `begin` (a quote), or the end of the text.
size_t skip_string(const std::string& text, size_t begin) {
  size_t i = begin + 1;
  while (i < text.size() && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
  return std::min(i + 1, text.size());
}

/// Index just behind the comment that starts at `begin`, or `begin` if none does.
size_t skip_comment(const std::string& text, size_t begin, const std::string& source) {
  const bool line = text[begin] == '#' || text.compare(begin, 2, "//") == 0;
  if (line) return std::min(text.find('\n', begin), text.size());
  if (text.compare(begin, 2, "/*") != 0) return begin;
  const size_t end = text.find("*/", begin + 2);
  if (end == std::string::npos) {
    fail_at(source, position_at(text, begin), "this comment is never closed; end it with */");
  }
  return end + 2;
}

/// Comments and trailing commas become spaces, so that every other byte keeps its place.
std::string blank_extras(const std::string& text, const std::string& source) {
  std::string clean = text;
  char last = '\0';    // the last byte that was neither blank nor comment, and the one before
  char before = '\0';  // it: a comma trails only where a value stands in front of it
  size_t last_at = 0;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (const size_t end = skip_comment(text, i, source); end != i) {
      for (; i < end; ++i) {
        if (text[i] != '\n') clean[i] = ' ';
      }
      continue;
    }
    const bool blank = c == ' ' || c == '\t' || c == '\n' || c == '\r';
    const bool after_value = before != '\0' && before != ',' && before != '{' && before != '[';
    if ((c == '}' || c == ']') && last == ',' && after_value) clean[last_at] = ' ';
    if (!blank) {
      before = last;
      last = c;
      last_at = i;
    }
    i = c == '"' ? skip_string(text, i) : i + 1;
  }
  return clean;
}

/// What the parser found: its text is "[json.exception…] parse error at line 1, column 2: reason",
/// or the same without the place, which is counted in the blanked text and in bytes.
std::string reason_of(const json::exception& error) {
  std::string reason = error.what();
  reason.erase(0, reason.find("] ") + 2);
  if (reason.rfind("parse error at line", 0) == 0) reason.erase(0, reason.find(": ") + 2);
  return reason;
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

/// Builds the tree; `text` is what the user wrote, byte for byte as long as what is parsed.
class Builder final : public nlohmann::json_sax<json> {
 public:
  Builder(const std::string& text, const std::string& source, const size_t& consumed)
      : text_(text), source_(source), consumed_(consumed) {}

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
    const Position position = position_at(text_, string_begin());
    for (const auto& [known, node] : object.members) {
      if (known != name) continue;
      fail_at(source_, position,
              "key \"" + name + "\" stands twice in one object (first in line " +
                  std::to_string(node.line) + "); remove one");
    }
    JsonNode node;
    node.line = position.line;
    node.column = position.column;
    object.members.push_back({name, std::move(node)});
    return true;
  }

  /// `offset` counts the bytes read so far, the offending one included.
  bool parse_error(std::size_t offset, const std::string&, const json::exception& error) override {
    fail_at(source_, position_at(text_, offset > 0 ? offset - 1 : 0),
            "not valid JSON: " + reason_of(error));
  }

 private:
  /// Where the string that was read last begins: back over its closing quote to the first one that
  /// no odd number of backslashes escapes.
  size_t string_begin() const {
    size_t i = std::min(consumed_, text_.size()) - 1;
    while (i > 0) {
      --i;
      size_t slashes = 0;
      while (slashes < i && text_[i - 1 - slashes] == '\\') ++slashes;
      if (text_[i] == '"' && slashes % 2 == 0) break;
    }
    return i;
  }

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
    item.line = parent.line;
    item.column = parent.column;
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
      fail_at(source_, position_at(text_, consumed_ - 1),
              "nested deeper than " + std::to_string(kMaxDepth) + " levels");
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

  const std::string& text_;
  const std::string& source_;
  const size_t& consumed_;
  JsonNode root_;
  std::vector<JsonNode*> stack_;  // open containers; only the innermost one grows
};

/// Parses `clean`, which is `text` with blanks in place of what strict JSON does not know.
JsonNode parse(const std::string& clean, const std::string& text, const std::string& source) {
  size_t consumed = 0;
  Builder builder(text, source, consumed);
  const CountingIterator begin(clean.data(), &consumed);
  const CountingIterator end(clean.data() + clean.size(), nullptr);
  json::sax_parse(begin, end, &builder);
  return builder.take_root();
}

}  // namespace

JsonNode read_json(const std::string& text, const std::string& source) {
  if (text.compare(0, 3, "\xEF\xBB\xBF") == 0) return read_json(text.substr(3), source);
  if (const size_t zero = text.find('\0'); zero != std::string::npos) {
    fail_at(source, position_at(text, zero), "a zero byte is no text; save the file as UTF-8");
  }
  const std::string clean = blank_extras(text, source);
  if (clean.find_first_not_of(" \t\r\n") == std::string::npos) {
    fail_config(source, ": the file is empty; a configuration is a JSON object { … }");
  }
  JsonNode root = parse(clean, text, source);
  if (root.kind != JsonNode::Kind::kObject) {
    const Position position = position_at(text, clean.find_first_not_of(" \t\r\n"));
    fail_at(source, position, "the top level must be an object { … }, got " + to_text(root));
  }
  return root;
}

JsonNode read_json_value(const std::string& text) {
  JsonNode node;
  if (json::accept(text)) {
    node = parse(text, text, "(override)");
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
  size_t most = 60;
  if (text.size() <= most) return text;
  while ((static_cast<unsigned char>(text[most]) & 0xC0u) == 0x80u) --most;  // no half characters
  return text.substr(0, most) + "…";
}

}  // namespace zerosharp
