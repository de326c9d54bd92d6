#include "base/thread_pool.h"

#include <sched.h>

#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace spola {
namespace {

constexpr int kBarrierSpins = 2000;                 // pauses before a waiting worker yields
constexpr int kCrowdedSpins = 20;                   // the same with more workers than processors
constexpr std::chrono::microseconds kIdleSpin{80};  // between calls, before a worker parks

void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

int usable_processors() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

ThreadPool::ThreadPool(int threads)
    : size_(threads),
      spins_(threads > usable_processors() ? kCrowdedSpins : kBarrierSpins),
      counters_(new WorkerCounters[threads]) {
  threads_.reserve(threads - 1);
  try {
    for (int i = 1; i < threads; ++i) threads_.emplace_back([this, i] { work(i); });
  } catch (...) {
    finish();
    throw;
  }
}

ThreadPool::~ThreadPool() { finish(); }

void ThreadPool::finish() {
  stop_.store(true, std::memory_order_relaxed);
  {
    std::lock_guard lock(mutex_);
    call_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void ThreadPool::start(Function function, void* context) {
  function_ = function;
  context_ = context;
  {
    std::lock_guard lock(mutex_);
    call_.fetch_add(1, std::memory_order_release);
    if (parked_ > 0) wake_.notify_all();
  }
  function(context, 0);
  barrier();  // nobody returns to the caller while a worker still runs
}

void ThreadPool::work(int worker) {
  uint64_t seen = 0;
  while (wait_for_call(seen)) {
    ++seen;
    function_(context_, worker);
    barrier();
  }
}

// True when there is a call to run, false when the pool ends.
bool ThreadPool::wait_for_call(uint64_t seen) {
  const auto deadline = std::chrono::steady_clock::now() + kIdleSpin;
  int spins = 0;
  while (call_.load(std::memory_order_acquire) == seen) {
    if (++spins < spins_) {
      pause_cpu();
      if (spins % 64 != 0 || std::chrono::steady_clock::now() < deadline) continue;
    }
    std::unique_lock lock(mutex_);
    ++parked_;
    wake_.wait(lock, [&] { return call_.load(std::memory_order_acquire) != seen; });
    --parked_;
  }
  return !stop_.load(std::memory_order_relaxed);
}

void ThreadPool::barrier() {
  if (size_ == 1) return;
  const uint64_t phase = phase_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; ++spins) {
    if (spins < spins_) {
      pause_cpu();
    } else {
      sched_yield();
    }
  }
}

}  // namespace spola
