// Relaxed JSON with positions: what people really put into configuration files.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace zerosharp {

struct JsonMember;

/// One value of a configuration file and where it stands.
struct JsonNode {
  enum class Kind { kNull, kBool, kInteger, kNumber, kString, kArray, kObject };

  Kind kind = Kind::kNull;
  bool boolean = false;
  int64_t integer = 0;              ///< kInteger
  double number = 0;                ///< kNumber and kInteger
  std::string string;               ///< kString
  std::string literal;              ///< kNumber, kInteger: the digits as written
  std::vector<JsonNode> items;      ///< kArray
  std::vector<JsonMember> members;  ///< kObject, in file order
  int line = 0;    ///< of the key (array items: of their array's), from 1; 0: not from a file
  int column = 0;  ///< in characters, from 1
};

struct JsonMember {
  std::string name;
  JsonNode value;
};

/// Reads `text`: JSON plus #, // and /* */ comments and trailing commas; a UTF-8 byte order mark is
/// skipped. Throws ConfigError `source:line:column: …` for syntax errors, duplicate keys at any
/// depth, nesting beyond 64 levels, an unclosed comment, a zero byte (UTF-16), an empty file, or a
/// top level that is no object.
JsonNode read_json(const std::string& text, const std::string& source);

/// A single value as given on the command line: JSON if it is JSON, else the text as a string.
/// Throws ConfigError for an object that holds a key twice or nests beyond 64 levels.
JsonNode read_json_value(const std::string& text);

/// The value as compact JSON for messages, cut to 60 characters.
std::string to_text(const JsonNode& node);

}  // namespace zerosharp
