#include "zero/communicator.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/error.h"
#include "zero/comm/device_events.h"

namespace zerosharp {
namespace {

const char* op_name(CollectiveOp op) {
  switch (op) {
    case CollectiveOp::kAllReduce:
      return "all_reduce";
    case CollectiveOp::kReduceScatter:
      return "reduce_scatter";
    case CollectiveOp::kAllGather:
      return "all_gather";
    case CollectiveOp::kBroadcast:
      return "broadcast";
    case CollectiveOp::kBarrier:
      return "barrier";
  }
  return "?";
}

const char* reduce_name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kMean:
      return "mean";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kMin:
      return "min";
  }
  return "?";
}

bool reduces(CollectiveOp op) {
  return op == CollectiveOp::kAllReduce || op == CollectiveOp::kReduceScatter;
}

/// "all_reduce (mean)", "broadcast".
std::string op_text(CollectiveOp op, ReduceOp reduce) {
  return reduces(op) ? std::string(op_name(op)) + " (" + reduce_name(reduce) + ")" : op_name(op);
}

class SingleCommunicator final : public Communicator {
 public:
  SingleCommunicator() : Communicator(0, 1) {}
  const char* name() const noexcept override { return "single"; }

 protected:
  void run(const Collective&) override {}
  std::unique_ptr<Communicator> make_group(int, int, int) override {
    return make_single_communicator();
  }
  void exchange_fingerprint(uint64_t mine, uint64_t* out) override { out[0] = mine; }
};

/// One word that all ranks must agree on: sequence 32 bits, op 4, dtype 4, reduction 4, and 20 that
/// count and root are folded into. All but the last can be read back for the message.
uint64_t fingerprint(int64_t sequence, const Collective& call) {
  const auto count = static_cast<uint64_t>(call.span.numel);
  const uint64_t folded =
      count ^ count >> 20 ^ count >> 40 ^ static_cast<uint64_t>(call.root) << 10;
  return static_cast<uint64_t>(sequence) << 32 | static_cast<uint64_t>(call.op) << 28 |
         static_cast<uint64_t>(call.span.dtype) << 24 | static_cast<uint64_t>(call.reduce) << 20 |
         (folded & 0xfffffu);
}

std::string describe_word(uint64_t word) {
  const auto op = static_cast<CollectiveOp>((word >> 28) & 0xfu);
  const auto dtype = static_cast<DType>((word >> 24) & 0xfu);
  const auto reduce = static_cast<ReduceOp>((word >> 20) & 0xfu);
  return "collective " + std::to_string(word >> 32) + ", " + op_text(op, reduce) + " of " +
         dtype_name(dtype) + " with count code " + std::to_string(word & 0xfffffu);
}

}  // namespace

std::string describe(const Collective& call) {
  std::string text = op_text(call.op, call.reduce);
  if (call.op == CollectiveOp::kBarrier) return text;
  if (call.op == CollectiveOp::kBroadcast) text += " from rank " + std::to_string(call.root);
  return text + " of " + std::to_string(call.span.numel) + " " + dtype_name(call.span.dtype);
}

// --- Work -----------------------------------------------------------------------------------

Work::Work(Work&& other) noexcept : wait_(std::exchange(other.wait_, nullptr)) {}

Work& Work::operator=(Work&& other) noexcept {
  if (this != &other) {
    Work finished(std::move(*this));  // waits for what it held
    wait_ = std::exchange(other.wait_, nullptr);
  }
  return *this;
}

Work::~Work() {
  try {
    wait();
  } catch (...) {  // a destructor cannot report; the communicator refuses its next call
  }
}

void Work::wait() {
  if (wait_) std::exchange(wait_, nullptr)();
}

// --- Worker: runs asynchronous calls of one communicator in order ------------------------------

class Communicator::Worker {
 public:
  Worker() : thread_([this] { serve(); }) {}

  ~Worker() { stop(); }

