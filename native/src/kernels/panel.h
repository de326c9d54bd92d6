// Tile kernels for many activation rows: a piece of a tile is unpacked once into the first-level cache and then
// meets the rows of the call, group by group. For SIMD sources only (linear_dot.h says why).
#pragma once

#include "kernels/ahead.h"
#include "kernels/inline.h"

namespace spola {
namespace {

template <int N>
struct Constant {
  static constexpr int value = N;
};

// body(Constant<0>), body(Constant<1>), ... of `To` calls: lanes and shifts are constants of an instruction.
template <int To, int From = 0, class Body>
SPOLA_INLINE void unrolled(const Body& body) {
  if constexpr (From < To) {
    body(Constant<From>{});
    unrolled<To, From + 1>(body);
  }
}

// with(Constant<n>{}) for the n of 1 to Most that `rows` is.
template <int Most, class With>
SPOLA_INLINE void with_rows_up_to(int rows, const With& with) {
  if constexpr (Most > 1) {
    if (rows < Most) return with_rows_up_to<Most - 1>(rows, with);
  }
  with(Constant<Most>{});
}

// unpack(p, n) for each piece of `piece` columns (fewer at the end) at p, which returns where the next one begins,
// then multiply(g, k, n) for each of `groups` groups of rows; the piece's n columns begin at k.
//
// The next tile's bytes are asked for in as many parts as there are groups: all at once they would hold every
// buffer for misses, and those are wanted for the rows, which come from the second-level cache.
template <class Unpack, class Multiply>
SPOLA_INLINE void by_pieces(const Activations& a, const uint8_t* tile, int piece, int groups, const Unpack& unpack,
                            const Multiply& multiply) {
  const Ahead ahead(a, tile);
  for (int k = 0; k < a.k; k += piece) {
    const int n = a.k - k < piece ? a.k - k : piece;
    const uint8_t* fetched = tile;
    tile = unpack(tile, n);
    const long part = (tile - fetched + groups - 1) / groups;
    for (int g = 0; g < groups; ++g) {
      const uint8_t* const until = tile - fetched < part ? tile : fetched + part;
      for (; fetched < until; fetched += 64) ahead.fetch<64>(fetched);
      multiply(g, k, n);
    }
  }
}

}  // namespace
}  // namespace spola
