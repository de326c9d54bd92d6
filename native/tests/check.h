// What the native tests need: checks that count, random numbers, buffers that start where one asks.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "kernels/table.h"

namespace check {

struct Totals {
  long checks = 0;
  long failures = 0;
};
Totals& totals();

// Counts a check; prints the first failures.
bool expect(bool ok, const char* what, const char* file, int line);

#define CHECK(condition) check::expect((condition), #condition, __FILE__, __LINE__)
#define CHECK_MSG(condition, ...)                              \
  do {                                                         \
    if (!CHECK(condition) && check::totals().failures <= 20) { \
      std::fprintf(stderr, "    " __VA_ARGS__);                \
      std::fputc('\n', stderr);                                \
    }                                                          \
  } while (0)

// SplitMix64.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  int below(int n) { return static_cast<int>(bits() % static_cast<uint64_t>(n)); }
  float unit() { return static_cast<float>(bits() >> 40) * 0x1p-24f; }  // [0, 1)
  float symmetric(float limit) { return (2 * unit() - 1) * limit; }
  // Bell-shaped, with an outlier now and then as hidden states have them.
  float value() {
    const float x = unit() + unit() + unit() - 1.5f;
    return below(50) == 0 ? x * 40 : x;
  }

 private:
  uint64_t state_;
};

// n values of T whose address is `offset` elements past a 64-byte boundary.
template <class T>
class Buffer {
 public:
  Buffer(size_t n, size_t offset) : raw_((n + offset) * sizeof(T) + 64), n_(n) {
    const auto address = reinterpret_cast<uintptr_t>(raw_.data());
    const uintptr_t aligned = (address + 63) / 64 * 64 + offset * sizeof(T);
    data_ = reinterpret_cast<T*>(raw_.data() + (aligned - address));
  }
  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return n_; }
  T& operator[](size_t i) { return data_[i]; }

 private:
  std::vector<unsigned char> raw_;
  T* data_;
  size_t n_;
};

// Every table but the scalar one that this processor can run.
std::vector<const spola::Kernels*> variants();

// Equal bits, where any NaN equals any other.
inline bool same(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

}  // namespace check

void test_attention();
void test_decoder();
void test_free();
void test_pack();
void test_linear();
void test_rows();
void test_verify();
