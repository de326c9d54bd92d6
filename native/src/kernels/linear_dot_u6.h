// Q6_K weights times A8 activations. See linear_dot.h.
//
// The dots of both halves of 32 columns, zero point taken off, are exact in int32 and at most 16 * 32 * 127 =
// 65024, so that they and their products with int8 scales (at most 2 * 128 * 65024 < 2^24 in all) are exact
// in f32 too: the integer i of docs/numerics.md is formed by two FMAs, which are cheaper than products of
// int32.
#pragma once

#include "kernels/linear_dot.h"

namespace spola {
namespace {

template <class S>
struct SixBits {
  using D = Dot<S>;
  using Sum = typename S::Sum;
  using F = typename S::F;

  // sum[r] = dot of the 16 columns of half H of block b, codes less 32.
  template <int Q, int H, int MR>
  static SPOLA_INLINE void dot16(Sum (&sum)[MR], const uint8_t* half, const RowsA8<MR>& rows, long b) {
    const uint8_t* low = half + (Q % 2 * 8 + H * 4) * kGroupBytes;
    const uint8_t* high = half + u6k::kHigh + H * 4 * kGroupBytes;
    S::template start_at_half_zero_point<H>(sum, 32, rows, b);
    const typename S::template Sixteen<MR> act(rows, b * kBlock + H * 16);
    unrolled<4>([&](auto j) {
      const auto w = S::template six_bits<Q>(S::load_codes(low + j.value * kGroupBytes),
                                             S::load_codes(high + j.value * kGroupBytes));
      S::template dot<j.value>(sum, w, act);
    });
  }

  // 32 columns, quarter Q of the half record at `half`; `scales` are the two int8 of each row.
  template <int Q, int MR, class Accumulators>
  static SPOLA_INLINE void quarter(Accumulators& acc, const uint8_t* half, const uint8_t* d,
                                   const uint8_t* scales, const RowsA8<MR>& rows, long b) {
#pragma GCC unroll 4
    for (int part = 0; part < S::kParts; ++part) {
      F first, second;
      S::scale_pairs(scales + halves_of<S>(part), &first, &second);
      Sum sum[MR];
      F i[MR];
      dot16<Q, 0>(sum, half + codes_of<S>(part), rows, b);
// Adding +0 keeps a zero positive, as that of an integer is.
#pragma GCC unroll 16
      for (int r = 0; r < MR; ++r) i[r] = S::fma(first, S::to_float(sum[r]), S::zero());
      dot16<Q, 1>(sum, half + codes_of<S>(part), rows, b);
      const F dw = S::load_half(d + halves_of<S>(part));
#pragma GCC unroll 16
      for (int r = 0; r < MR; ++r) {
        i[r] = S::fma(second, S::to_float(sum[r]), i[r]);
        acc.set(r, part, S::fma(S::mul(dw, rows.scale(r, b)), i[r], acc.get(r, part)));
      }
    }
  }

  template <class N>
  static void u6k(N, const uint8_t* p, const Activations& a, int row0, float* out) {
    constexpr int MR = N::value;
    const Ahead ahead(a, p);
    const RowsA8<MR> rows(a, row0);
    typename S::template MemoryAccumulators<MR> acc(out);  // registers go to the two stages of i
    for (long b = 0; b < rows.blocks; b += 8, p += u6k::kBytes) {
      ahead.fetch<u6k::kHalves>(p);
      for (long i = 0; i < 2; ++i) {
        const uint8_t* half = p + u6k::kHalves + i * u6k::kHalfBytes;
        const uint8_t* scales = p + u6k::kScales + i * 4 * 32;
        ahead.fetch<u6k::kHalfBytes>(half);
        quarter<0>(acc, half, p + u6k::kD, scales, rows, b + i * 4);
        quarter<1>(acc, half, p + u6k::kD, scales + 32, rows, b + i * 4 + 1);
        quarter<2>(acc, half, p + u6k::kD, scales + 64, rows, b + i * 4 + 2);
        quarter<3>(acc, half, p + u6k::kD, scales + 96, rows, b + i * 4 + 3);
      }
    }
    acc.store();
  }
};

}  // namespace
}  // namespace spola
