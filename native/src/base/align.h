// Alignment arithmetic. Nothing here allocates.
#pragma once

#include <cstddef>

namespace spola {

constexpr size_t kCacheLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;

constexpr size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

template <class T>
constexpr T ceil_div(T value, T divisor) {
  return (value + divisor - 1) / divisor;
}

}  // namespace spola
