// Relaxed JSON: what is accepted beyond the standard, and the exact place of every error.
#include "engine/config/json_reader.h"

#include "tests/engine/config/parse.h"

namespace zerosharp {
namespace {

using Kind = JsonNode::Kind;
using testing::expect_parts;

std::string refusal(const std::string& text) {
  try {
    read_json(text, "f.json");
  } catch (const ConfigError& error) {
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << text;
  return {};
}

const JsonNode& member(const JsonNode& object, const std::string& name) {
  for (const auto& [known, value] : object.members) {
    if (known == name) return value;
  }
  throw std::out_of_range(name);
}

TEST(JsonReader, KeepsKindsAndOrder) {
  const JsonNode root = read_json(
      R"({"z": null, "b": true, "i": -7, "f": 2.5, "s": "x", "a": [1, "two"], "o": {}})", "f.json");
  ASSERT_EQ(root.members.size(), 7u);
  EXPECT_EQ(root.members.front().name, "z");
  EXPECT_EQ(member(root, "z").kind, Kind::kNull);
  EXPECT_TRUE(member(root, "b").boolean);
  EXPECT_EQ(member(root, "i").integer, -7);
  EXPECT_EQ(member(root, "i").number, -7.0);
  EXPECT_EQ(member(root, "f").kind, Kind::kNumber);
  EXPECT_EQ(member(root, "f").number, 2.5);
  EXPECT_EQ(member(root, "s").string, "x");
  ASSERT_EQ(member(root, "a").items.size(), 2u);
  EXPECT_EQ(member(root, "a").items[1].string, "two");
  EXPECT_EQ(member(root, "o").kind, Kind::kObject);
}

TEST(JsonReader, NumbersBeyond64BitsStayNumbers) {
  const JsonNode root = read_json(
      R"({"most": 9223372036854775807, "more": 9223372036854775808, "sci": 5e8})", "f.json");
  EXPECT_EQ(member(root, "most").integer, INT64_MAX);
  EXPECT_EQ(member(root, "more").kind, Kind::kNumber);
  EXPECT_EQ(member(root, "more").number, 0x1p63);
  EXPECT_EQ(member(root, "sci").kind, Kind::kNumber);
  EXPECT_EQ(member(root, "sci").literal, "5e8");
}

TEST(JsonReader, SkipsCommentsOutsideStringsOnly) {
  const JsonNode root = read_json(
      "# first\n{ // of many\n\"a\": \"# not // a /* comment */\", /* \"b\": 1,\n */\n\"c\": "
      "\"\\\"// quoted \\\\\" // end\n}\n// after",
      "f.json");
  ASSERT_EQ(root.members.size(), 2u);
  EXPECT_EQ(member(root, "a").string, "# not // a /* comment */");
  EXPECT_EQ(member(root, "c").string, "\"// quoted \\");
  EXPECT_EQ(member(root, "c").line, 5);
}

TEST(JsonReader, AcceptsOneTrailingCommaBehindAValue) {
  const JsonNode root = read_json("{\"a\": [1, 2, /* last */ ], \"o\": {\"x\": {},},}", "f.json");
  EXPECT_EQ(member(root, "a").items.size(), 2u);
  for (const char* text : {"{,}", "{\"a\": [,]}", "{\"a\": [1,,]}", "{\"a\": 1,,}", "{\"a\":,}"}) {
    expect_parts(refusal(text), {"f.json:1:", "not valid JSON"});
  }
}

TEST(JsonReader, SkipsAByteOrderMarkWithoutMovingColumns) {
  EXPECT_EQ(member(read_json("\xEF\xBB\xBF{\"a\": 1}", "f.json"), "a").column, 2);
  expect_parts(refusal("\xEF\xBB\xBF{\"a\": 1 \"b\"}"), {"f.json:1:"});
  expect_parts(refusal(std::string("\xFF\xFE{\0\"\0", 6)), {"f.json:1:", "zero byte", "UTF-8"});
}

TEST(JsonReader, PositionsOfKeysAreExact) {
  const JsonNode root = read_json(
      "{\n  \"one\": 1,\n\t\"two\": {\"three\"  : [4]}, \"f\\u0061r\": 5,"
      "\n\n  \"gr\xC3\xBC\xC3\x9F\": 1, \"after\": 2}",
      "f.json");
  const auto at = [](const JsonNode& node) { return std::pair(node.line, node.column); };
  EXPECT_EQ(at(member(root, "one")), std::pair(2, 3));
  EXPECT_EQ(at(member(root, "two")), std::pair(3, 2));
  EXPECT_EQ(at(member(member(root, "two"), "three")), std::pair(3, 10));
  EXPECT_EQ(at(member(member(root, "two"), "three").items[0]), std::pair(3, 10));
  EXPECT_EQ(at(member(root, "far")), std::pair(3, 27));
  EXPECT_EQ(at(member(root, "gr\xC3\xBC\xC3\x9F")), std::pair(5, 3));
  EXPECT_EQ(at(member(root, "after")), std::pair(5, 14));  // columns count characters, not bytes
}

TEST(JsonReader, PositionsOfSyntaxErrorsAreExact) {
  expect_parts(refusal("{\n  \"a\" 1\n}"), {"f.json:2:7: not valid JSON", "':'"});
  expect_parts(refusal("{\"a\": 1\n \"b\": 2}"), {"f.json:2:4: not valid JSON"});
  expect_parts(refusal("/* \xC3\xBC */ {\"a\": ?}"), {"f.json:1:15: not valid JSON"});
  expect_parts(refusal("{\"a\": 1"), {"f.json:1:8: not valid JSON", "end of input"});
  expect_parts(refusal("{\"a\": \"open}"), {"f.json:1:13: not valid JSON", "closing quote"});
  expect_parts(refusal("{\"a\": 1e999}"), {"f.json:1:11: not valid JSON: number overflow"});
  expect_parts(refusal("{\n /* open"), {"f.json:2:2: this comment is never closed"});
  expect_parts(refusal("\n [1]"), {"f.json:2:2: the top level must be an object", "got [1]"});
  expect_parts(refusal("{\"a\": NaN}"), {"f.json:1:", "not valid JSON"});
}

TEST(JsonReader, NamesTheEmptyFile) {
  for (const char* text : {"", " \n\t", "// nothing yet\n", "\xEF\xBB\xBF"}) {
    EXPECT_EQ(refusal(text), "f.json: the file is empty; a configuration is a JSON object { … }");
  }
}

TEST(JsonReader, RefusesDuplicateKeysAtAnyDepth) {
  expect_parts(refusal("{\"a\": 1,\n \"a\": 2}"),
               {"f.json:2:2: key \"a\" stands twice", "first in line 1"});
  expect_parts(refusal("{\"o\": {\"p\": {\"q\": 1, \"r\": 2,\n\n  \"q\": 1}}}"),
               {"f.json:3:3: key \"q\" stands twice", "first in line 1"});
  expect_parts(refusal("{\"o\": [{\"q\": 1, \"q\": 1}]}"), {"f.json:1:17: key \"q\" stands twice"});
  EXPECT_EQ(read_json("{\"a\": {\"x\": 1}, \"b\": {\"x\": 1}}", "f.json").members.size(), 2u);
}

TEST(JsonReader, BoundsNesting) {
  const auto nested = [](int depth) {
    return "{\"a\":" + std::string(depth - 1, '[') + std::string(depth - 1, ']') + "}";
  };
  EXPECT_NO_THROW(read_json(nested(64), "f.json"));
  EXPECT_EQ(refusal(nested(65)), "f.json:1:69: nested deeper than 64 levels");
  expect_parts(refusal("{\"a\":" + std::string(1000000, '[')), {"nested deeper than 64 levels"});
}

TEST(JsonReader, ValuesOfTheCommandLineAreJsonOrText) {
  EXPECT_EQ(read_json_value("0.1").number, 0.1);
  EXPECT_EQ(read_json_value("true").kind, Kind::kBool);
  EXPECT_EQ(read_json_value("[1, 2]").items.size(), 2u);
  EXPECT_EQ(read_json_value("\"0.1\"").string, "0.1");
  EXPECT_EQ(read_json_value("data/a b.txt").string, "data/a b.txt");
  EXPECT_EQ(read_json_value("NaN").string, "NaN");
  EXPECT_EQ(read_json_value("").string, "");
  EXPECT_THROW(read_json_value("{\"a\": 1, \"a\": 2}"), ConfigError);
}

TEST(JsonReader, MessagesShowValuesCutAtACharacter) {
  EXPECT_EQ(to_text(read_json_value("[1, \"a\", null, {\"x\": 1}, false]")),
            "[1, \"a\", null, {…}, false]");
  std::string umlauts = "\"";
  for (int i = 0; i < 50; ++i) umlauts += "\xC3\xBC";
  EXPECT_EQ(to_text(read_json_value(umlauts + "\"")), umlauts.substr(0, 59) + "…");
}

}  // namespace
}  // namespace zerosharp
