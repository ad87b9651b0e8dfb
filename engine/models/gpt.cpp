#include "engine/models/gpt.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "engine/models/init.h"
#include "engine/models/scope.h"
#include "kernels/error.h"

namespace zerosharp {
namespace {

constexpr double kDeviation = 0.02;  // GPT-2's
constexpr double kNormEpsilon = 1e-5;
constexpr int64_t kByteValues = 256;

/// Evaluation mode for as long as it lives; the mode found is restored.
class EvalMode {
 public:
  explicit EvalMode(torch::nn::Module& module)
      : module_(module), was_training_(module.is_training()) {
    module_.eval();
  }
  ~EvalMode() { module_.train(was_training_); }
  EvalMode(const EvalMode&) = delete;
  EvalMode& operator=(const EvalMode&) = delete;

 private:
  torch::nn::Module& module_;
  bool was_training_;
};

/// The last `most` bytes of `text` as int64 tokens of shape [1, time].
at::Tensor last_tokens(const std::string& text, int64_t most) {
  const size_t length = std::min(text.size(), static_cast<size_t>(most));
  std::vector<int64_t> tokens;
  for (const char c : text.substr(text.size() - length)) {
    tokens.push_back(static_cast<unsigned char>(c));
  }
  return at::tensor(tokens).unsqueeze(0);
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
  auto transformer = add_scope(*this, "transformer");
  token_embedding_ =
      make_weight(*transformer, "wte", {config.vocab_size, width}, kDeviation, "transformer.wte");
  position_embedding_ =
      make_weight(*transformer, "wpe", {config.block_size, width}, kDeviation, "transformer.wpe");
  auto layers = add_scope(*transformer, "h");
  for (int64_t i = 0; i < config.n_layer; ++i) {
    const std::string index = std::to_string(i);
    blocks_.push_back(make_block(*add_scope(*layers, index), "transformer.h." + index));
  }
  final_norm_ = make_norm(*transformer, "ln_f");
  head_ = config.tied_head
              ? token_embedding_
              : make_weight(*this, "lm_head", {config.vocab_size, width}, kDeviation, "lm_head");
}

at::Tensor Gpt::make_weight(torch::nn::Module& owner, const std::string& name,
                            at::IntArrayRef sizes, double deviation, const std::string& path) {
  return add_scope(owner, name)
      ->register_parameter("weight", normal_tensor(sizes, deviation, seed_, path + ".weight"));
}

Gpt::Block Gpt::make_block(torch::nn::Module& owner, const std::string& path) {
  const int64_t width = config_.n_embd;
  // Projections into the residual stream are scaled by the number of additions (GPT-2,
  // section 2.3).
  const double residual = kDeviation / std::sqrt(2.0 * static_cast<double>(config_.n_layer));
  Block block;
  block.norm1 = make_norm(owner, "ln_1");
  auto attention = add_scope(owner, "attn");
  block.attention =
      make_linear(*attention, "c_attn", width, 3 * width, kDeviation, path + ".attn.c_attn");
  block.attention_out =
      make_linear(*attention, "c_proj", width, width, residual, path + ".attn.c_proj");
  block.norm2 = make_norm(owner, "ln_2");
  auto mlp = add_scope(owner, "mlp");
  block.expand = make_linear(*mlp, "c_fc", width, 4 * width, kDeviation, path + ".mlp.c_fc");
  block.contract = make_linear(*mlp, "c_proj", 4 * width, width, residual, path + ".mlp.c_proj");
  return block;
}

Gpt::Linear Gpt::make_linear(torch::nn::Module& owner, const std::string& name, int64_t in,
                             int64_t out, double deviation, const std::string& path) {
  auto scope = add_scope(owner, name);
  Linear linear;
  linear.weight = scope->register_parameter(
      "weight", normal_tensor({out, in}, deviation, seed_, path + ".weight"));
  if (config_.bias) linear.bias = scope->register_parameter("bias", at::zeros({out}));
  return linear;
}

Gpt::Norm Gpt::make_norm(torch::nn::Module& owner, const std::string& name) {
  auto scope = add_scope(owner, name);
  Norm norm;
  norm.weight = scope->register_parameter("weight", at::ones({config_.n_embd}));
  if (config_.bias) norm.bias = scope->register_parameter("bias", at::zeros({config_.n_embd}));
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
  return at_least_fp32(at::linear(final_norm_(x), head_));
}

std::string Gpt::generate(const std::string& prompt, int64_t count, double temperature,
                          int64_t seed) {
  if (config_.vocab_size < kByteValues) {
    fail_config("gpt: text needs a model.vocab_size of at least 256 (bytes), got ",
                config_.vocab_size);
  }
  if (!(temperature > 0)) fail_config("gpt: generate needs a temperature > 0, got ", temperature);
  const at::NoGradGuard no_grad;
  const EvalMode no_dropout(*this);
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  std::string text = prompt.empty() ? "\n" : prompt;
  for (int64_t i = 0; i < count; ++i) {
    const at::Tensor inputs = last_tokens(text, config_.block_size).to(token_embedding_.device());
    const at::Tensor last = logits(inputs).select(0, 0).select(0, -1).cpu();
    const at::Tensor odds = at::softmax(last.narrow(0, 0, kByteValues) / temperature, -1);
    text += static_cast<char>(at::multinomial(odds, 1, false, generator).item<int64_t>());
  }
  return text;
}

}  // namespace zerosharp