  /// Returns its place in the order, for `wait`.
  int64_t submit(std::function<void()> task) {
    const std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
    wake_.notify_one();
    return ++submitted_;
  }

  void wait(int64_t place) {
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [&] { return finished_ >= place || (error_ && finished_ >= failed_at_); });
    if (error_ && place >= failed_at_) std::rethrow_exception(error_);
  }

  /// Waits for everything submitted so far.
  void drain() { wait(submitted_); }

  /// Performs what was submitted and ends the thread; idempotent.
  void stop() noexcept {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      const auto task = std::move(tasks_.front());
      tasks_.pop_front();
      if (!error_) {
        lock.unlock();
        std::exception_ptr error;
        try {
          task();
        } catch (...) {
          error = std::current_exception();
        }
        lock.lock();
        if (error) {
          error_ = error;
          failed_at_ = finished_ + 1;
        }
      }
      ++finished_;
      done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::deque<std::function<void()>> tasks_;
  int64_t submitted_ = 0;
  int64_t finished_ = 0;
  int64_t failed_at_ = 0;
  std::exception_ptr error_;
  bool stopping_ = false;
  std::thread thread_;
};

// --- Communicator -------------------------------------------------------------------------------

Communicator::Communicator(int rank, int size) : rank_(rank), size_(size) {
  if (size < 1) fail_comm("a communicator needs at least one rank, got ", size);
  if (rank < 0 || rank >= size) fail_comm("rank ", rank, " is outside 0 … ", size - 1);
}

Communicator::~Communicator() { finish_async(); }

void Communicator::finish_async() noexcept {
  if (worker_) worker_->stop();
}

void Communicator::abort(const std::string&) noexcept {}

void Communicator::all_reduce(FlatSpan span, ReduceOp op, Stream stream) {
  perform({CollectiveOp::kAllReduce, span, op, 0, stream});
}
void Communicator::reduce_scatter(FlatSpan span, ReduceOp op, Stream stream) {
  perform({CollectiveOp::kReduceScatter, span, op, 0, stream});
}
void Communicator::all_gather(FlatSpan span, Stream stream) {
  perform({CollectiveOp::kAllGather, span, ReduceOp::kSum, 0, stream});
}
void Communicator::broadcast(FlatSpan span, int root, Stream stream) {
  perform({CollectiveOp::kBroadcast, span, ReduceOp::kSum, root, stream});
}
void Communicator::barrier() { perform({}); }

Work Communicator::all_reduce_async(FlatSpan span, ReduceOp op, Stream stream) {
  return perform_async({CollectiveOp::kAllReduce, span, op, 0, stream});
}
Work Communicator::reduce_scatter_async(FlatSpan span, ReduceOp op, Stream stream) {
  return perform_async({CollectiveOp::kReduceScatter, span, op, 0, stream});
}
Work Communicator::all_gather_async(FlatSpan span, Stream stream) {
  return perform_async({CollectiveOp::kAllGather, span, ReduceOp::kSum, 0, stream});
}

std::unique_ptr<Communicator> Communicator::split(int color) {
  if (color < 0) fail_comm("rank ", rank_, ": split needs a color of at least 0, got ", color);
  if (worker_) worker_->drain();
  if (failed_.load(std::memory_order_acquire)) {
    fail_comm("rank ", rank_, ": split after a failed collective: ", failure_);
  }
  if (size_ == 1) return make_single_communicator();
  std::unique_ptr<Communicator> group;
  guarded({}, {}, [&] {
    std::vector<uint64_t> colors(static_cast<size_t>(size_));
    exchange_fingerprint(static_cast<uint64_t>(color), colors.data());
    const auto mine = static_cast<uint64_t>(color);
    const auto here = colors.begin() + rank_;
    const auto rank = static_cast<int>(std::count(colors.begin(), here, mine));
    const auto size = static_cast<int>(std::count(colors.begin(), colors.end(), mine));
    group = make_group(color, rank, size);
  });
  return group->size() == 1 ? make_single_communicator() : std::move(group);
}

