// Who talks to whom: collectives in place on flat buffers, the same over threads, MPI and NCCL.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
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

/// One call as a rank makes it; every rank's must agree in all but the buffer and the stream.
struct Collective {
  CollectiveOp op = CollectiveOp::kBarrier;
  FlatSpan span;
  ReduceOp reduce = ReduceOp::kSum;
  int root = 0;
  Stream stream;
};

/// For messages: "all_reduce (mean) of 8 fp32", "broadcast from rank 2 of 8 bf16", "barrier".
std::string describe(const Collective& call);

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

/// Completion of an asynchronous collective. Move-only; the destructor waits, and drops an error
/// (the communicator then refuses its next call with it).
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

  /// Every rank ends with the same bits: the reduction over ranks in rank order, bf16 and fp16
  /// summed in fp32 and rounded once (nccl: NCCL's order, and its rounding at each hop). Any numel,
  /// also 0; int64 has no mean.
  void all_reduce(FlatSpan span, ReduceOp op, Stream stream = {});
  /// `span` is `size()` equal shards; on return shard `rank()` holds the reduction and the other
  /// shards are unspecified. numel must be a multiple of size().
  void reduce_scatter(FlatSpan span, ReduceOp op, Stream stream = {});
  /// `span` is `size()` equal shards; shard `rank()` is this rank's contribution.
  void all_gather(FlatSpan span, Stream stream = {});
  void broadcast(FlatSpan span, int root, Stream stream = {});
  /// Returns when every rank has called it (the host blocks).
  void barrier();

  /// The ranks that pass the same `color` (≥ 0) form a communicator of their own, numbered in the
  /// order of their ranks here. Collective over all ranks of this one. The new one counts for
  /// itself, may outlive this one, and is used like it; a failure of a thread rank wakes both.
  std::unique_ptr<Communicator> split(int color);

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
  /// What was settled when a call was made, for the thread that performs it later.
  struct Ticket {
    int64_t sequence = 0;
    bool checked = false;  ///< debug checks were on
  };

  /// Performs one collective; called with size() > 1 only, in sequence order.
  virtual void run(const Collective& call) = 0;
  /// Starts one. The default calls `run` on a worker thread of this object, in order; a backend
  /// that only enqueues overrides it and does so inside `guarded`.
  virtual Work start(const Collective& call, Ticket ticket);
  /// The backend's part of split(): this rank becomes `rank` of the `size` ranks of `color`.
  virtual std::unique_ptr<Communicator> make_group(int color, int rank, int size) = 0;
  /// Gathers one 64-bit word of every rank (out has size() entries); used by split() and by the
  /// debug checks. Waits until it is done.
  virtual void exchange_fingerprint(uint64_t mine, uint64_t* out) = 0;

  /// Makes the debug check if it was asked for, then calls `body`; if either throws, all later
  /// calls are refused with that reason.
  template <class Body>
  void guarded(const Collective& call, Ticket ticket, Body&& body) {
    try {
      if (ticket.checked) verify_fingerprint(call, ticket.sequence);
      body();
    } catch (const std::exception& error) {
      record_failure(error.what());
      throw;
    }
  }
  /// Waits for the worker thread. The destructor of a class whose `run` it calls must begin with
  /// this, before its members go. A Work may be waited for afterwards.
  void finish_async() noexcept;

 private:
  class Worker;
  void validate(const Collective& call) const;
  Ticket count(const Collective& call);
  void perform(const Collective& call);
  Work perform_async(const Collective& call);
  void verify_fingerprint(const Collective& call, int64_t sequence);
  void record_failure(const char* reason);

  int rank_;
  int size_;
  CommStats stats_;
  int64_t sequence_ = 0;
  bool debug_checks_ = false;        // read and written by the calling thread only
  std::atomic<bool> failed_{false};  // no further collective can be made …
  std::string failure_;              // … because of this; written once, before the flag
  std::shared_ptr<Worker> worker_;   // shared with the Work it has yet to do
};

/// One rank; every collective is the identity (mean of one).
std::unique_ptr<Communicator> make_single_communicator();

}  // namespace zerosharp
