#include "zero/group_builder.h"

#include <torch/torch.h>

#include <cmath>
#include <exception>
#include <limits>
#include <sstream>
#include <unordered_map>

#include "kernels/error.h"
#include "zero/device.h"
#include "zero/grad_sink.h"

namespace zerosharp {
namespace {

/// 62-bit FNV-1a, so that it survives as a positive int64.
int64_t digest(const std::string& text) {
  uint64_t hash = 14695981039346656037ull;
  for (const char byte : text) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 1099511628211ull;
  }
  return static_cast<int64_t>(hash >> 2);
}

/// Names and shapes of the trainable parameters, in order.
std::string describe_parameters(const BuiltGroups& built) {
  std::ostringstream text;
  for (const auto& group : built.parameters) {
    text << "group\n";
    for (const auto& [name, tensor] : group) text << name << " " << tensor.sizes() << "\n";
  }
  return text.str();
}

std::string describe_settings(const BuiltGroups& built, const OptimizerOptions& options) {
  std::ostringstream text;
  text.precision(std::numeric_limits<double>::max_digits10);
  text << "stage " << options.stage << ", " << dtype_name(options.working)
       << " working weights, gradients accumulated in " << dtype_name(options.accumulator)
       << " and sent in " << dtype_name(options.communication.value_or(options.accumulator))
       << ", clipping " << options.max_grad_norm;
  for (const ParamGroup& group : built.options) text << "; " << describe(group);
  return text.str();
}

/// What ranks tell each other before any of them changes a tensor.
struct Agreement {
  enum : int64_t {
    kParameters,
    kParametersNegated,
    kSettings,
    kSettingsNegated,
    kFailedRank,
    kSize
  };

  Agreement(const BuiltGroups& built, const OptimizerOptions& options, bool failed, int rank)
      : parameters(failed ? 0 : digest(describe_parameters(built))),
        settings(failed ? 0 : digest(describe_settings(built, options))),
        failed_rank(failed ? rank : -1) {}

  /// Maxima over the ranks, of which two suffice to see whether all are equal.
  std::vector<int64_t> exchange(Communicator& communicator, at::Device device) const {
    at::Tensor words = at::tensor({parameters, -parameters, settings, -settings, failed_rank},
                                  at::TensorOptions().dtype(at::kLong));
    words = words.to(device);
    communicator.all_reduce(span_of(words), ReduceOp::kMax, current_stream(device));
    words = words.cpu();
    return {words.data_ptr<int64_t>(), words.data_ptr<int64_t>() + kSize};
  }

  int64_t parameters, settings, failed_rank;
};

/// Throws unless every rank could build its groups and all hold the same. `failure`: this rank's.
void agree(const BuiltGroups& built, const OptimizerOptions& options,
           const std::exception_ptr& failure, Communicator& communicator) {
  if (communicator.size() == 1) {
    if (failure) std::rethrow_exception(failure);
    return;
  }
  const Agreement mine(built, options, failure != nullptr, communicator.rank());
  const auto most = mine.exchange(communicator, built.device);
  if (failure) std::rethrow_exception(failure);
  if (most[Agreement::kFailedRank] >= 0) {
    fail_comm("the optimizer was built on no rank because rank ", most[Agreement::kFailedRank],
              " refused its parameters or settings; see its message");
  }
  if (most[Agreement::kParameters] != -most[Agreement::kParametersNegated]) {
    int64_t numel = 0;
    size_t count = 0;
    for (const auto& group : built.parameters) {
      count += group.size();
      for (const auto& parameter : group) numel += parameter.tensor.numel();
    }
    fail_comm("ranks hold different parameters: rank ", communicator.rank(), " has ", count,
              " trainable parameters with ", numel,
              " elements; names, shapes and order must be equal on all ranks");
  }
  if (most[Agreement::kSettings] != -most[Agreement::kSettingsNegated]) {
    fail_comm("ranks run with different settings: rank ", communicator.rank(), " has ",
              describe_settings(built, options),
              "; give every rank the same configuration and groups");
  }
}

void set_group_options(const std::vector<ParamGroupSpec>& specs, BuiltGroups& built) {
  for (size_t g = 0; g < specs.size(); ++g) {
    ParamGroup group = specs[g].options;
    group.parameter_names.clear();
    for (const auto& parameter : built.parameters[g]) {
      group.parameter_names.push_back(parameter.name);
    }
    if (group.name.empty()) group.name = "group " + std::to_string(g);
    if (std::isnan(group.initial_lr)) group.initial_lr = group.lr;
    check_numbers(group);
    built.options.push_back(std::move(group));
  }
}

/// Sorts the parameters of one run over all groups into trainable and frozen ones; changes none.
class Picker {
 public:
  explicit Picker(BuiltGroups& built) : built_(built) {}

