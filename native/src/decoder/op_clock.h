// Seconds spent in each op of the program, as the calling worker sees them: for `spola profile`.
#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

namespace spola {

// One entry per op, then the head's logits, then what is made of them (sampling). Empty: not wanted.
using OpSeconds = std::vector<double>;

// The time from one `enter` to the next belongs to the entry entered. Only one thread calls it.
class OpClock {
 public:
  explicit OpClock(OpSeconds* seconds) : seconds_(seconds) {}

  void enter(size_t entry) {
    const Clock::time_point now = Clock::now();
    if (running_) (*seconds_)[entry_] += std::chrono::duration<double>(now - since_).count();
    since_ = now;
    entry_ = entry;
    running_ = true;
  }

  void stop() {
    if (running_) enter(entry_);
    running_ = false;
  }

 private:
  using Clock = std::chrono::steady_clock;
  OpSeconds* seconds_;
  Clock::time_point since_;
  size_t entry_ = 0;
  bool running_ = false;
};

}  // namespace spola
