#include "kernels/cpu/parallel.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/stream.h"

namespace zerosharp {
namespace {

std::atomic<int> g_num_threads{1};

/// Workers sleep on a condition variable between calls; they are joined at exit.
class Pool {
 public:
  ~Pool() { resize(0); }

  /// False if another thread is using the pool.
  bool run(int threads, int64_t num_tasks, const std::function<void(int64_t)>& body) {
    const std::unique_lock<std::mutex> exclusive(in_use_, std::try_to_lock);
    if (!exclusive.owns_lock()) return false;
    if (static_cast<int>(workers_.size()) < threads - 1) resize(threads - 1);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      body_ = &body;
      next_ = 0;
      num_tasks_ = num_tasks;
      helpers_wanted_ = threads - 1;
      helpers_busy_ = threads - 1;
      ++generation_;
    }
    wake_.notify_all();
    work();
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return helpers_busy_ == 0; });
    body_ = nullptr;
    return true;
  }

 private:
  void work() {
    for (int64_t task = next_++; task < num_tasks_; task = next_++) (*body_)(task);
  }

  void resize(int count) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
    workers_.clear();
    stopping_ = false;
    for (int i = 0; i < count; ++i) {
      workers_.emplace_back([this, i, seen = generation_] { serve(i, seen); });
    }
  }

  void serve(int index, int64_t seen) {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return stopping_ || generation_ != seen; });
      if (stopping_) return;
      seen = generation_;
      if (index >= helpers_wanted_) continue;
      lock.unlock();
      work();
      lock.lock();
      if (--helpers_busy_ == 0) done_.notify_one();
    }
  }

  std::mutex in_use_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::vector<std::thread> workers_;
  const std::function<void(int64_t)>* body_ = nullptr;
  std::atomic<int64_t> next_{0};
  int64_t num_tasks_ = 0;
  int helpers_wanted_ = 0;
  int helpers_busy_ = 0;
  int64_t generation_ = 0;
  bool stopping_ = false;
};

Pool& pool() {
  static Pool instance;
  return instance;
}

}  // namespace

void set_num_threads(int threads) { g_num_threads = std::max(threads, 1); }
int num_threads() noexcept { return g_num_threads; }

namespace kernels::cpu {

void parallel_for(int64_t num_tasks, const std::function<void(int64_t)>& body) {
  const int threads = static_cast<int>(std::min<int64_t>(num_threads(), num_tasks));
  if (threads > 1 && pool().run(threads, num_tasks, body)) return;
  for (int64_t task = 0; task < num_tasks; ++task) body(task);
}

void parallel_runs(int64_t numel, const std::function<void(int64_t, int64_t)>& body) {
  constexpr int64_t kUnit = 1024;
  constexpr int64_t kLeast = 32 * 1024;
  const int64_t runs = std::clamp<int64_t>(numel / kLeast, 1, num_threads());
  const int64_t length = ((numel + runs - 1) / runs + kUnit - 1) / kUnit * kUnit;
  parallel_for(runs, [&](int64_t run) {
    const int64_t begin = run * length;
    const int64_t end = std::min(numel, begin + length);
    if (begin < end) body(begin, end);
  });
}

}  // namespace kernels::cpu
}  // namespace zerosharp
