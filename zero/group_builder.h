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

/// Checks the options and the user's groups, picks the trainable parameters and, once every rank
/// has found its own in order, casts frozen ones to the working dtype. Collective: one small
/// exchange. Throws on all ranks, before any tensor is changed: ConfigError (stage, a group's
/// numbers) or ShapeError (a tensor in two groups or engines, mixed devices, nothing trainable…)
/// where it arose, CommError on the others, and on all if ranks hold different parameters or
/// settings.
BuiltGroups build_groups(const std::vector<ParamGroupSpec>& specs, const OptimizerOptions& options,
                         Communicator& communicator);

}  // namespace zerosharp
