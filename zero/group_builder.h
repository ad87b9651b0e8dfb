// From the user's groups to flat groups: checks, frozen parameters, agreement between ranks.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "zero/bf16_optimizer.h"

namespace zerosharp {

struct BuiltGroups {
  std::vector<ParamGroup> options;                      ///< with parameter names filled in
  std::vector<std::vector<NamedParameter>> parameters;  ///< trainable, tied tensors once, in order
  at::Device device = at::Device(at::kCPU);
  std::vector<std::string> notes;
};

/// Checks the options and the user's groups, casts frozen parameters to the working dtype and picks
/// the trainable ones. Throws ConfigError (stage), ShapeError (a tensor in two groups, nothing
/// trainable), CommError if ranks hold different parameters (collective: one small exchange).
BuiltGroups build_groups(const std::vector<ParamGroupSpec>& specs, const OptimizerOptions& options,
                         Communicator& communicator);

}  // namespace zerosharp
