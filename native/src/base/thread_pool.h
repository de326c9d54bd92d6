// A fixed set of workers that run one function together, with a barrier to use inside it.
//
// The calling thread is worker 0. Inside a call nobody parks: a barrier spins, and yields the processor when
// it has to wait long, so that more workers than processors make progress too. Between calls workers spin for
// a moment and then park. One caller at a time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/align.h"

namespace spola {

// What one worker has computed since the pool was made. Only that worker writes.
struct alignas(kCacheLine) WorkerCounters {
  uint64_t tiles = 0;     // 16 output rows of a linear layer, for all rows of a step
  uint64_t segments = 0;  // attention segments of a row group and KV head
  uint64_t rows = 0;      // rows normed, quantized, rotated, merged
  uint64_t sampled = 0;   // head rows sampled or scored
};

class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  // Calls body(worker) once on every worker and returns when all are done. `body` must not throw.
  template <class Body>
  void run(Body&& body) {
    start([](void* context, int worker) { (*static_cast<std::remove_reference_t<Body>*>(context))(worker); },
          &body);
  }

  // Waits until every worker has come here; only inside run. Memory written before is visible after.
  void barrier();

  WorkerCounters& counters(int worker) { return counters_[worker]; }

 private:
  using Function = void (*)(void* context, int worker);

  void start(Function function, void* context);
  void work(int worker);
  void finish();
  bool wait_for_call(uint64_t seen);

  int size_;
  int spins_;
  std::unique_ptr<WorkerCounters[]> counters_;

  alignas(kCacheLine) std::atomic<int> arrived_{0};
  alignas(kCacheLine) std::atomic<uint64_t> phase_{0};
  alignas(kCacheLine) std::atomic<uint64_t> call_{0};
  std::atomic<bool> stop_{false};
  Function function_ = nullptr;
  void* context_ = nullptr;

  std::mutex mutex_;
  std::condition_variable wake_;
  int parked_ = 0;  // guarded by mutex_
  std::vector<std::thread> threads_;
};

// Half-open range of `count` items for one of `parts` workers: contiguous, sizes differ by at most one.
struct Range {
  int begin;
  int end;
};

inline Range share(int count, int part, int parts) {
  const int64_t n = count;
  return {static_cast<int>(n * part / parts), static_cast<int>(n * (part + 1) / parts)};
}

}  // namespace spola
