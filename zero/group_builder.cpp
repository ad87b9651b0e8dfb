#include "zero/group_builder.h"

#include <torch/torch.h>

#include <unordered_map>

#include "kernels/error.h"
#include "zero/device.h"

namespace zerosharp {
namespace {

uint64_t mix(uint64_t hash, std::string_view bytes) {  // FNV-1a
  for (const char byte : bytes) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 1099511628211ull;
  }
  return hash;
}

/// 62-bit digest of names and shapes, so that it survives as a positive int64.
int64_t digest(const std::vector<std::vector<NamedParameter>>& groups) {
  uint64_t hash = 14695981039346656037ull;
  for (const auto& group : groups) {
    hash = mix(hash, "|group|");
    for (const auto& [name, tensor] : group) {
      hash = mix(hash, name);
      for (const int64_t size : tensor.sizes()) hash = mix(hash, std::to_string(size) + ",");
    }
  }
  return static_cast<int64_t>(hash >> 2);
}

void check_agreement(const std::vector<std::vector<NamedParameter>>& groups, at::Device device,
                     Communicator& communicator) {
  if (communicator.size() == 1) return;
  const int64_t mine = digest(groups);
  at::Tensor bounds = at::empty({2}, at::TensorOptions().dtype(at::kLong));
  bounds[0] = mine;
  bounds[1] = -mine;
  bounds = bounds.to(device);
  communicator.all_reduce(span_of(bounds), ReduceOp::kMax, current_stream(device));
  bounds = bounds.cpu();
  if (bounds[0].item<int64_t>() == mine && bounds[1].item<int64_t>() == -mine) return;
  int64_t numel = 0;
  size_t count = 0;
  for (const auto& group : groups) {
    count += group.size();
    for (const auto& parameter : group) numel += parameter.tensor.numel();
  }
  fail_comm("ranks hold different parameters: rank ", communicator.rank(), " has ", count,
            " trainable parameters with ", numel,
            " elements; names, shapes and order must be equal on all ranks");
}

std::vector<ParamGroup> group_options(const std::vector<ParamGroupSpec>& specs,
                                      const std::vector<std::vector<NamedParameter>>& parameters) {
  std::vector<ParamGroup> groups;
  for (size_t g = 0; g < specs.size(); ++g) {
    groups.push_back(specs[g].options);
    groups.back().parameter_names.clear();
    for (const auto& parameter : parameters[g]) {
      groups.back().parameter_names.push_back(parameter.name);
    }
    if (groups.back().name.empty()) groups.back().name = "group " + std::to_string(g);
  }
  return groups;
}

/// Sorts the parameters of one run over all groups into trainable and frozen ones.
class Picker {
 public:
  Picker(DType working, BuiltGroups& built) : working_(working), built_(built) {}

  void pick(size_t group, const NamedParameter& parameter) {
    const auto& [name, tensor] = parameter;
    if (!tensor.defined()) fail_shape("parameter ", name, " of group ", group, " is undefined");
    const auto [entry, first] = seen_.try_emplace(tensor.unsafeGetTensorImpl(), group, name);
    if (!first) {
      if (entry->second.first == group) return;  // tied
      fail_shape("parameter ", name, " is in group ", entry->second.first, " (as ",
                 entry->second.second, ") and in group ", group, "; list it once");
    }
    built_.device = tensor.device();
    if (!tensor.requires_grad()) {
      if (tensor.is_floating_point()) tensor.set_data(tensor.to(scalar_type(working_)));
      return;
    }
    if (!tensor.is_contiguous()) {
      built_.notes.push_back("parameter " + name + " was made contiguous (row-major)");
    }
    built_.parameters[group].push_back(parameter);
    ++num_trainable_;
  }

  size_t num_trainable() const noexcept { return num_trainable_; }
  size_t num_seen() const noexcept { return seen_.size(); }

 private:
  DType working_;
  BuiltGroups& built_;
  std::unordered_map<const c10::TensorImpl*, std::pair<size_t, std::string>> seen_;
  size_t num_trainable_ = 0;
};

}  // namespace

BuiltGroups build_groups(const std::vector<ParamGroupSpec>& specs, const OptimizerOptions& options,
                         Communicator& communicator) {
  if (options.stage != 0 && options.stage != 1) {
    fail_config("zero_optimization.stage must be 0 or 1, got ", options.stage);
  }
  const at::NoGradGuard no_grad;
  BuiltGroups built;
  built.parameters.resize(specs.size());
  Picker picker(options.working, built);
  for (size_t g = 0; g < specs.size(); ++g) {
    for (const auto& parameter : specs[g].parameters) picker.pick(g, parameter);
  }
  if (picker.num_trainable() == 0) {
    fail_shape("no trainable parameter was given to the optimizer (", picker.num_seen(),
               " frozen); set requires_grad on at least one");
  }
  built.options = group_options(specs, built.parameters);
  check_agreement(built.parameters, built.device, communicator);
  return built;
}

}  // namespace zerosharp
