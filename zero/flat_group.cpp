#include "zero/flat_group.h"

#include <torch/torch.h>

#include <algorithm>

#include "kernels/cast.h"
#include "kernels/error.h"
#include "zero/device.h"

namespace zerosharp {
namespace {

GroupLayout plan(const std::vector<NamedParameter>& parameters, int world, int64_t align) {
  std::vector<int64_t> numels;
  numels.reserve(parameters.size());
  for (const auto& parameter : parameters) numels.push_back(parameter.tensor.numel());
  return plan_group(numels, world, align);
}

ShardRange intersect(ShardRange a, ShardRange b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

}  // namespace

FlatGroup::FlatGroup(std::vector<NamedParameter> parameters, const FlatGroupOptions& options,
                     Communicator& communicator)
    : parameters_(std::move(parameters)),
      layout_(plan(parameters_, communicator.size(), options.align)),
      share_(layout_.shard(communicator.rank())),
      owned_(options.shard_states ? share_ : ShardRange{0, layout_.padded_numel}),
      steps_applied_(parameters_.size(), 0) {
  const at::NoGradGuard no_grad;
  const auto device =
      parameters_.empty() ? at::Device(at::kCPU) : parameters_.front().tensor.device();
  const auto floats = at::TensorOptions().device(device).dtype(at::kFloat);
  weights_ = at::zeros({layout_.padded_numel}, floats.dtype(scalar_type(options.working)));
  master_ = at::zeros({owned_.size()}, floats);

  std::vector<std::string> names;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    bind(i, communicator);
    names.push_back(parameters_[i].name);
  }
  auto accumulator =
      at::empty({layout_.padded_numel}, floats.dtype(scalar_type(options.accumulator)));
  sink_ = std::make_shared<GradSink>(layout_, std::move(names), std::move(accumulator));
  for (size_t i = 0; i < parameters_.size(); ++i) {
    sink_->attach(static_cast<int64_t>(i), parameters_[i].tensor);
  }
}

void FlatGroup::bind(size_t index, Communicator& communicator) {
  at::Tensor& parameter = parameters_[index].tensor;
  const int64_t begin = layout_.offsets[index];
  const ShardRange place{begin, begin + layout_.numels[index]};
  const auto sizes = parameter.sizes().vec();

  at::Tensor exact = parameter.detach().to(at::kFloat).contiguous().view({-1});
  if (communicator.size() > 1 && exact.numel() > 0) {
    if (exact.is_alias_of(parameter)) exact = exact.clone();
    communicator.broadcast(span_of(exact), 0, current_stream(exact.device()));
  }
  at::Tensor room = weights_.narrow(0, place.begin, place.size());
  room.copy_(exact);
  const ShardRange own = intersect(place, owned_);
  if (own.size() > 0) {
    master_.narrow(0, own.begin - owned_.begin, own.size())
        .copy_(exact.narrow(0, own.begin - place.begin, own.size()));
  }
  parameter.mutable_grad().reset();
  parameter.set_data(room.view(sizes));
}

bool FlatGroup::is_bound(size_t index) const {
  const at::Tensor& parameter = parameters_[index].tensor;
  if (layout_.numels[index] == 0) return parameter.numel() == 0;
  return parameter.data_ptr() == address(weights_, layout_.offsets[index]) &&
         parameter.scalar_type() == weights_.scalar_type() &&
         parameter.numel() == layout_.numels[index];
}

void FlatGroup::check_bound() const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (is_bound(i)) continue;
    fail_shape("parameter ", parameters_[i].name,
               " was given other storage or another type after the engine was built (by "
               "torch::load, to() or set_data), so training would not reach it; do that before, or "
               "inside full_params(modify=true), or copy values with copy_()");
  }
}

void FlatGroup::rebind() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (is_bound(i)) continue;
    const auto& [name, parameter] = parameters_[i];
    const int64_t numel = layout_.numels[i];
    if (parameter.numel() != numel) {
      fail_shape("parameter ", name, " had ", numel, " elements when the engine was built and now ",
                 "has ", parameter.numel(), "; build a new engine for another shape");
    }
    const at::Tensor room = weights_.narrow(0, layout_.offsets[i], numel);
    room.copy_(parameter.detach().reshape({-1}));
    parameter.set_data(room.view(parameter.sizes()));
    if (!GradSink::is_attached(parameter)) sink_->attach(static_cast<int64_t>(i), parameter);
  }
}

void FlatGroup::allocate_states(int count) {
  while (static_cast<int>(states_.size()) < count) states_.push_back(at::zeros_like(master_));
}

std::vector<UpdateRun> FlatGroup::update_runs(const std::vector<char>& touched) const {
  std::vector<UpdateRun> runs;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (touched[i] == 0) continue;
    const int64_t begin = layout_.offsets[i];
    const ShardRange run = intersect({begin, begin + layout_.numels[i]}, owned_);
    if (run.size() == 0) continue;
    const int64_t step = steps_applied_[i] + 1;
    if (!runs.empty() && runs.back().end == run.begin && runs.back().step == step) {
      runs.back().end = run.end;
    } else {
      runs.push_back({run.begin, run.end, step});
    }
  }
  return runs;
}

std::vector<ShardRange> FlatGroup::untouched_runs(const std::vector<char>& touched) const {
  std::vector<ShardRange> runs;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (touched[i] != 0) continue;
    const int64_t begin = layout_.offsets[i];
    const ShardRange run = intersect({begin, begin + layout_.numels[i]}, owned_);
    if (run.size() > 0) runs.push_back(run);
  }
  return runs;
}

void FlatGroup::count_update(const std::vector<char>& touched) {
  for (size_t i = 0; i < steps_applied_.size(); ++i) {
    if (touched[i] != 0) ++steps_applied_[i];
  }
}

void FlatGroup::cast_master(ShardRange run) {
  if (run.size() == 0) return;
  kernels::cast(address(master_, run.begin - owned_.begin), DType::kF32,
                address(weights_, run.begin), dtype_of(weights_.scalar_type()), run.size(),
                current_stream(weights_.device()));
}

void FlatGroup::adopt_weights() {
  const at::NoGradGuard no_grad;
  const at::Tensor weights = weights_.narrow(0, owned_.begin, owned_.size());
  const at::Tensor changed = weights.ne(master_.to(weights.scalar_type()));
  master_.copy_(at::where(changed, weights.to(at::kFloat), master_));
}

}  // namespace zerosharp
