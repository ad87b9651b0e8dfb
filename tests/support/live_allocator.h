// How many bytes of LibTorch's CPU tensors live at once while a test looks.
#pragma once
#include <c10/core/Allocator.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace zerosharp::testing {

/// Bytes handed out less bytes given back, and the most of them at any time, on all threads. What
/// was allocated before does not count when it is freed. Blocks may outlive this object.
class LiveAllocator final : public c10::Allocator {
 public:
  LiveAllocator() : base_(c10::GetAllocator(c10::kCPU)) { c10::SetAllocator(c10::kCPU, this, 100); }
  ~LiveAllocator() override { c10::SetAllocator(c10::kCPU, base_, 100); }
  LiveAllocator(const LiveAllocator&) = delete;
  LiveAllocator& operator=(const LiveAllocator&) = delete;

  int64_t live() const { return counts_->live; }
  int64_t peak() const { return counts_->peak; }
  /// Looks for the peak from now on.
  void restart_peak() { counts_->peak = counts_->live.load(); }

  at::DataPtr allocate(size_t bytes) override {
    auto block = std::make_unique<Block>(base_->allocate(bytes), bytes, counts_);
    void* const data = block->data.get();
    const at::Device device = block->data.device();
    return {data, block.release(), &give_back, device};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    base_->copy_data(to, from, bytes);
  }

 private:
  struct Counts {
    std::atomic<int64_t> live{0};
    std::atomic<int64_t> peak{0};
  };
  struct Block {
    Block(at::DataPtr taken, size_t bytes, std::shared_ptr<Counts> where)
        : data(std::move(taken)), size(static_cast<int64_t>(bytes)), counts(std::move(where)) {
      const int64_t now = counts->live += size;
      int64_t most = counts->peak;
      while (now > most && !counts->peak.compare_exchange_weak(most, now)) {
      }
    }
    ~Block() { counts->live -= size; }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

    at::DataPtr data;
    int64_t size;
    std::shared_ptr<Counts> counts;
  };
  static void give_back(void* block) { delete static_cast<Block*>(block); }

  c10::Allocator* base_;
  std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
};

}  // namespace zerosharp::testing
