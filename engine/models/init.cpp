#include "engine/models/init.h"

#include <torch/torch.h>

namespace zerosharp {

void fill_normal(const at::Tensor& tensor, double deviation, int64_t seed,
                 const std::string& name) {
  uint64_t key = 14695981039346656037ull ^ static_cast<uint64_t>(seed);
  for (const char c : name) key = (key ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  key ^= key >> 32;  // the generator takes the low half of its seed most seriously
  const at::NoGradGuard no_grad;
  auto generator = at::detail::createCPUGenerator(key);
  tensor.normal_(0.0, deviation, generator);
}

at::Tensor normal_tensor(at::IntArrayRef sizes, double deviation, int64_t seed,
                         const std::string& name) {
  at::Tensor tensor = at::empty(sizes, at::kFloat);
  fill_normal(tensor, deviation, seed, name);
  return tensor;
}

}  // namespace zerosharp
