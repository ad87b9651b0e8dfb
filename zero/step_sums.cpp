#include "zero/step_sums.h"

#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "kernels/error.h"
#include "kernels/norm.h"
#include "zero/device.h"

#ifdef ZEROSHARP_CUDA
#include <cuda_runtime_api.h>
#endif

namespace zerosharp {

#ifdef ZEROSHARP_CUDA
struct StepSums::Event {
  Event() { check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event); }
  void record(Stream stream) {
    check(cudaEventRecord(event, static_cast<cudaStream_t>(stream.handle)), "cudaEventRecord");
    recorded = true;
  }
  void wait() {
    if (recorded) check(cudaEventSynchronize(event), "cudaEventSynchronize");
    recorded = false;
  }
  static void check(cudaError_t status, const char* call) {
    if (status != cudaSuccess) fail<CudaError>(call, ": ", cudaGetErrorString(status));
  }
  cudaEvent_t event = nullptr;
  bool recorded = false;
};
#else
struct StepSums::Event {
  void record(Stream) {}
  void wait() {}
};
#endif

StepSums::StepSums(int64_t num_parameters, at::Device device)
    : num_parameters_(num_parameters), device_(device) {
  const auto doubles = at::TensorOptions().dtype(at::kDouble);
  const auto host = doubles.pinned_memory(device.is_cuda());
  sums_ = at::zeros({kNumSlots + num_parameters}, doubles.device(device));
  factors_ = at::zeros({kNumFactors}, doubles.device(device).dtype(at::kFloat));
  workspace_ = at::empty({kernels::kReductionWorkspace}, doubles.device(device));
  flags_ = at::zeros({num_parameters}, host);
  host_sums_ = device.is_cuda() ? at::zeros({kNumSlots + num_parameters}, host) : sums_;
  host_factors_ = device.is_cuda() ? at::zeros({kNumFactors}, host.dtype(at::kFloat)) : factors_;
  if (device.is_cuda()) copied_ = std::make_unique<Event>();
}

StepSums::~StepSums() = default;

void StepSums::clear() { sums_.zero_(); }

void StepSums::add_slot(Slot to, const StepSums& other, Slot from) {
  sums_.narrow(0, to, 1).add_(other.sums_.narrow(0, from, 1));
}

void StepSums::assign(const StepSums& other) { sums_.copy_(other.sums_); }

at::Tensor StepSums::slot_tensor(Slot which) const { return sums_.select(0, which); }
at::Tensor StepSums::factor_tensor(Factor which) const { return factors_.select(0, which); }

void StepSums::set_matrix(const std::array<at::Tensor, 4>& entries) {
  const at::Tensor matrix = at::stack({entries[0], entries[1], entries[2], entries[3]});
  const at::Tensor bad = slot_tensor(kNonFinite).gt(0);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  factors_.narrow(0, kMatrix, 4).copy_(at::where(bad, at::full_like(matrix, nan), matrix));
}

void StepSums::add_loss(const at::Tensor& loss) {
  const at::NoGradGuard no_grad;
  if (device_.is_cpu()) {
    const double value = loss.item<double>();
    slots()[kLoss] += value;
    if (!std::isfinite(value)) slots()[kNonFinite] += 1;
    return;
  }
  const at::Tensor value = loss.detach().to(at::kDouble);
  sums_.select(0, kLoss).add_(value);
  sums_.select(0, kNonFinite).add_(value.isfinite().logical_not());
}

void StepSums::mark_failed(int rank) {
  sums_.narrow(0, kNonFinite, 1).add_(1);
  sums_.narrow(0, kNumFailed, 1).fill_(1);
  sums_.narrow(0, kFailedRanks, 1).fill_(rank);
}

void StepSums::set_touched(const std::vector<char>& touched) {
  wait_readback();  // on CUDA the last copy from this staging buffer must be over
  double* flags = flags_.data_ptr<double>();
  for (size_t i = 0; i < touched.size(); ++i) flags[i] = touched[i] != 0 ? 1.0 : 0.0;
  sums_.narrow(0, kNumSlots, num_parameters_).copy_(flags_, /*non_blocking=*/true);
}

void StepSums::all_reduce(Communicator& communicator) {
  communicator.all_reduce(span_of(sums_), ReduceOp::kSum, current_stream(device_));
}

double* StepSums::slots(Slot first) { return static_cast<double*>(address(sums_, first)); }
float* StepSums::factors(Factor first) { return static_cast<float*>(address(factors_, first)); }
double* StepSums::workspace() { return workspace_.data_ptr<double>(); }

int64_t StepSums::bytes() const {
  return static_cast<int64_t>(sums_.nbytes() + factors_.nbytes() + workspace_.nbytes());
}

void StepSums::start_readback() {
  if (device_.is_cpu()) return;
  host_sums_.copy_(sums_, /*non_blocking=*/true);
  host_factors_.copy_(factors_, /*non_blocking=*/true);
  copied_->record(current_stream(device_));
}

void StepSums::wait_readback() {
  if (copied_) copied_->wait();
}

std::vector<char> StepSums::read_touched() {
  const at::Tensor flags = sums_.narrow(0, kNumSlots, num_parameters_).cpu();
  std::vector<char> touched(num_parameters_);
  for (int64_t i = 0; i < num_parameters_; ++i) touched[i] = flags.data_ptr<double>()[i] > 0;
  return touched;
}

double StepSums::slot(Slot which) const { return host_sums_.const_data_ptr<double>()[which]; }
float StepSums::factor(Factor which) const { return host_factors_.const_data_ptr<float>()[which]; }

}  // namespace zerosharp
