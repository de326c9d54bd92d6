// A fixed set of workers that go through the stages of a call together and share out the work of each.
//
// A stage ends when all of its items are done, not when all workers have come: a worker that another process
// keeps off its processor is waited for only while it holds an item, and the calling thread, which is worker
// 0, can do everything alone. Items lie in one range per worker; who is through with its own takes from the
// others'. So items of a stage must not depend on each other, and who computes one must not matter.
//
// Waiting spins for a moment, then yields, then sleeps. One caller at a time: others wait for their turn, so decoders
// of one process share a pool (shared_pool) instead of having workers that spin where another's should work. No
// priorities, and no worker has a processor of its own; but the workers keep off the one that the caller is on, where
// there are enough: a system that wakes them there, while another is idle, may leave them behind the caller for whole
// calls.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/align.h"

namespace spola {

// Half-open range of items.
struct Range {
  int begin;
  int end;
};

// The part of `count` items of one of `parts` workers: contiguous, sizes differ by at most one.
inline Range share(int count, int part, int parts) {
  const int64_t n = count;
  return {static_cast<int>(n * part / parts), static_cast<int>(n * (part + 1) / parts)};
}

class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  // Passes through stages 0 .. stages - 1. body(worker, stage) claims items of that stage and does them until
  // there are none left; it must not return while one is unclaimed. Some workers may never be called for a
  // stage. What a stage wrote is visible in the next. `body` must not throw.
  template <class Body>
  void run(int stages, Body&& body) {
    call([](void* context, int worker,
            int stage) { (*static_cast<std::remove_reference_t<Body>*>(context))(worker, stage); },
         &body, stages);
  }

  // Calls body(worker) once on every worker, at the same time: for measuring.
  template <class Body>
  void each(Body&& body) {
    std::atomic<int> arrived{0};
    run(1, [&](int worker, int) {
      body(worker);
      arrived.fetch_add(1, std::memory_order_acq_rel);
      for (int spins = 0; arrived.load(std::memory_order_acquire) < size_; ++spins) pause(spins);
    });
  }

  // Only inside run: the next items for this worker out of `count`, empty when all are taken. `part` counts
  // the sets of items that a stage has, which every worker asks for in the same order: below kParts.
  Range claim(int worker, int stage, int part, int count);

  // Only inside run: whether items of a stage's only set are left to claim.
  bool left(int stage, int count) const;

  // Where the range that holds item `item` ends: whose owner will read on there.
  int end_of_range(int item, int count) const {
    return share(count, static_cast<int>((int64_t{item + 1} * size_ - 1) / count), size_).end;
  }

  static constexpr int kParts = 4096;

 private:
  using Function = void (*)(void* context, int worker, int stage);

  // The next item of one worker's range, under the stage and part that it was claimed for.
  struct alignas(kCacheLine) Slot {
    std::atomic<uint64_t> next{0};
  };

  void call(Function function, void* context, int stages);
  void work(int worker);
  void finish();
  void run_stages(int worker, uint64_t state);
  bool leave(uint64_t* state);
  bool enter(uint64_t* state);
  void pause(int spins) const;
  void keep_off_caller();
  void wait_past(uint64_t epoch);
  void wait_for_call();
  template <class Done>
  void wait(Done done);
  void wake();

  int size_;
  int usable_;  // processors
  int spins_;
  int caller_on_ = -1;  // the processor that workers keep off; -1: none
  std::unique_ptr<Slot[]> slots_;

  // Bit 0: a call runs. Bits 1 .. 15: workers in the stage. Above: the epoch, which counts stages of all
  // calls.
  alignas(kCacheLine) std::atomic<uint64_t> state_{0};
  alignas(kCacheLine) std::atomic<int> sleepers_{0};
  std::atomic<uint32_t> wakes_{0};
  std::atomic<bool> stop_{false};
  // Of the call that runs: written while none does, read by workers inside a stage.
  Function function_ = nullptr;
  void* context_ = nullptr;
  uint64_t first_epoch_ = 0;
  int stages_ = 0;
  std::vector<std::thread> threads_;
  std::mutex turn_;  // of callers
};

// This process's pool of so many workers: made when the first asks for it, gone with the last who has it.
std::shared_ptr<ThreadPool> shared_pool(int threads);

}  // namespace spola