  void pick(size_t group, const NamedParameter& parameter) {
    const auto& [name, tensor] = parameter;
    if (!tensor.defined()) fail_shape("parameter ", name, " of group ", group, " is undefined");
    const auto [entry, first] = seen_.try_emplace(tensor.unsafeGetTensorImpl(), group, name);
    if (!first) {
      if (entry->second.first == group) return;  // tied
      fail_shape("parameter ", name, " is in group ", entry->second.first, " (as ",
                 entry->second.second, ") and in group ", group, "; list it once");
    }
    check_device(name, tensor);
    if (!tensor.requires_grad()) {
      if (tensor.is_floating_point()) frozen_.push_back(tensor);
      check_memory(name, tensor);
      return;
    }
    check_trainable(name, tensor);
    check_memory(name, tensor);
    if (!tensor.is_contiguous()) {
      built_.notes.push_back("parameter " + name + " was made contiguous (row-major)");
    }
    built_.parameters[group].push_back(parameter);
    ++num_trainable_;
  }

  size_t num_trainable() const noexcept { return num_trainable_; }
  size_t num_seen() const noexcept { return seen_.size(); }
  const std::vector<at::Tensor>& frozen() const noexcept { return frozen_; }

 private:
  void check_device(const std::string& name, const at::Tensor& tensor) {
    if (first_name_.empty()) {
      first_name_ = name;
      built_.device = tensor.device();
    }
    if (tensor.device() == built_.device) return;
    fail_shape("parameter ", name, " is on ", tensor.device().str(), " but ", first_name_,
               " is on ", built_.device.str(), "; move the whole module to one device first");
  }

  static void check_trainable(const std::string& name, const at::Tensor& tensor) {
    if (!tensor.is_floating_point()) {
      fail_shape("parameter ", name, " is of type ", tensor.dtype().name(),
                 "; only floating-point parameters can be trained");
    }
    if (tensor.layout() != at::kStrided) {
      fail_shape("parameter ", name, " is not dense; convert it before building the engine");
    }
    if (!tensor.is_leaf()) {
      fail_shape(
          "parameter ", name,
          " is computed from other tensors; only leaves can be trained, so give its sources");
    }
    if (GradSink::is_attached(tensor)) {
      fail_shape("parameter ", name,
                 " already belongs to another engine or optimizer, which is still alive; destroy "
                 "that one first");
    }
  }

  /// Two tensors in one memory would silently become two parameters.
  void check_memory(const std::string& name, const at::Tensor& tensor) {
    if (tensor.layout() != at::kStrided || tensor.numel() == 0) return;
    const auto [entry, first] =
        memory_.try_emplace(tensor.data_ptr(), name, tensor.requires_grad());
    if (first || !(tensor.requires_grad() || entry->second.second)) return;
    fail_shape("parameter ", name, " shares its memory with ", entry->second.first,
               " but is another tensor, and training would separate them; to tie parameters "
               "register the same tensor twice, else clone() one");
  }

  BuiltGroups& built_;
  std::unordered_map<const c10::TensorImpl*, std::pair<size_t, std::string>> seen_;
  std::unordered_map<const void*, std::pair<std::string, bool>> memory_;
  std::vector<at::Tensor> frozen_;
  std::string first_name_;
  size_t num_trainable_ = 0;
};

void build(const std::vector<ParamGroupSpec>& specs, const OptimizerOptions& options,
           BuiltGroups& built, Picker& picker) {
  if (options.stage != 0 && options.stage != 1) {
    fail_config("zero_optimization.stage must be 0 or 1, got ", options.stage);
  }
  for (size_t g = 0; g < specs.size(); ++g) {
    for (const auto& parameter : specs[g].parameters) picker.pick(g, parameter);
  }
  if (picker.num_trainable() == 0) {
    fail_shape("no trainable parameter was given to the optimizer (", picker.num_seen(),
               " frozen); set requires_grad on at least one");
  }
  set_group_options(specs, built);
}

}  // namespace

BuiltGroups build_groups(const std::vector<ParamGroupSpec>& specs, const OptimizerOptions& options,
                         Communicator& communicator) {
  const at::NoGradGuard no_grad;
  BuiltGroups built;
  built.parameters.resize(specs.size());
  Picker picker(built);
  std::exception_ptr failure;
  try {
    build(specs, options, built, picker);
  } catch (...) {
    failure = std::current_exception();
  }
  agree(built, options, failure, communicator);
  for (const at::Tensor& tensor : picker.frozen()) {
    tensor.set_data(tensor.to(scalar_type(options.working)));
  }
  return built;
}

}  // namespace zerosharp
