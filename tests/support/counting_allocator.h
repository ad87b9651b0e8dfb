// What LibTorch's CPU allocator hands out while a test looks.
#pragma once
#include <c10/core/Allocator.h>

#include <atomic>
#include <cstdint>

namespace zerosharp::testing {

/// Counts what LibTorch's CPU allocator hands out, on all threads.
class CountingAllocator final : public c10::Allocator {
 public:
  CountingAllocator() : base_(c10::GetAllocator(c10::kCPU)) {
    c10::SetAllocator(c10::kCPU, this, 100);
  }
  ~CountingAllocator() override { c10::SetAllocator(c10::kCPU, base_, 100); }
  at::DataPtr allocate(size_t bytes) override {
    ++count;
    total_bytes += static_cast<int64_t>(bytes);
    return base_->allocate(bytes);
  }
  at::DeleterFnPtr raw_deleter() const override { return base_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    base_->copy_data(to, from, bytes);
  }
  std::atomic<int64_t> count{0};
  std::atomic<int64_t> total_bytes{0};

 private:
  c10::Allocator* base_;
};

}  // namespace zerosharp::testing
