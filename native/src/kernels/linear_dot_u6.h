// Q6_K weights times A8 activations. See linear_dot.h.
//
// Codes stay unsigned. Sums of 16 columns are exact in int32 and start at -32 times the sum of the activations.
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
      const F dw = S::load_half(d + halves_of<S>(part));
      Sum sum[MR];
      dot16<Q, 0>(sum, half + codes_of<S>(part), rows, b);
      D::add_scaled(acc, part, sum, S::mul(dw, first), rows, b);
      dot16<Q, 1>(sum, half + codes_of<S>(part), rows, b);
      D::add_scaled(acc, part, sum, S::mul(dw, second), rows, b);
    }
  }

  template <class N>
  static void u6k(N, const uint8_t* p, const Activations& a, int row0, float* out) {
    constexpr int MR = N::value;
    const Ahead ahead(a, p);
    const RowsA8<MR> rows(a, row0);
    typename S::template Accumulators<MR> acc(out);
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
