// Shorthands of the configuration tests.
#pragma once
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "engine/config/config.h"
#include "kernels/error.h"

namespace zerosharp::testing {

inline Config parse(const std::string& text, const std::vector<std::string>& overrides = {},
                    int world_size = 2) {
  return parse_config(text, "run.json", overrides, world_size);
}

/// The message `text` is refused with; empty (and a failed test) if it is accepted.
inline std::string error_of(const std::string& text, const std::vector<std::string>& overrides = {},
                            int world_size = 2) {
  try {
    parse(text, overrides, world_size);
  } catch (const ConfigError& error) {
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << text;
  return {};
}

inline void expect_parts(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
  }
}

inline std::string all_warnings(const Config& config) {
  std::string text;
  for (const std::string& line : config.warnings) text += line + "\n";
  return text;
}

/// A complete small configuration whose optimizer and other sections are `more`.
inline std::string with_batch(const std::string& more) {
  return R"({"train_batch_size": 4)" + (more.empty() ? "" : ", " + more) + "}";
}

}  // namespace zerosharp::testing
