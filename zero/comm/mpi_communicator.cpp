#include "zero/comm/mpi_communicator.h"

#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

#include "kernels/error.h"
#include "kernels/reduce.h"
#include "zero/comm/host_staging.h"

namespace zerosharp {
namespace {

void check(int status, const char* call, int rank) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(status, text, &length);
  fail_comm("rank ", rank, ": ", call, " failed: ", text,
            " (another rank may have died, or ranks made different calls: "
            "set_debug_checks finds the first)");
}

/// Set when a rank's communicator goes while an exception passes: the other ranks may be waiting
/// for this one, and MPI_Finalize would then wait for them for ever.
std::atomic<bool> left_by_exception{false};

void finalize_at_exit() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) return;
  if (left_by_exception) {
    std::fflush(nullptr);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
}

void ensure_initialized() {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized != 0) return;
  // Ranks that wait give their core away: there may be more ranks than cores.
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", /*overwrite=*/0);
  int provided = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS) {
    fail_comm("MPI_Init_thread failed; start the ranks with mpirun or `zerosharp launch`");
  }
  std::atexit(finalize_at_exit);
  if (provided < MPI_THREAD_SERIALIZED) {
    fail_comm("this MPI gives thread level ", provided, "; MPI_THREAD_SERIALIZED is needed");
  }
}

struct Slice {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

Slice slice_of(int64_t numel, int index, int count) {
  const int64_t length = (numel + count - 1) / count;
  const int64_t begin = std::min(numel, index * length);
  return {begin, std::min(numel, begin + length)};
}

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(MPI_Comm comm, int rank, int size, MpiCommOptions options)
      : Communicator(rank, size), comm_(comm), options_(options) {}

