#include "base/bandwidth.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "base/align.h"
#include "base/arena.h"
#include "base/thread_pool.h"

namespace spola {
namespace {

// Sum of all words: eight independent chains, so that loads and not additions are the bound.
uint64_t read_words(const uint64_t* words, size_t count) {
  uint64_t sum[8] = {};
  for (size_t i = 0; i + 8 <= count; i += 8) {
    __builtin_prefetch(words + i + 256);
    for (int j = 0; j < 8; ++j) sum[j] += words[i + j];
  }
  uint64_t total = 0;
  for (uint64_t s : sum) total += s;
  return total;
}

}  // namespace

std::vector<double> measure_read_bandwidth(size_t bytes, int threads, int passes, bool huge_pages) {
  if (bytes < kHugePage || threads < 1 || threads > 1024 || passes < 1) {
    throw std::invalid_argument("measure_read_bandwidth: at least 2 MiB, 1 thread and 1 pass, please");
  }
  ThreadPool pool(threads);
  Mapping buffer(round_up(bytes, kCacheLine), huge_pages);
  const uint64_t* words = reinterpret_cast<const uint64_t*>(buffer.data());
  const size_t lines = buffer.size() / kCacheLine;
  const auto part = [&](int worker) { return lines * worker / threads * (kCacheLine / sizeof(uint64_t)); };
  pool.each([&](int worker) {
    uint8_t* begin = buffer.data() + part(worker) * sizeof(uint64_t);
    std::memset(begin, worker + 1, (part(worker + 1) - part(worker)) * sizeof(uint64_t));
  });
  std::vector<double> rates;
  std::atomic<uint64_t> total{0};  // so that the reads are not optimized away
  for (int pass = 0; pass <= passes; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    pool.each(
        [&](int worker) { total += read_words(words + part(worker), part(worker + 1) - part(worker)); });
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (pass > 0) rates.push_back(static_cast<double>(buffer.size()) / took.count());  // the first warms up
  }
  return rates;
}

}  // namespace spola
