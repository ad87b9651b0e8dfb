#include "zero/comm/thread_communicator.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "kernels/cast.h"
#include "kernels/error.h"
#include "kernels/reduce.h"
#include "zero/comm/device_events.h"

namespace zerosharp {
namespace {

/// Elements [begin, end) of slice `index` when `numel` elements are cut into `count` slices.
struct Slice {
  int64_t begin, end;
};

Slice slice_of(int64_t numel, int index, int count) {
  const int64_t length = (numel + count - 1) / count;
  const int64_t begin = std::min(numel, index * length);
  return {begin, std::min(numel, begin + length)};
}

void* at(const FlatSpan& span, int64_t element) {
  return static_cast<char*>(span.data) + element * element_bytes(span.dtype);
}

bool agree(const Collective& a, const Collective& b) {
  return a.op == b.op && a.reduce == b.reduce && a.root == b.root && a.span.numel == b.span.numel &&
         a.span.dtype == b.span.dtype;
}

/// What the ranks share: the rendezvous and each rank's published call.
class Meeting {
 public:
  Meeting(int size, ThreadCommOptions options)
      : published(static_cast<size_t>(size)),
        words(static_cast<size_t>(size)),
        events(static_cast<size_t>(size)),
        options_(options),
        arrived_(static_cast<size_t>(size), 0) {}

  /// Returns once every rank has called it as often as this one.
  void rendezvous(int rank, const char* what) {
    std::unique_lock<std::mutex> lock(mutex_);
    throw_if_aborted(rank);
    const int64_t round = ++arrived_[static_cast<size_t>(rank)];
    changed_.notify_all();
    const bool met = changed_.wait_for(lock, options_.timeout, [&] {
      return aborted_ || std::all_of(arrived_.begin(), arrived_.end(),
                                     [&](int64_t count) { return count >= round; });
    });
    throw_if_aborted(rank);
    if (met) return;
    std::string missing;
    for (size_t other = 0; other < arrived_.size(); ++other) {
      if (arrived_[other] < round) missing += (missing.empty() ? "" : ", ") + std::to_string(other);
    }
    fail_comm("rank ", rank, " waited ", options_.timeout.count() / 1000.0, " s in ", what,
              " for rank(s) ", missing, ", which never came");
  }

  /// Wakes the ranks of this meeting, of those it was split into and of the one it came from.
  void abort(const std::string& reason) {
    std::vector<std::shared_ptr<Meeting>> others;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (aborted_) return;
      aborted_ = true;
      reason_ = reason;
      changed_.notify_all();
      for (const auto& [key, group] : groups_) others.push_back(group.lock());
      others.push_back(parent_.lock());
    }
    for (const auto& other : others) {
      if (other) other->abort(reason);
    }
  }

  /// The meeting of `size` ranks for `color` of split number `split`; the first to ask makes it.
  static std::shared_ptr<Meeting> group(const std::shared_ptr<Meeting>& all, int64_t split,
                                        int color, int size) {
    const std::lock_guard<std::mutex> lock(all->mutex_);
    std::weak_ptr<Meeting>& entry = all->groups_[{split, color}];
    auto group = entry.lock();
    if (!group) {
      group = std::make_shared<Meeting>(size, all->options_);
      group->parent_ = all;
      entry = group;
    }
    return group;
  }

  std::vector<Collective> published;  // written by its rank before a rendezvous, read after it
  std::vector<uint64_t> words;
  std::vector<DeviceEvent> events;

 private:
  void throw_if_aborted(int rank) const {
    if (aborted_) fail_comm("rank ", rank, " stops because another rank failed: ", reason_);
  }

  ThreadCommOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int64_t> arrived_;
  bool aborted_ = false;
  std::string reason_;
  std::weak_ptr<Meeting> parent_;
  std::map<std::pair<int64_t, int>, std::weak_ptr<Meeting>> groups_;  // by split and color
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(int rank, int size, std::shared_ptr<Meeting> meeting)
      : Communicator(rank, size), meeting_(std::move(meeting)) {}
  ~ThreadCommunicator() override { finish_async(); }
  const char* name() const noexcept override { return "thread"; }
  void abort(const std::string& reason) noexcept override { meeting_->abort(reason); }

 protected:
  void run(const Collective& call) override {
    switch (call.op) {
      case CollectiveOp::kAllReduce:
        publish(call, "all_reduce");
        reduce_own(call);
        settle(call, "all_reduce");
        gather_others(call);
        break;
      case CollectiveOp::kReduceScatter:
        publish(call, "reduce_scatter");
        reduce_own(call);
        break;
      case CollectiveOp::kAllGather:
        publish(call, "all_gather");
        gather_others(call);
        break;
      case CollectiveOp::kBroadcast:
        publish(call, "broadcast");
        if (rank() != call.root) {
          const FlatSpan& from = meeting_->published[static_cast<size_t>(call.root)].span;
          kernels::copy_bytes(call.span.data, from.data, call.span.bytes(), call.stream);
        }
        break;
      case CollectiveOp::kBarrier:
        return meeting_->rendezvous(rank(), "barrier");
    }
    settle(call, "the end of a collective");
  }

