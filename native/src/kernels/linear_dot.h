// What the linear kernels share on instruction sets that add four products of bytes to an int32 exactly
// (VNNI, dotprod): one template for all of them, S being the instruction set.
//
// S::Codes is one register of a group of a packed tile: S::kLanes output rows, four codes of consecutive k
// each. Where a register is narrower than a tile, a kernel goes through the S::kParts parts of each record.
// For SIMD sources only: everything is internal to its source file and no standard library is used, as an
// inline function compiled for one instruction set could be the copy the linker keeps for everybody.
#pragma once

#include "kernels/panel.h"
#include "kernels/records.h"

namespace spola {
namespace {

// A8 activations of MR rows, as bases and strides: a pointer per row would not fit into the registers.
template <int MR>
struct RowsA8 {
  const int8_t* q;
  const float* d;
  const float* s;
  const int16_t* h;
  long k, blocks;

  SPOLA_INLINE RowsA8(const Activations& a, int row0) : k(a.k), blocks(a.k / kBlock) {
    q = a.q8 + row0 * k;
    d = a.d8 + row0 * blocks;
    s = a.s8 + row0 * blocks;
    h = a.h8 + row0 * blocks * 2;
  }
  SPOLA_INLINE const int8_t* codes(int r, long at) const { return q + r * k + at; }
  SPOLA_INLINE float scale(int r, long b) const { return d[r * blocks + b]; }
  SPOLA_INLINE float scaled_sum(int r, long b) const { return s[r * blocks + b]; }
  SPOLA_INLINE const int16_t* halves(int r, long b) const { return h + (r * blocks + b) * 2; }
};

template <int MR>
struct RowsA16 {
  const int16_t* q;
  long k;

  SPOLA_INLINE RowsA16(const Activations& a, int row0) : q(a.q16 + row0 * static_cast<long>(a.k)), k(a.k) {}
  SPOLA_INLINE const int16_t* codes(int r, long at) const { return q + r * k + at; }
};

template <class S>
struct Dot {
  using Sum = typename S::Sum;
  using F = typename S::F;

  template <int MR>
  static SPOLA_INLINE void clear(Sum (&sum)[MR]) {
#pragma GCC unroll 16
    for (int r = 0; r < MR; ++r) sum[r] = S::zero_sum();
  }

  // scale * float(sum), and +0 where that is zero
  static SPOLA_INLINE F scaled(Sum sum, F scale) { return S::fma(scale, S::to_float(sum), S::zero()); }

  // acc = fma(da, scale * float(sum), acc)
  template <int MR, class Accumulators>
  static SPOLA_INLINE void add_scaled(Accumulators& acc, int part, const Sum (&sum)[MR], F scale,
                                      const RowsA8<MR>& rows, long b) {
#pragma GCC unroll 16
    for (int r = 0; r < MR; ++r) {
      acc.set(r, part, S::fma(scaled(sum[r], scale), rows.scale(r, b), acc.get(r, part)));
    }
  }

  // The same, then acc = fma(min, s, acc).
  template <int MR, class Accumulators>
  static SPOLA_INLINE void add_scale_min(Accumulators& acc, int part, const Sum (&sum)[MR], F scale, F min,
                                         const RowsA8<MR>& rows, long b) {
#pragma GCC unroll 16
    for (int r = 0; r < MR; ++r) {
      const F t = S::fma(scaled(sum[r], scale), rows.scale(r, b), acc.get(r, part));
      acc.set(r, part, S::fma(min, rows.scaled_sum(r, b), t));
    }
  }
};

// Where the rows of a part begin in a group of codes, in a plane of f16 and in one of f32.
template <class S>
constexpr int codes_of(int part) {
  return part * S::kLanes * 4;
}
template <class S>
constexpr int halves_of(int part) {
  return part * S::kLanes * 2;
}
template <class S>
constexpr int floats_of(int part) {
  return part * S::kLanes * 4;
}

}  // namespace
}  // namespace spola
