#include "zero/grad_sink.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "kernels/cast.h"
#include "kernels/error.h"
#include "zero/device.h"

namespace zerosharp {

using torch::autograd::variable_list;

/// Runs after autograd has accumulated one parameter's gradient. The autograd node that owns it
/// holds the parameter, so the hook must not: it would keep both alive for ever.
class GradSink::Hook final : public torch::autograd::FunctionPostHook {
 public:
  Hook(std::weak_ptr<GradSink> sink, int64_t index, const at::Tensor& parameter)
      : sink_(std::move(sink)), index_(index), parameter_(parameter.getIntrusivePtr()) {}

  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    const auto sink = sink_.lock();
    auto impl = parameter_.lock();
    if (sink && impl) sink->collect(index_, at::Tensor(std::move(impl)));
    return outputs;
  }
  bool alive() const { return !sink_.expired(); }

 private:
  std::weak_ptr<GradSink> sink_;
  int64_t index_;
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> parameter_;
};

GradSink::GradSink(GroupLayout layout, std::vector<std::string> names, at::Tensor accumulator)
    : layout_(std::move(layout)),
      names_(std::move(names)),
      accumulator_(std::move(accumulator)),
      touched_(layout_.numels.size(), 0),
      accumulator_nodes_(layout_.numels.size()) {
  accumulator_.zero_();
}

void GradSink::attach(int64_t index, const at::Tensor& parameter) {
  auto node = torch::autograd::impl::grad_accumulator(parameter);
  node->add_post_hook(std::make_unique<Hook>(weak_from_this(), index, parameter));
  accumulator_nodes_[static_cast<size_t>(index)] = std::move(node);
}

bool GradSink::is_attached(const at::Tensor& parameter) {
  const auto node = torch::autograd::impl::try_get_grad_accumulator(parameter);
  if (!node) return false;
  const auto& hooks = node->post_hooks();
  return std::any_of(hooks.begin(), hooks.end(), [](const auto& hook) {
    const auto* ours = dynamic_cast<const Hook*>(hook.get());
    return ours != nullptr && ours->alive();
  });
}

void GradSink::collect(int64_t index, const at::Tensor& parameter) {
  at::Tensor gradient = parameter.grad();
  if (!gradient.defined()) return;
  parameter.mutable_grad().reset();  // also where it cannot be used
  if (!gradient.is_contiguous() || gradient.layout() != at::kStrided) {
    if (gradient.layout() != at::kStrided) {
      fail_shape("parameter ", names_[index],
                 " received a sparse gradient; flat buffers need dense ones (sparse=false)");
    }
    gradient = gradient.contiguous();
  }
  add(index, gradient);
}

void GradSink::add(int64_t index, const at::Tensor& gradient) {
  const int64_t numel = layout_.numels[index];
  if (gradient.numel() != numel) {
    fail_shape("parameter ", names_[index], " has ", numel, " elements but its gradient has ",
               gradient.numel(), "; parameters must keep their shape after the engine is built");
  }
  const Stream stream = current_stream(accumulator_.device());
  const DType to = dtype_of(accumulator_.scalar_type());
  const DType from = dtype_of(gradient.scalar_type());
  void* room = address(accumulator_, layout_.offsets[index]);
  if (touched_[index] == 0) {
    kernels::cast(gradient.data_ptr(), from, room, to, numel, stream);
    touched_[index] = 1;
  } else {
    kernels::scaled_add(room, to, gradient.data_ptr(), from, 1.0f, numel, stream);
  }
}

void GradSink::clear() { std::fill(touched_.begin(), touched_.end(), 0); }

GradSink::Contents GradSink::empty_contents() const {
  return {at::zeros_like(accumulator_), std::vector<char>(touched_.size(), 0)};
}

void GradSink::swap(Contents& other) {
  std::swap(accumulator_, other.accumulator);
  std::swap(touched_, other.touched);
}

void GradSink::fill_untouched() {
  const Stream stream = current_stream(accumulator_.device());
  for (size_t i = 0; i < touched_.size(); ++i) {
    if (touched_[i] != 0 || layout_.numels[i] == 0) continue;
    kernels::set_zero(address(accumulator_, layout_.offsets[i]),
                      layout_.numels[i] * accumulator_.element_size(), stream);
  }
  if (layout_.padded_numel > layout_.numel) {  // reduction in place may have written there
    kernels::set_zero(address(accumulator_, layout_.numel),
                      (layout_.padded_numel - layout_.numel) * accumulator_.element_size(), stream);
  }
}

bool GradSink::all_touched() const {
  return std::all_of(touched_.begin(), touched_.end(), [](char t) { return t != 0; });
}

at::Tensor GradSink::gradient(int64_t index) const {
  return accumulator_.narrow(0, layout_.offsets[index], layout_.numels[index]);
}

}  // namespace zerosharp