  std::unique_ptr<Communicator> make_group(int color, int rank, int size) override {
    auto group = std::make_unique<ThreadCommunicator>(
        rank, size, Meeting::group(meeting_, num_splits_++, color, size));
    meeting_->rendezvous(this->rank(), "split");  // all hold their group before one can go
    return group;
  }

  void exchange_fingerprint(uint64_t mine, uint64_t* out) override {
    meeting_->words[static_cast<size_t>(rank())] = mine;
    meeting_->rendezvous(rank(), "a debug check");
    std::copy(meeting_->words.begin(), meeting_->words.end(), out);
    meeting_->rendezvous(rank(), "a debug check");
  }

 private:
  /// Makes the call known to the others; afterwards their buffers may be read.
  void publish(const Collective& call, const char* what) {
    meeting_->published[static_cast<size_t>(rank())] = call;
    settle(call, what);
    for (int other = 0; other < size(); ++other) {
      const Collective& theirs = meeting_->published[static_cast<size_t>(other)];
      if (agree(call, theirs)) continue;
      fail_comm("ranks disagree: rank ", rank(), " makes ", describe(call), ", rank ", other, " ",
                describe(theirs), "; every rank must make the same calls in the same order");
    }
  }

  /// All work enqueued by any rank so far happens before anything enqueued later by this one.
  void settle(const Collective& call, const char* what) {
    if (call.stream.cuda) meeting_->events[static_cast<size_t>(rank())].record(call.stream);
    meeting_->rendezvous(rank(), what);
    if (!call.stream.cuda) return;
    for (int other = 0; other < size(); ++other) {
      if (other != rank()) meeting_->events[static_cast<size_t>(other)].make_wait(call.stream);
    }
    // An event must not be recorded again while a peer has yet to wait for it.
    meeting_->rendezvous(rank(), what);
  }

  /// Every rank writes only its own slice of its own buffer, and nobody else reads that slice.
  void reduce_own(const Collective& call) {
    const Slice own = slice_of(call.span.numel, rank(), size());
    sources_.clear();
    for (const Collective& each : meeting_->published) sources_.push_back(at(each.span, own.begin));
    kernels::reduce_slices(sources_.data(), size(), call.reduce, call.span.dtype,
                           own.end - own.begin, at(call.span, own.begin), call.stream);
  }

  void gather_others(const Collective& call) {
    for (int other = 0; other < size(); ++other) {
      if (other == rank()) continue;
      const Slice part = slice_of(call.span.numel, other, size());
      const FlatSpan& from = meeting_->published[static_cast<size_t>(other)].span;
      kernels::copy_bytes(at(call.span, part.begin), at(from, part.begin),
                          (part.end - part.begin) * element_bytes(call.span.dtype), call.stream);
    }
  }

  std::shared_ptr<Meeting> meeting_;
  int64_t num_splits_ = 0;
  std::vector<const void*> sources_;
};

/// Throws `error` again with "rank N: " in front, keeping the library's error types.
[[noreturn]] void rethrow_with_rank(const std::exception_ptr& error, int rank) {
  const std::string prefix = "rank " + std::to_string(rank) + ": ";
  try {
    std::rethrow_exception(error);
  } catch (const ConfigError& e) {
    throw ConfigError(prefix + e.what());
  } catch (const ShapeError& e) {
    throw ShapeError(prefix + e.what());
  } catch (const CommError& e) {
    throw CommError(prefix + e.what());
  } catch (const CudaError& e) {
    throw CudaError(prefix + e.what());
  } catch (const std::exception& e) {
    throw Error(prefix + e.what());
  }
}

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_communicators(int size,
                                                                     ThreadCommOptions options) {
  if (size < 1) fail_config("thread ranks: at least one is needed, got ", size);
  const auto meeting = std::make_shared<Meeting>(size, options);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(std::make_unique<ThreadCommunicator>(rank, size, meeting));
  }
  return ranks;
}

void run_thread_ranks(int size, const std::function<void(Communicator&)>& body,
                      ThreadCommOptions options) {
  const auto ranks = make_thread_communicators(size, options);
  std::mutex mutex;
  std::exception_ptr first_error;
  int failed_rank = 0;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(*ranks[static_cast<size_t>(rank)]);
      } catch (const std::exception& error) {
        {
          const std::lock_guard<std::mutex> lock(mutex);
          if (!first_error) {
            first_error = std::current_exception();
            failed_rank = rank;
          }
        }
        ranks[static_cast<size_t>(rank)]->abort(error.what());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  if (first_error) rethrow_with_rank(first_error, failed_rank);
}

}  // namespace zerosharp
