// Which parameters SAM perturbs.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "zero/flat_group.h"

namespace torch::nn {
class Module;
}

namespace zerosharp {

/// Names of the parameters of normalization layers: LibTorch's, and modules whose own name says so
/// ("ln_1", "norm2", "bn", "input_layernorm").
std::vector<std::string> norm_parameter_names(const torch::nn::Module& module);

/// The perturbed parameters as runs of the flat buffers.
class ParameterMask {
 public:
  using Groups = std::vector<std::unique_ptr<FlatGroup>>;

  /// `patterns`: "norm" stands for `norm_names`; anything else is a regular expression (ECMAScript)
  /// looked for in the parameters' names. Empty: every parameter. Throws ConfigError for a bad
  /// expression, and for one that matches nothing, with some of the names there are.
  ParameterMask(const Groups& groups, const std::vector<std::string>& patterns,
                const std::vector<std::string>& norm_names);

  bool all() const noexcept { return all_; }
  int64_t numel() const noexcept { return numel_; }
  bool contains(size_t group, size_t parameter) const { return selected_[group][parameter] != 0; }
  /// The selected elements of group `group` inside `range`, in order, as few runs as possible. With
  /// all() the range itself, padding included.
  std::vector<ShardRange> runs(size_t group, ShardRange range) const;

 private:
  bool all_;
  int64_t numel_ = 0;
  std::vector<std::vector<char>> selected_;    // by group and parameter
  std::vector<std::vector<ShardRange>> runs_;  // by group, of the whole buffer
};

/// Keeps autograd from computing gradients of parameters outside the mask, which the first pass has
/// no use for, as long as it lives (Mueller et al. 2023, SAM-ON).
class OnlyMasked {
 public:
  OnlyMasked(const ParameterMask::Groups& groups, const ParameterMask& mask);
  ~OnlyMasked();
  OnlyMasked(const OnlyMasked&) = delete;
  OnlyMasked& operator=(const OnlyMasked&) = delete;

 private:
  std::vector<at::Tensor> others_;
};

}  // namespace zerosharp