void Communicator::validate(const Collective& call) const {
  if (failed_.load(std::memory_order_acquire)) {
    fail_comm("rank ", rank_, ": ", op_name(call.op), " after a failed collective: ", failure_);
  }
  const bool split = call.op == CollectiveOp::kReduceScatter || call.op == CollectiveOp::kAllGather;
  if (split && call.span.numel % size_ != 0) {
    fail_shape(op_name(call.op), " needs a count that is a multiple of the ", size_, " ranks, got ",
               call.span.numel);
  }
  if (call.span.numel < 0) fail_shape(op_name(call.op), ": negative count ", call.span.numel);
  if (call.span.numel > 0 && call.span.data == nullptr) {
    fail_shape(op_name(call.op), " of ", call.span.numel, " elements: the buffer is null");
  }
  if (call.reduce == ReduceOp::kMean && call.span.dtype == DType::kI64) {
    fail_config(op_name(call.op), ": the mean of int64 values is not defined; use the sum");
  }
  if (call.root < 0 || call.root >= size_) {
    fail_config("broadcast: root ", call.root, " is outside 0 … ", size_ - 1);
  }
}

Communicator::Ticket Communicator::count(const Collective& call) {
  ++sequence_;
  CommStats::PerOp& stats = stats_.ops[static_cast<size_t>(call.op)];
  ++stats.calls;
  const int64_t share = call.span.bytes() / size_ * (size_ - 1);
  switch (call.op) {
    case CollectiveOp::kAllReduce:
      stats.bytes += 2 * call.span.bytes() * (size_ - 1) / size_;
      break;
    case CollectiveOp::kReduceScatter:
    case CollectiveOp::kAllGather:
      stats.bytes += share;
      break;
    case CollectiveOp::kBroadcast:
      stats.bytes += size_ > 1 && rank_ == call.root ? call.span.bytes() : 0;
      break;
    case CollectiveOp::kBarrier:
      break;
  }
  return {sequence_, debug_checks_};
}

void Communicator::verify_fingerprint(const Collective& call, int64_t sequence) {
  const uint64_t mine = fingerprint(sequence, call);
  std::vector<uint64_t> all(static_cast<size_t>(size_));
  exchange_fingerprint(mine, all.data());
  for (int other = 0; other < size_; ++other) {
    const uint64_t theirs = all[static_cast<size_t>(other)];
    if (theirs == mine) continue;
    fail_comm("ranks disagree: rank ", rank_, " is at ", describe_word(mine), " (", describe(call),
              "), rank ", other, " at ", describe_word(theirs),
              "; every rank must make the same calls in the same order");
  }
}

void Communicator::record_failure(const char* reason) {
  // Only one thread at a time is here: the worker, or the caller once the worker is done.
  if (failed_.load(std::memory_order_acquire)) return;
  failure_ = reason;
  failed_.store(true, std::memory_order_release);
}

void Communicator::perform(const Collective& call) {
  if (worker_) worker_->drain();
  validate(call);
  const Ticket ticket = count(call);
  if (size_ > 1) guarded(call, ticket, [&] { run(call); });
}

Work Communicator::perform_async(const Collective& call) {
  validate(call);
  const Ticket ticket = count(call);
  if (size_ == 1) return {};
  return start(call, ticket);
}

Work Communicator::start(const Collective& call, Ticket ticket) {
  if (!worker_) worker_ = std::make_shared<Worker>();
  const int device = call.stream.cuda ? current_cuda_device() : -1;
  const int64_t place = worker_->submit([this, call, ticket, device] {
    guarded(call, ticket, [&] {
      if (device >= 0) use_cuda_device(device);  // each thread has its own
      run(call);
    });
  });
  return Work([worker = worker_, place] { worker->wait(place); });
}

std::unique_ptr<Communicator> make_single_communicator() {
  return std::make_unique<SingleCommunicator>();
}

}  // namespace zerosharp
