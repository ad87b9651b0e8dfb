// Initial values that depend on the seed and the parameter's name alone.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>

namespace zerosharp {

/// Fills fp32 CPU `tensor` with N(0, `deviation`²) drawn for (`seed`, `name`); the global generator
/// is left alone.
void fill_normal(const at::Tensor& tensor, double deviation, int64_t seed, const std::string& name);

/// A new fp32 tensor filled so.
at::Tensor normal_tensor(at::IntArrayRef sizes, double deviation, int64_t seed,
                         const std::string& name);

}  // namespace zerosharp
