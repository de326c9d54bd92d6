// The next tile, asked for while this one is read. For SIMD sources only (linear_dot.h says why).
#pragma once

#include "kernels/inline.h"
#include "kernels/table.h"

namespace spola {
namespace {

// While one tile is read the next one comes into the second-level cache: one core reaches the bandwidth of a
// bare read so, which prefetches into the first level (few requests in flight) do not.
struct Ahead {
  long distance;  // 0, and harmless, without a next tile

  SPOLA_INLINE Ahead(const Activations& a, const uint8_t* tile)
      : distance(a.next ? reinterpret_cast<long>(a.next) - reinterpret_cast<long>(tile) : 0) {}
  template <int Bytes>
  SPOLA_INLINE void fetch(const uint8_t* p) const {
#pragma GCC unroll 64
    for (int i = 0; i < Bytes; i += 64) __builtin_prefetch(p + distance + i, 0, 2);
  }
};

}  // namespace
}  // namespace spola