  ~MpiCommunicator() override {
    finish_async();
    if (std::uncaught_exceptions() > exceptions_at_start_) {
      left_by_exception = true;
      return;
    }
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized == 0 && !aborted_) MPI_Comm_free(&comm_);
  }

  const char* name() const noexcept override { return "mpi"; }

  void abort(const std::string& reason) noexcept override {
    aborted_ = true;
    std::fprintf(stderr, "zerosharp: rank %d aborts the run: %s\n", rank(), reason.c_str());
    std::fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }

 protected:
  void run(const Collective& call) override {
    if (call.op == CollectiveOp::kBarrier) return check(MPI_Barrier(comm_), "MPI_Barrier", rank());
    StagedBuffer staged(call.span, call.stream, staging_);
    switch (call.op) {
      case CollectiveOp::kAllReduce:
        reduce_slices(staged.host(), call.reduce);
        gather_slices(staged.host());
        break;
      case CollectiveOp::kReduceScatter:
        reduce_slices(staged.host(), call.reduce);
        break;
      case CollectiveOp::kAllGather:
        gather_slices(staged.host());
        break;
      case CollectiveOp::kBroadcast:
        broadcast_bytes(staged.host(), call.root);
        break;
      case CollectiveOp::kBarrier:
        break;
    }
    staged.finish();
  }

  std::unique_ptr<Communicator> make_group(int color, int rank, int size) override {
    MPI_Comm group = MPI_COMM_NULL;
    check(MPI_Comm_split(comm_, color, this->rank(), &group), "MPI_Comm_split", this->rank());
    MPI_Comm_set_errhandler(group, MPI_ERRORS_RETURN);
    return std::make_unique<MpiCommunicator>(group, rank, size, options_);
  }

  void exchange_fingerprint(uint64_t mine, uint64_t* out) override {
    check(MPI_Allgather(&mine, 1, MPI_UINT64_T, out, 1, MPI_UINT64_T, comm_), "MPI_Allgather",
          rank());
  }

 private:
  static char* at(const FlatSpan& span, int64_t element) {
    return static_cast<char*>(span.data) + element * element_bytes(span.dtype);
  }

  /// Own slice ← reduction over ranks in rank order, a chunk of every slice at a time.
  void reduce_slices(const FlatSpan& span, ReduceOp op) {
    const int64_t unit = element_bytes(span.dtype);
    const int64_t chunk = std::max<int64_t>(1, options_.chunk_bytes / unit);
    const int64_t longest = slice_of(span.numel, 0, size()).size();
    const auto ranks = static_cast<size_t>(size());
    scratch_.resize(
        std::max(scratch_.size(), ranks * static_cast<size_t>(std::min(chunk, longest) * unit)));
    send_counts_.resize(ranks);
    send_offsets_.resize(ranks);
    receive_counts_.resize(ranks);
    receive_offsets_.resize(ranks);
    sources_.resize(ranks);
    const Slice own = slice_of(span.numel, rank(), size());
    for (int64_t done = 0; done < longest; done += chunk) {
      const auto part = [&](Slice s) {
        return std::clamp<int64_t>(s.size() - done, 0, chunk) * unit;
      };
      exchange(span, done, unit, part);
      for (size_t r = 0; r < ranks; ++r) sources_[r] = scratch_.data() + receive_offsets_[r];
      kernels::reduce_slices(sources_.data(), size(), op, span.dtype, part(own) / unit,
                             at(span, std::min(own.begin + done, span.numel)), Stream::cpu());
    }
  }

  /// Everybody's chunk of everybody's slice: rank r receives its slice's chunk from all.
  template <class Part>
  void exchange(const FlatSpan& span, int64_t done, int64_t unit, Part part) {
    const int64_t mine = part(slice_of(span.numel, rank(), size()));
    int64_t offset = 0;
    for (int r = 0; r < size(); ++r) {
      const auto i = static_cast<size_t>(r);
      const Slice slice = slice_of(span.numel, r, size());
      send_counts_[i] = static_cast<int>(part(slice));
      receive_counts_[i] = static_cast<int>(mine);
      receive_offsets_[i] = offset;
      send_offsets_[i] = std::min(slice.begin + done, span.numel) * unit;
      offset += mine;
    }
    requests_.clear();
    for (int step = 0; step < size(); ++step) {
      const int from = (rank() + size() - step) % size();
      const int to = (rank() + step) % size();
      const auto f = static_cast<size_t>(from);
      const auto t = static_cast<size_t>(to);
      if (step == 0) {
        std::copy_n(at(span, 0) + send_offsets_[t], send_counts_[t],
                    scratch_.data() + receive_offsets_[f]);
        continue;
      }
      start_receive(scratch_.data() + receive_offsets_[f], receive_counts_[f], from);
      start_send(at(span, 0) + send_offsets_[t], send_counts_[t], to);
    }
    finish_requests();
  }

  /// Every rank's slice ← that rank's own.
  void gather_slices(const FlatSpan& span) {
    const int64_t unit = element_bytes(span.dtype);
    const int64_t chunk = std::max<int64_t>(1, options_.chunk_bytes / unit);
    const int64_t longest = slice_of(span.numel, 0, size()).size();
    for (int64_t done = 0; done < longest; done += chunk) {
      requests_.clear();
      for (int step = 1; step < size(); ++step) {
        const int from = (rank() + size() - step) % size();
        const int to = (rank() + step) % size();
        const Slice theirs = slice_of(span.numel, from, size());
        const Slice mine = slice_of(span.numel, rank(), size());
        const int64_t in = std::clamp<int64_t>(theirs.size() - done, 0, chunk);
        const int64_t out = std::clamp<int64_t>(mine.size() - done, 0, chunk);
        if (in > 0) start_receive(at(span, theirs.begin + done), static_cast<int>(in * unit), from);
        if (out > 0) start_send(at(span, mine.begin + done), static_cast<int>(out * unit), to);
      }
      finish_requests();
    }
  }

  void broadcast_bytes(const FlatSpan& span, int root) {
    for (int64_t done = 0; done < span.bytes(); done += options_.chunk_bytes) {
      const int64_t count = std::min(options_.chunk_bytes, span.bytes() - done);
      check(MPI_Bcast(static_cast<char*>(span.data) + done, static_cast<int>(count), MPI_BYTE, root,
                      comm_),
            "MPI_Bcast", rank());
    }
  }

  void start_receive(void* data, int bytes, int from) {
    requests_.emplace_back();
    check(MPI_Irecv(data, bytes, MPI_BYTE, from, kTag, comm_, &requests_.back()), "MPI_Irecv",
          rank());
  }
  void start_send(const void* data, int bytes, int to) {
    requests_.emplace_back();
    check(MPI_Isend(data, bytes, MPI_BYTE, to, kTag, comm_, &requests_.back()), "MPI_Isend",
          rank());
  }
  void finish_requests() {
    check(MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE),
          "MPI_Waitall", rank());
  }

  static constexpr int kTag = 7;
  MPI_Comm comm_;
  MpiCommOptions options_;
  const int exceptions_at_start_ = std::uncaught_exceptions();
  bool aborted_ = false;
  HostStaging staging_;
  std::vector<char> scratch_;
  std::vector<int> send_counts_, receive_counts_;
  std::vector<int64_t> send_offsets_, receive_offsets_;
  std::vector<const void*> sources_;
  std::vector<MPI_Request> requests_;
};

}  // namespace

bool built_with_mpi() noexcept { return true; }

std::unique_ptr<Communicator> make_mpi_communicator(MpiCommOptions options) {
  if (options.chunk_bytes < 8 || options.chunk_bytes > (int64_t{1} << 30)) {
    fail_config("MpiCommOptions.chunk_bytes must be between 8 and 2^30, got ", options.chunk_bytes);
  }
  ensure_initialized();
  MPI_Comm comm = MPI_COMM_NULL;
  check(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup", -1);
  left_by_exception = false;  // all ranks are back in step
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  return std::make_unique<MpiCommunicator>(comm, rank, size, options);
}

}  // namespace zerosharp
