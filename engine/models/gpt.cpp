#include "engine/models/gpt.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "engine/models/init.h"
#include "kernels/error.h"

namespace zerosharp {
namespace {

constexpr double kDeviation = 0.02;  // GPT-2's
constexpr double kNormEpsilon = 1e-5;

/// A module that only gives its parameters their place in the tree of names.
std::shared_ptr<torch::nn::Module> add_scope(torch::nn::Module& owner, const std::string& name) {
  return owner.register_module(name, std::make_shared<torch::nn::Module>());
}

}  // namespace

at::Tensor Gpt::Linear::operator()(const at::Tensor& x) const {
  return at::linear(x, weight, bias);
}

at::Tensor Gpt::Norm::operator()(const at::Tensor& x) const {
  return at::layer_norm(x, {x.size(-1)}, weight, bias, kNormEpsilon);
}

Gpt::Gpt(const ModelConfig& config, int64_t seed) : config_(config), seed_(seed) {
  if (config.n_embd % config.n_head != 0) {
    fail_config("model.n_embd ", config.n_embd, " is not a multiple of model.n_head ",
                config.n_head);
  }
  const int64_t width = config.n_embd;
  // Residual projections are scaled by the number of residual additions (GPT-2, section 2.3).
  const double residual = kDeviation / std::sqrt(2.0 * static_cast<double>(config.n_layer));
  auto transformer = add_scope(*this, "transformer");
  auto wte = add_scope(*transformer, "wte");
  auto wpe = add_scope(*transformer, "wpe");
  token_embedding_ = wte->register_parameter(
      "weight",
      normal_tensor({config.vocab_size, width}, kDeviation, seed, "transformer.wte.weight"));
  position_embedding_ = wpe->register_parameter(
      "weight",
      normal_tensor({config.block_size, width}, kDeviation, seed, "transformer.wpe.weight"));
  auto layers = add_scope(*transformer, "h");
  for (int64_t i = 0; i < config.n_layer; ++i) {
    const std::string index = std::to_string(i);
    const std::string prefix = "transformer.h." + index + ".";
    auto layer = add_scope(*layers, index);
    auto ln1 = add_scope(*layer, "ln_1");
    auto attention = add_scope(*layer, "attn");
    auto c_attn = add_scope(*attention, "c_attn");
    auto attention_out = add_scope(*attention, "c_proj");
    auto ln2 = add_scope(*layer, "ln_2");
    auto mlp = add_scope(*layer, "mlp");
    auto c_fc = add_scope(*mlp, "c_fc");
    auto mlp_out = add_scope(*mlp, "c_proj");
    Block block;
    block.norm1 = make_norm(*ln1, prefix + "ln_1");
    block.attention = make_linear(*c_attn, width, 3 * width, kDeviation, prefix + "attn.c_attn");
    block.attention_out = make_linear(*attention_out, width, width, residual, prefix + "attn.c_proj");
    block.norm2 = make_norm(*ln2, prefix + "ln_2");
    block.expand = make_linear(*c_fc, width, 4 * width, kDeviation, prefix + "mlp.c_fc");
    block.contract = make_linear(*mlp_out, 4 * width, width, residual, prefix + "mlp.c_proj");
    blocks_.push_back(std::move(block));
  }
  final_norm_ = make_norm(*add_scope(*transformer, "ln_f"), "transformer.ln_f");
  if (config.tied_head) {
    head_ = token_embedding_;
  } else {
    head_ = add_scope(*this, "lm_head")
                ->register_parameter("weight", normal_tensor({config.vocab_size, width}, kDeviation,
                                                             seed, "lm_head.weight"));
  }
}

Gpt::Linear Gpt::make_linear(torch::nn::Module& owner, int64_t in, int64_t out, double deviation,
                             const std::string& name) {
  Linear linear;
  linear.weight = owner.register_parameter(
      "weight", normal_tensor({out, in}, deviation, seed_, name + ".weight"));
  if (config_.bias) linear.bias = owner.register_parameter("bias", at::zeros({out}));
  return linear;
}

Gpt::Norm Gpt::make_norm(torch::nn::Module& owner, const std::string&) {
  Norm norm;
  norm.weight = owner.register_parameter("weight", at::ones({config_.n_embd}));
  if (config_.bias) norm.bias = owner.register_parameter("bias", at::zeros({config_.n_embd}));
  return norm;
}

at::Tensor Gpt::drop(const at::Tensor& x) const {
  return config_.dropout > 0 ? at::dropout(x, config_.dropout, is_training()) : x;
}

at::Tensor Gpt::attend(const Block& block, const at::Tensor& x) const {
  const int64_t batch = x.size(0);
  const int64_t time = x.size(1);
  const int64_t width = config_.n_embd;
  const at::Tensor qkv = block.attention(x)
                             .view({batch, time, 3, config_.n_head, width / config_.n_head})
                             .permute({2, 0, 3, 1, 4});
  const double dropout = is_training() ? config_.dropout : 0.0;
  const at::Tensor mixed = at::scaled_dot_product_attention(
      qkv.select(0, 0), qkv.select(0, 1), qkv.select(0, 2), {}, dropout, /*is_causal=*/true);
  return block.attention_out(mixed.transpose(1, 2).reshape({batch, time, width}));
}

at::Tensor Gpt::logits(const at::Tensor& inputs) {
  const int64_t time = inputs.size(1);
  if (time > config_.block_size) {
    fail_shape("gpt: a sequence of ", time, " tokens is longer than model.block_size ",
               config_.block_size);
  }
  const at::Tensor positions = position_embedding_.narrow(0, 0, time);
  at::Tensor x = drop(at::embedding(token_embedding_, inputs) + positions);
  for (const Block& block : blocks_) {
    x = x + drop(attend(block, block.norm1(x)));
    const at::Tensor hidden = at::gelu(block.expand(block.norm2(x)), "tanh");
    x = x + drop(block.contract(hidden));
  }
  return at::linear(final_norm_(x), head_).to(at::kFloat);
}

std::string Gpt::generate(const std::string& prompt, int64_t count, double temperature,
                          int64_t seed) {
  if (config_.vocab_size != 256) {
    fail_config("gpt: text can be generated with model.vocab_size 256 only, got ",
                config_.vocab_size);
  }
  const at::NoGradGuard no_grad;
  const auto device = token_embedding_.device();
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  std::string text = prompt.empty() ? "\n" : prompt;
  for (int64_t i = 0; i < count; ++i) {
    const size_t length = std::min(text.size(), static_cast<size_t>(config_.block_size));
    std::vector<int64_t> tokens;
    for (const char c : text.substr(text.size() - length)) {
      tokens.push_back(static_cast<unsigned char>(c));
    }
    const at::Tensor inputs = at::tensor(tokens).unsqueeze(0).to(device);
    const at::Tensor last = logits(inputs).select(0, 0).select(0, -1).cpu();
    const at::Tensor odds = at::softmax(last / temperature, -1);
    text += static_cast<char>(at::multinomial(odds, 1, false, generator).item<int64_t>());
  }
  return text;
}

}  // namespace zerosharp
