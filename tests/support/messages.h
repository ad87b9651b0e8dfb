// What an error says.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace zerosharp::testing {

/// The message of the `Kind` that `body` throws; anything else fails the test.
template <class Kind, class Body>
std::string message_of(Body body) {
  try {
    body();
  } catch (const Kind& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another type of error: " << error.what();
    return "";
  }
  ADD_FAILURE() << "no error";
  return "";
}

inline void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const auto& part : parts) EXPECT_NE(text.find(part), std::string::npos) << text;
}

}  // namespace zerosharp::testing
