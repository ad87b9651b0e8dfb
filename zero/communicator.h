// Who talks to whom: collectives in place on flat buffers, the same over threads, MPI and NCCL.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "kernels/dtype.h"
#include "kernels/reduce.h"
#include "kernels/stream.h"

namespace zerosharp {

/// A borrowed run of `numel` elements in the memory kind of the communicator's device.
struct FlatSpan {
  void* data = nullptr;
  int64_t numel = 0;
  DType dtype = DType::kF32;

  int64_t bytes() const noexcept { return numel * element_bytes(dtype); }
};

enum class CollectiveOp : uint8_t { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kBarrier };
inline constexpr int kNumCollectiveOps = 5;

/// Calls and payload bytes of one rank. `bytes` counts what the rank would send in a ring:
/// all-reduce 2·(N−1)/N, reduce-scatter and all-gather (N−1)/N of the whole buffer; broadcast the
/// buffer on the root; nothing at N = 1.
struct CommStats {
  struct PerOp {
    int64_t calls = 0;
    int64_t bytes = 0;
  };
  std::array<PerOp, kNumCollectiveOps> ops;

  const PerOp& of(CollectiveOp op) const { return ops[static_cast<size_t>(op)]; }
};

/// Completion of an asynchronous collective. Move-only; the destructor waits.
class Work {
 public:
  Work() = default;
  explicit Work(std::function<void()> wait) : wait_(std::move(wait)) {}
  Work(Work&& other) noexcept;
  Work& operator=(Work&& other) noexcept;
  ~Work();
  /// Makes the buffer usable: on the CPU blocks until done, on CUDA makes `stream` given at the
  /// start wait for it. Throws CommError if the collective failed. A second call does nothing.
  void wait();

 private:
  std::function<void()> wait_;
};

/// A fixed set of `size()` ranks. Every rank must make the same sequence of calls with the same op,
/// dtype and numel. One rank's object is used by one thread at a time. Buffers must stay alive and
/// untouched until the call (or its Work) is done. All methods throw CommError when a rank is gone,
/// a time limit passes or (debug checks on) ranks disagree; the message names rank, op and sequence
/// number.
class Communicator {
 public:
  Communicator(int rank, int size);
  virtual ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  /// "single", "thread", "mpi" or "nccl".
  virtual const char* name() const noexcept = 0;

  /// Every rank ends with the same bits: the reduction over ranks in rank order (nccl: in NCCL's
  /// order). Any numel, also 0. fp32, bf16, fp16 (summed in fp32), fp64, int64 (no mean).
  void all_reduce(FlatSpan span, ReduceOp op, Stream stream = {});
  /// `span` is `size()` equal shards; on return shard `rank()` holds the reduction and the other
  /// shards are unspecified. numel must be a multiple of size().
  void reduce_scatter(FlatSpan span, ReduceOp op, Stream stream = {});
  /// `span` is `size()` equal shards; shard `rank()` is this rank's contribution.
  void all_gather(FlatSpan span, Stream stream = {});
  void broadcast(FlatSpan span, int root, Stream stream = {});
  /// Returns when every rank has called it (the host blocks).
  void barrier();

  Work all_reduce_async(FlatSpan span, ReduceOp op, Stream stream = {});
  Work reduce_scatter_async(FlatSpan span, ReduceOp op, Stream stream = {});
  Work all_gather_async(FlatSpan span, Stream stream = {});

  const CommStats& stats() const noexcept { return stats_; }
  void reset_stats() noexcept { stats_ = {}; }
  /// Number of collectives started so far.
  int64_t sequence() const noexcept { return sequence_; }
  /// Compares (sequence, op, dtype, numel) between all ranks before each collective; a mismatch is
  /// a CommError that names both sides. Costs one small extra exchange a call. Must be switched on
  /// by all ranks at the same point.
  void set_debug_checks(bool on) noexcept { debug_checks_ = on; }

  /// Tells the other ranks, as far as the backend can, that this rank has failed, so that they stop
  /// with a CommError quoting `reason` instead of waiting. Never throws.
  virtual void abort(const std::string& reason) noexcept;

 protected:
  struct Call {
    CollectiveOp op = CollectiveOp::kBarrier;
    FlatSpan span;
    ReduceOp reduce = ReduceOp::kSum;
    int root = 0;
    Stream stream;
  };
  /// Performs one collective; called with size() > 1 only, in sequence order.
  virtual void run(const Call& call) = 0;
  /// Starts one; the default runs it on a worker thread of this object (CPU) in order.
  virtual Work start(const Call& call, int64_t sequence);
  /// Gathers one 64-bit word of every rank (out has size() entries); used by the debug checks.
  virtual void exchange_fingerprint(uint64_t mine, uint64_t* out) = 0;

 private:
  class Worker;
  void validate(const Call& call) const;
  void count(const Call& call);
  void perform(const Call& call);
  Work perform_async(const Call& call);
  void guarded_run(const Call& call, int64_t sequence);
  void verify_fingerprint(const Call& call, int64_t sequence);

  int rank_;
  int size_;
  CommStats stats_;
  int64_t sequence_ = 0;
  bool debug_checks_ = false;
  std::atomic<bool> failed_{false};  // no further collective can be made …
  std::string failure_;              // … because of this; written before the flag
  std::unique_ptr<Worker> worker_;
};

/// One rank; every collective is the identity (mean of one).
std::unique_ptr<Communicator> make_single_communicator();

}  // namespace zerosharp
