// The four kinds of failure the library reports. Every message says what was wrong, the value,
// and the key or call that set it.
#pragma once
#include <sstream>
#include <stdexcept>
#include <string>

namespace zerosharp {

/// Base of all errors thrown by zerosharp.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A configuration value, argument or input file is unusable.
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// Tensors, sizes or parameters do not fit together.
class ShapeError : public Error {
 public:
  using Error::Error;
};

/// Ranks cannot find each other, disagree, or one of them is gone.
class CommError : public Error {
 public:
  using Error::Error;
};

/// The CUDA driver, runtime or a kernel reported a failure.
class CudaError : public Error {
 public:
  using Error::Error;
};

/// Throws `Kind` with all `parts` streamed one after the other into its message.
template <class Kind, class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw Kind(text.str());
}

template <class... Parts>
[[noreturn]] void fail_config(const Parts&... parts) {
  fail<ConfigError>(parts...);
}

template <class... Parts>
[[noreturn]] void fail_shape(const Parts&... parts) {
  fail<ShapeError>(parts...);
}

template <class... Parts>
[[noreturn]] void fail_comm(const Parts&... parts) {
  fail<CommError>(parts...);
}

}  // namespace zerosharp
