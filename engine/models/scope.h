// Helpers that give parameters their place in the tree of names, and scores their dtype.
#pragma once
#include <torch/nn/module.h>

#include <memory>
#include <string>

namespace zerosharp {

/// Registers an empty module `name` below `owner`; it only lends its name to what is put into it.
inline std::shared_ptr<torch::nn::Module> add_scope(torch::nn::Module& owner,
                                                    const std::string& name) {
  return owner.register_module(name, std::make_shared<torch::nn::Module>());
}

/// `x` in fp32, or unchanged if it is wider (a model converted to fp64).
inline at::Tensor at_least_fp32(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
}

}  // namespace zerosharp
