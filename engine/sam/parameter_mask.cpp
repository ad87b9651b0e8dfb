#include "engine/sam/parameter_mask.h"

#include <torch/torch.h>

#include <algorithm>
#include <regex>
#include <set>

#include "kernels/error.h"

namespace zerosharp {
namespace {

template <class... Modules>
bool is_any_of(const torch::nn::Module& module) {
  return ((dynamic_cast<const Modules*>(&module) != nullptr) || ...);
}

bool is_norm(const torch::nn::Module& module, const std::string& path) {
  using namespace torch::nn;  // NOLINT(google-build-using-namespace): a list of its classes
  if (is_any_of<LayerNormImpl, GroupNormImpl, BatchNorm1dImpl, BatchNorm2dImpl, BatchNorm3dImpl,
                InstanceNorm1dImpl, InstanceNorm2dImpl, InstanceNorm3dImpl>(module)) {
    return true;
  }
  static const std::regex names("(^|[._])(ln|bn|rms)(_?[a-z0-9]+)?$|norm[0-9_a-z]*$",
                                std::regex::icase);
  return std::regex_search(path.substr(path.rfind('.') + 1), names);
}

std::regex compiled(const std::string& pattern) {
  try {
    return std::regex(pattern);
  } catch (const std::regex_error& error) {
    fail_config("sam.params: \"", pattern, "\" is no regular expression (", error.what(), ")");
  }
}

std::string some_names(const ParameterMask::Groups& groups) {
  std::string text;
  int shown = 0;
  for (const auto& group : groups) {
    for (const auto& parameter : group->parameters()) {
      if (++shown > 6) return text + ", …";
      text += (text.empty() ? "" : ", ") + parameter.name;
    }
  }
  return text;
}

ShardRange place_of(const FlatGroup& group, size_t parameter) {
  const int64_t begin = group.layout().offsets[parameter];
  return {begin, begin + group.layout().numels[parameter]};
}

}  // namespace

std::vector<std::string> norm_parameter_names(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    if (!is_norm(*item.value(), item.key())) continue;
    for (const auto& parameter : item.value()->named_parameters()) {
      names.push_back(item.key() + "." + parameter.key());
    }
  }
  return names;
}

ParameterMask::ParameterMask(const Groups& groups, const std::vector<std::string>& patterns,
                             const std::vector<std::string>& norm_names)
    : all_(patterns.empty()) {
  const std::set<std::string> norms(norm_names.begin(), norm_names.end());
  for (const auto& group : groups) {
    selected_.emplace_back(group->parameters().size(), all_ ? 1 : 0);
  }
  for (const std::string& pattern : patterns) {
    const bool means_norms = pattern == "norm";
    const std::regex expression = compiled(pattern);
    int64_t matched = 0;
    for (size_t g = 0; g < groups.size(); ++g) {
      for (size_t i = 0; i < groups[g]->parameters().size(); ++i) {
        const std::string& name = groups[g]->parameters()[i].name;
        if (means_norms ? norms.count(name) == 0 : !std::regex_search(name, expression)) continue;
        selected_[g][i] = 1;
        ++matched;
      }
    }
    if (matched == 0) {
      fail_config("sam.params: \"", pattern, "\" matches no trainable parameter; there are ",
                  some_names(groups));
    }
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    runs_.emplace_back();
    for (size_t i = 0; i < selected_[g].size(); ++i) {
      const ShardRange place = place_of(*groups[g], i);
      if (selected_[g][i] == 0 || place.size() == 0) continue;
      numel_ += place.size();
      auto& runs = runs_.back();
      if (!runs.empty() && runs.back().end == place.begin) {
        runs.back().end = place.end;
      } else {
        runs.push_back(place);
      }
    }
  }
}

std::vector<ShardRange> ParameterMask::runs(size_t group, ShardRange range) const {
  if (all_) return range.size() > 0 ? std::vector<ShardRange>{range} : std::vector<ShardRange>{};
  std::vector<ShardRange> inside;
  for (const ShardRange& run : runs_[group]) {
    const ShardRange part{std::max(run.begin, range.begin), std::min(run.end, range.end)};
    if (part.size() > 0) inside.push_back(part);
  }
  return inside;
}

OnlyMasked::OnlyMasked(const ParameterMask::Groups& groups, const ParameterMask& mask) {
  if (mask.all()) return;
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t i = 0; i < groups[g]->parameters().size(); ++i) {
      if (mask.contains(g, i)) continue;
      others_.push_back(groups[g]->parameters()[i].tensor);
      others_.back().requires_grad_(false);
    }
  }
}

OnlyMasked::~OnlyMasked() {
  for (at::Tensor& parameter : others_) parameter.requires_grad_(true);
}

}  // namespace zerosharp
