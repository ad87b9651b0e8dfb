#include "zero/foreign_optimizer.h"

#include <torch/torch.h>

#include <limits>

#include "kernels/cast.h"
#include "kernels/error.h"
#include "zero/device.h"

namespace zerosharp {
namespace {

template <class State>
State* state_of(torch::optim::Optimizer& optimizer, const at::Tensor& shard) {
  auto& states = optimizer.state();
  const auto found = states.find(shard.unsafeGetTensorImpl());
  return found == states.end() ? nullptr : dynamic_cast<State*>(found->second.get());
}

/// Puts a LibTorch Adam or AdamW state back to what its first step would create.
template <class State>
bool reset_adam_state(torch::optim::Optimizer& optimizer, const at::Tensor& shard) {
  auto* state = state_of<State>(optimizer, shard);
  if (state == nullptr) return false;
  state->step(0);
  state->exp_avg().zero_();
  state->exp_avg_sq().zero_();
  if (state->max_exp_avg_sq().defined()) state->max_exp_avg_sq().zero_();
  return true;
}

bool reset_state(torch::optim::Optimizer& optimizer, const at::Tensor& shard) {
  return reset_adam_state<torch::optim::AdamWParamState>(optimizer, shard) ||
         reset_adam_state<torch::optim::AdamParamState>(optimizer, shard);
}

}  // namespace

ForeignOptimizer::ForeignOptimizer(const std::vector<std::unique_ptr<FlatGroup>>& groups,
                                   const Factory& factory) {
  for (const auto& group : groups) {
    at::Tensor shard = group->master().detach();
    shard.requires_grad_(true);
    shard.mutable_grad() = at::zeros_like(group->master());
    shards_.push_back(std::move(shard));
  }
  optimizer_ = factory(shards_);
  if (!optimizer_) {
    fail_config(
        "the foreign optimizer's factory returned null; return an optimizer over the shards");
  }
  if (dynamic_cast<torch::optim::LBFGS*>(optimizer_.get()) != nullptr) {
    fail_config(
        "the foreign optimizer is LBFGS, which evaluates the loss many times a step and looks at "
        "all parameters together; give one that works element by element, with one gradient a "
        "step");
  }
  const size_t given = optimizer_->param_groups().size();
  if (given != 1 && given != shards_.size()) {
    fail_config("the foreign optimizer has ", given, " groups for ", shards_.size(),
                " shards; give it one group, or one for each shard in order");
  }
}

ForeignOptimizer::~ForeignOptimizer() = default;

std::string ForeignOptimizer::initialize_states() {
  const at::NoGradGuard no_grad;
  if (!optimizer_->state().empty()) {
    return "the foreign optimizer made its states at construction; they are kept as they are";
  }
  std::vector<at::Tensor> snapshot;
  for (const auto& shard : shards_) snapshot.push_back(shard.detach().clone());
  std::string refusal;
  try {
    optimizer_->step();
  } catch (const std::exception& error) {
    refusal = error.what();
  }
  bool exact = refusal.empty();
  for (size_t i = 0; i < shards_.size(); ++i) {
    shards_[i].detach().copy_(snapshot[i]);
    if (shards_[i].numel() > 0) exact = exact && reset_state(*optimizer_, shards_[i]);
  }
  if (exact) return "the foreign optimizer's states were made by a zero-gradient step and restored";
  optimizer_->state().clear();
  if (refusal.empty()) {
    return "the foreign optimizer's states cannot be reset exactly; they are made at its first "
           "step";
  }
  return "the foreign optimizer refuses a step without a closure; its states are made at its first "
         "step (it said: " +
         refusal.substr(0, refusal.find('\n')) + ")";
}

void ForeignOptimizer::step(const std::vector<std::unique_ptr<FlatGroup>>& flat,
                            const ParamGroups& groups, float grad_scale) {
  for (size_t i = 0; i < flat.size(); ++i) {
    const ShardRange owned = flat[i]->owned();
    const at::Tensor& accumulator = flat[i]->gradients().accumulator();
    at::Tensor& gradient = shards_[i].mutable_grad();
    if (!gradient.defined()) gradient = at::zeros_like(flat[i]->master());
    if (owned.size() == 0) continue;
    kernels::cast(address(accumulator, owned.begin), dtype_of(accumulator.scalar_type()),
                  gradient.data_ptr(), DType::kF32, owned.size(),
                  current_stream(accumulator.device()));
    const at::NoGradGuard no_grad;
    gradient.mul_(grad_scale);
  }
  auto& own_groups = optimizer_->param_groups();
  for (size_t g = own_groups.size(); g < groups.size(); ++g) {
    if (groups[g].lr == groups[0].lr) continue;
    fail_config("the foreign optimizer has one group, so it cannot step parameter group ", g,
                " with lr ", groups[g].lr, " and group 0 with lr ", groups[0].lr,
                "; give it one group for each shard, in order");
  }
  for (size_t g = 0; g < own_groups.size(); ++g) own_groups[g].options().set_lr(groups[g].lr);
  const at::Tensor loss = at::zeros({}, shards_.front().options());
  optimizer_->step([&loss] { return loss; });  // gradients are already there
}

int64_t ForeignOptimizer::gradient_bytes() const {
  int64_t bytes = 0;
  for (const auto& shard : shards_) bytes += static_cast<int64_t>(shard.nbytes());
  return bytes;
}

}  // namespace zerosharp
