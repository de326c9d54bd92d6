// 5-bit weights times A8 activations: Q5_0, Q5_1, Q5_K. As for 4 bits; 32 * 31 * 127 is exact.
#pragma once

#include "kernels/linear_dot.h"

namespace spola {
namespace {

template <class S>
struct FiveBits {
  using D = Dot<S>;
  using Sum = typename S::Sum;

  // sum[r] += dot of columns 4 First .. 4 First + 15; group First + i is the nibbles at qs + i groups.
  template <bool High, int First, int MR>
  static SPOLA_INLINE void dot16(Sum (&sum)[MR], const uint8_t* qs, typename S::Codes plane,
                                 const RowsA8<MR>& rows, long at) {
    const typename S::template Sixteen<MR> act(rows, at);
    unrolled<4>([&](auto j) {
      const auto raw = S::load_codes(qs + j.value * kGroupBytes);
      S::template dot<j.value>(sum, S::template five_bits<High, First + j.value>(raw, plane), act);
    });
  }

  // Low nibbles are columns 0..15, high nibbles 16..31 of four groups.
  template <int MR>
  static SPOLA_INLINE void dot_split(Sum (&sum)[MR], const uint8_t* qs, const uint8_t* plane,
                                     const RowsA8<MR>& rows, long at) {
    const auto bits = S::load_codes(plane);
    dot16<false, 0>(sum, qs, bits, rows, at);
    dot16<true, 4>(sum, qs, bits, rows, at + 16);
  }

  template <class N>
  static void u5s(N, const uint8_t* p, const Activations& a, int row0, float* out) {
    constexpr int MR = N::value;
    const Ahead ahead(a, p);
    const RowsA8<MR> rows(a, row0);
    typename S::template Accumulators<MR> acc(out);
    for (long b = 0; b < rows.blocks; ++b, p += u5s::kBytes) {
      ahead.fetch<u5s::kBytes>(p);
#pragma GCC unroll 4
      for (int part = 0; part < S::kParts; ++part) {
        const int codes = codes_of<S>(part);
        Sum sum[MR];
        S::start_at_zero_point(sum, 16, rows, b);
        dot_split(sum, p + u5s::kQs + codes, p + u5s::kPlane + codes, rows, b * kBlock);
        D::add_scaled(acc, part, sum, S::load_half(p + u5s::kD + halves_of<S>(part)), rows, b);
      }
    }
    acc.store();
  }

  template <class N>
  static void u5sm(N, const uint8_t* p, const Activations& a, int row0, float* out) {
    constexpr int MR = N::value;
    const Ahead ahead(a, p);
    const RowsA8<MR> rows(a, row0);
    typename S::template Accumulators<MR> acc(out);
    for (long b = 0; b < rows.blocks; ++b, p += u5sm::kBytes) {
      ahead.fetch<u5sm::kBytes>(p);
#pragma GCC unroll 4
      for (int part = 0; part < S::kParts; ++part) {
        const int codes = codes_of<S>(part);
        Sum sum[MR];
        D::clear(sum);
        dot_split(sum, p + u5sm::kQs + codes, p + u5sm::kPlane + codes, rows, b * kBlock);
        const auto scale = S::load_half(p + u5sm::kD + halves_of<S>(part));
        D::add_scale_min(acc, part, sum, scale, S::load_half(p + u5sm::kM + halves_of<S>(part)), rows, b);
      }
    }
    acc.store();
  }

  // One sub-block of 32 columns: the low or high nibbles of a pair.
  template <bool High, int MR, class Accumulators>
  static SPOLA_INLINE void sub_block(Accumulators& acc, const uint8_t* pair, const float* scale,
                                     const float* min, const RowsA8<MR>& rows, long b) {
#pragma GCC unroll 4
    for (int part = 0; part < S::kParts; ++part) {
      const auto bits = S::load_codes(pair + (High ? kGroupBytes : 0) + codes_of<S>(part));
      const uint8_t* qs = pair + u5k::kPlanes + codes_of<S>(part);
      Sum sum[MR];
      D::clear(sum);
      dot16<High, 0>(sum, qs, bits, rows, b * kBlock);
      dot16<High, 4>(sum, qs + 4 * kGroupBytes, bits, rows, b * kBlock + 16);
      D::add_scale_min(acc, part, sum, S::load_float(scale + part * S::kLanes),
                       S::load_float(min + part * S::kLanes), rows, b);
    }
  }

  template <class N>
  static void u5k(N, const uint8_t* p, const Activations& a, int row0, float* out) {
    constexpr int MR = N::value;
    const Ahead ahead(a, p);
    const RowsA8<MR> rows(a, row0);
    typename S::template Accumulators<MR> acc(out);
    typename S::KScales scales;
    for (long b = 0; b < rows.blocks; b += 8, p += u5k::kBytes) {
      ahead.fetch<u5k::kPairs>(p);
      scales.load(p);
      for (long i = 0; i < 4; ++i) {
        const uint8_t* pair = p + u5k::kPairs + i * u5k::kPairBytes;
        ahead.fetch<u5k::kPairBytes>(pair);
        sub_block<false>(acc, pair, scales.scale[i * 2], scales.min[i * 2], rows, b + i * 2);
        sub_block<true>(acc, pair, scales.scale[i * 2 + 1], scales.min[i * 2 + 1], rows, b + i * 2 + 1);
      }
    }
    acc.store();
  }
};

}  // namespace
}  // namespace spola
