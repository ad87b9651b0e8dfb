#include "zero/comm/nccl_communicator.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstring>
#include <utility>

#include "kernels/error.h"

namespace zerosharp {
namespace {

void check_cuda(cudaError_t status, const char* call) {
  if (status != cudaSuccess) fail<CudaError>(call, ": ", cudaGetErrorString(status));
}

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kF16:
      return ncclFloat16;
    case DType::kF64:
      return ncclFloat64;
    case DType::kI64:
      return ncclInt64;
  }
  return ncclFloat32;
}

ncclRedOp_t nccl_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return ncclSum;
    case ReduceOp::kMean:
      return ncclAvg;
    case ReduceOp::kMax:
      return ncclMax;
    case ReduceOp::kMin:
      return ncclMin;
  }
  return ncclSum;
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(int rank, int size, ncclComm_t comm) : Communicator(rank, size), comm_(comm) {
    check_cuda(cudaStreamCreateWithFlags(&side_stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    check_cuda(cudaEventCreateWithFlags(&started_, cudaEventDisableTiming), "cudaEventCreate");
    check_cuda(cudaMalloc(&words_, sizeof(uint64_t) * static_cast<size_t>(size)), "cudaMalloc");
  }

  ~NcclCommunicator() override {
    if (!aborted_) ncclCommDestroy(comm_);
    cudaFree(words_);
    cudaEventDestroy(started_);
    cudaStreamDestroy(side_stream_);
  }

  const char* name() const noexcept override { return "nccl"; }

  void abort(const std::string&) noexcept override {
    if (!std::exchange(aborted_, true)) ncclCommAbort(comm_);
  }

 protected:
  void run(const Collective& call) override {
    enqueue(call, static_cast<cudaStream_t>(call.stream.handle));
    if (call.op != CollectiveOp::kBarrier) return;
    check_cuda(cudaStreamSynchronize(side_stream_), "cudaStreamSynchronize");
  }

  Work start(const Collective& call, Ticket ticket) override {
    const auto caller = static_cast<cudaStream_t>(call.stream.handle);
    cudaEvent_t done = nullptr;
    guarded(call, ticket, [&] {
      check_cuda(cudaEventRecord(started_, caller), "cudaEventRecord");
      check_cuda(cudaStreamWaitEvent(side_stream_, started_, 0), "cudaStreamWaitEvent");
      enqueue(call, side_stream_);
      check_cuda(cudaEventCreateWithFlags(&done, cudaEventDisableTiming), "cudaEventCreate");
      check_cuda(cudaEventRecord(done, side_stream_), "cudaEventRecord");
    });
    return Work([caller, done] {
      const cudaError_t status = cudaStreamWaitEvent(caller, done, 0);
      cudaEventDestroy(done);
      check_cuda(status, "cudaStreamWaitEvent");
    });
  }

  std::unique_ptr<Communicator> make_group(int color, int rank, int size) override {
    ncclComm_t group = nullptr;
    check(ncclCommSplit(comm_, color, this->rank(), &group, nullptr), "ncclCommSplit");
    return std::make_unique<NcclCommunicator>(rank, size, group);
  }

  void exchange_fingerprint(uint64_t mine, uint64_t* out) override {
    auto* words = static_cast<uint64_t*>(words_);
    check_cuda(
        cudaMemcpyAsync(words + rank(), &mine, sizeof mine, cudaMemcpyHostToDevice, side_stream_),
        "cudaMemcpyAsync");
    check(ncclAllGather(words + rank(), words, 1, ncclUint64, comm_, side_stream_),
          "ncclAllGather");
    check_cuda(cudaMemcpyAsync(out, words, sizeof(uint64_t) * static_cast<size_t>(size()),
                               cudaMemcpyDeviceToHost, side_stream_),
               "cudaMemcpyAsync");
    check_cuda(cudaStreamSynchronize(side_stream_), "cudaStreamSynchronize");
  }

 private:
  void check(ncclResult_t result, const char* call) const {
    if (result == ncclSuccess) return;
    fail_comm("rank ", rank(), ": ", call, ": ", ncclGetErrorString(result), " (",
              ncclGetLastError(comm_), ")");
  }

  void enqueue(const Collective& call, cudaStream_t stream) {
    void* data = call.span.data;
    const auto count = static_cast<size_t>(call.span.numel);
    const auto share = count / static_cast<size_t>(size());
    const ncclDataType_t type = nccl_type(call.span.dtype);
    void* own = static_cast<char*>(data) +
                share * static_cast<size_t>(rank() * element_bytes(call.span.dtype));
    switch (call.op) {
      case CollectiveOp::kAllReduce:
        return check(ncclAllReduce(data, data, count, type, nccl_op(call.reduce), comm_, stream),
                     "ncclAllReduce");
      case CollectiveOp::kReduceScatter:
        return check(ncclReduceScatter(data, own, share, type, nccl_op(call.reduce), comm_, stream),
                     "ncclReduceScatter");
      case CollectiveOp::kAllGather:
        return check(ncclAllGather(own, data, share, type, comm_, stream), "ncclAllGather");
      case CollectiveOp::kBroadcast:
        return check(ncclBroadcast(data, data, count, type, call.root, comm_, stream),
                     "ncclBroadcast");
      case CollectiveOp::kBarrier:
        return check(ncclAllReduce(words_, words_, 1, ncclUint64, ncclSum, comm_, side_stream_),
                     "ncclAllReduce (barrier)");
    }
  }

  ncclComm_t comm_;
  cudaStream_t side_stream_ = nullptr;
  cudaEvent_t started_ = nullptr;
  void* words_ = nullptr;  // one 64-bit word a rank
  bool aborted_ = false;
};

}  // namespace

bool built_with_nccl() noexcept { return true; }

std::unique_ptr<Communicator> make_nccl_communicator(
    int rank, int size, const std::function<void(std::string&)>& exchange) {
  if (size > 1 && !exchange) {
    fail_config("make_nccl_communicator: rank ", rank, " of ", size,
                " needs an `exchange` that brings NCCL's id from rank 0, e.g. tcp_store_exchange");
  }
  ncclUniqueId id;
  if (rank == 0 && ncclGetUniqueId(&id) != ncclSuccess) {
    fail_comm("ncclGetUniqueId failed: ", ncclGetLastError(nullptr));
  }
  if (size > 1) {
    std::string bytes(reinterpret_cast<const char*>(&id), sizeof id);
    exchange(bytes);
    if (bytes.size() != sizeof id) {
      fail_comm("rank ", rank, " received ", bytes.size(), " bytes of NCCL's id instead of ",
                sizeof id);
    }
    std::memcpy(&id, bytes.data(), sizeof id);
  }
  ncclComm_t comm = nullptr;
  const ncclResult_t result = ncclCommInitRank(&comm, size, id, rank);
  if (result != ncclSuccess) {
    fail_comm("rank ", rank, ": ncclCommInitRank over ", size,
              " ranks: ", ncclGetErrorString(result), " (", ncclGetLastError(nullptr),
              "); NCCL needs one GPU for each rank");
  }
  return std::make_unique<NcclCommunicator>(rank, size, comm);
}

}  // namespace zerosharp
