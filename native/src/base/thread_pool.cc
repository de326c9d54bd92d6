#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <map>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace spola {
namespace {

constexpr int kSpins = 2000;       // pauses before a waiting worker yields: some 50 to 100 microseconds
constexpr int kCrowdedSpins = 20;  // the same with more workers than processors
constexpr int kYields = 32;        // before it sleeps

constexpr uint64_t kOpen = 1, kOne = 2, kEpoch = uint64_t{1} << 16;

constexpr uint64_t epoch_of(uint64_t state) { return state / kEpoch; }
constexpr int active_in(uint64_t state) { return static_cast<int>(state % kEpoch / kOne); }
constexpr bool is_open(uint64_t state) { return state & kOpen; }

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
      usable_(usable_processors()),
      spins_(threads > usable_ ? kCrowdedSpins : kSpins),
      slots_(new Slot[threads]) {
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
  stop_.store(true);
  wake();
  for (auto& thread : threads_) thread.join();
}

void ThreadPool::call(Function function, void* context, int stages) {
  if (stages < 1) return;
  const std::lock_guard<std::mutex> turn(turn_);
  keep_off_caller();
  const uint64_t epoch = epoch_of(state_.load(std::memory_order_relaxed)) + 1;
  function_ = function;
  context_ = context;
  first_epoch_ = epoch;
  stages_ = stages;
  for (int i = 0; i < size_; ++i) slots_[i].next.store(0, std::memory_order_relaxed);
  const uint64_t state = epoch * kEpoch + kOne + kOpen;  // the caller is in
  state_.store(state);
  wake();
  run_stages(0, state);
}

// Nothing happens as long as the caller stays where it is. What fails is left as it was.
void ThreadPool::keep_off_caller() {
#if defined(__linux__)
  if (size_ == 1 || size_ > usable_) return;
  const int here = sched_getcpu();
  if (here < 0 || here >= CPU_SETSIZE || here == caller_on_) return;
  caller_on_ = here;
  cpu_set_t others;  // of the caller, which may be told to keep to fewer at any time
  if (sched_getaffinity(0, sizeof others, &others) != 0) return;
  CPU_CLR(here, &others);
  if (CPU_COUNT(&others) < size_ - 1) return;
  for (auto& thread : threads_) pthread_setaffinity_np(thread.native_handle(), sizeof others, &others);
#endif
}

void ThreadPool::work(int worker) {
  for (;;) {
    wait_for_call();
    uint64_t state = state_.load(std::memory_order_acquire);
    if (enter(&state)) {
      run_stages(worker, state);
    } else if (stop_.load()) {
      return;
    }
  }
}

// From the stage that this worker has entered to the end of the call.
void ThreadPool::run_stages(int worker, uint64_t state) {
  for (;;) {
    function_(context_, worker, static_cast<int>(epoch_of(state) - first_epoch_));
    const uint64_t epoch = epoch_of(state);
    if (leave(&state)) continue;
    // The call may end here, and another begin: what belongs to it is read only after entering a stage.
    do {
      if (epoch_of(state) == epoch) wait_past(epoch);
      state = state_.load(std::memory_order_acquire);
      if (!is_open(state)) return;
    } while (!enter(&state));
  }
}

// Leaves a stage in which nothing is unclaimed. The last to leave ends it: then all of its items are done.
// True when that has taken the worker into the next stage; `state` is what it then is.
bool ThreadPool::leave(uint64_t* state) {
  uint64_t seen = state_.load(std::memory_order_relaxed);
  for (;;) {
    const bool last = active_in(seen) == 1;
    const bool end = epoch_of(seen) + 1 - first_epoch_ == static_cast<uint64_t>(stages_);
    const uint64_t next = !last ? seen - kOne
                          : end ? (epoch_of(seen) + 1) * kEpoch
                                : (epoch_of(seen) + 1) * kEpoch + kOne + kOpen;
    if (!state_.compare_exchange_weak(seen, next)) continue;
    if (last) wake();
    *state = next;
    return last && !end;
  }
}

// Joins the stage of `state` as it is now, unless no call runs.
bool ThreadPool::enter(uint64_t* state) {
  while (is_open(*state)) {
    if (state_.compare_exchange_weak(*state, *state + kOne)) return *state += kOne, true;
  }
  return false;
}

Range ThreadPool::claim(int worker, int stage, int part, int count) {
  const uint64_t key = static_cast<uint64_t>(stage) * kParts + static_cast<uint64_t>(part) + 1;
  for (int i = 0, of = worker; i < size_; ++i, of = of + 1 < size_ ? of + 1 : 0) {
    const Range range = share(count, of, size_);
    uint64_t seen = slots_[of].next.load(std::memory_order_relaxed);
    for (;;) {
      // A later key: everybody has found this set exhausted before.
      const int next = seen >> 32 == key ? static_cast<int>(seen & 0xffffffffu) : range.begin;
      if (seen >> 32 > key || next >= range.end) break;
      // Ever smaller pieces, so that all finish together.
      const int n = size_ == 1 ? range.end - next : std::max(1, (range.end - next) / 4);
      const uint64_t taken = key << 32 | static_cast<uint64_t>(next + n);
      if (slots_[of].next.compare_exchange_weak(seen, taken, std::memory_order_relaxed))
        return {next, next + n};
    }
  }
  return {0, 0};
}

bool ThreadPool::left(int stage, int count) const {
  const uint64_t key = static_cast<uint64_t>(stage) * kParts + 1;
  for (int i = 0; i < size_; ++i) {
    const Range range = share(count, i, size_);
    const uint64_t seen = slots_[i].next.load(std::memory_order_relaxed);
    const int next = seen >> 32 == key ? static_cast<int>(seen & 0xffffffffu) : range.begin;
    if (seen >> 32 <= key && next < range.end) return true;
  }
  return false;
}

void ThreadPool::pause(int spins) const {
  if (spins >= spins_) {
    sched_yield();
    return;
  }
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// Sleeps in the end, so that the system can give this processor to a worker that waits for one.
template <class Done>
void ThreadPool::wait(Done done) {
  for (int spins = 0; spins < spins_ + kYields; ++spins) {
    if (done()) return;
    pause(spins);
  }
  sleepers_.fetch_add(1);
  for (;;) {
    const uint32_t seen = wakes_.load();
    if (done()) break;
    wakes_.wait(seen);
  }
  sleepers_.fetch_sub(1);
}

void ThreadPool::wait_past(uint64_t epoch) {
  wait([this, epoch] { return epoch_of(state_.load()) != epoch; });
}

void ThreadPool::wait_for_call() {
  wait([this] { return is_open(state_.load()) || stop_.load(); });
}

// After a change of state or of stop: whoever sleeps looks again.
void ThreadPool::wake() {
  if (sleepers_.load() == 0) return;
  wakes_.fetch_add(1);
  wakes_.notify_all();
}

std::shared_ptr<ThreadPool> shared_pool(int threads) {
  // Processors belong to the process, and so does this.
  static std::mutex mutex;
  static std::map<int, std::weak_ptr<ThreadPool>> pools;
  const std::lock_guard<std::mutex> lock(mutex);
  std::weak_ptr<ThreadPool>& kept = pools[threads];
  std::shared_ptr<ThreadPool> pool = kept.lock();
  if (!pool) kept = pool = std::make_shared<ThreadPool>(threads);
  return pool;
}

}  // namespace spola
