// 4-bit weights times A8 activations: Q4_0, Q4_1, Q4_K, groups with zero points. See linear_dot.h.
//
// Codes stay unsigned and sums are exact in int32 (32 * 15 * 127). A zero point of 8 is where the integer
// sums start: -8 times the sum of the activations.
#pragma once

#include "kernels/linear_dot.h"

namespace spola {
namespace {

template <class S>
struct FourBits {
  using D = Dot<S>;
  using Sum = typename S::Sum;

  // sum[r] += dot of 32 columns whose low nibbles are columns 0..15 and high nibbles 16..31.
  template <int MR>
  static SPOLA_INLINE void dot_split(Sum (&sum)[MR], const uint8_t* qs, const RowsA8<MR>& rows, long at) {
    const typename S::template Sixteen<MR> first(rows, at), second(rows, at + 16);
    unrolled<4>([&](auto j) {
      const auto raw = S::load_codes(qs + j.value * kGroupBytes);
      S::template dot<j.value>(sum, S::low_nibbles(raw), first);
      S::template dot<j.value>(sum, S::high_nibbles(raw), second);
    });
  }

  template <class N>
  static void u4s(N, const uint8_t* p, const Activations& a, int row0, float* out) {
    constexpr int MR = N::value;
    const Ahead ahead(a, p);
    const RowsA8<MR> rows(a, row0);
    typename S::template Accumulators<MR> acc(out);
    for (long b = 0; b < rows.blocks; ++b, p += u4s::kBytes) {
      ahead.fetch<u4s::kBytes>(p);
#pragma GCC unroll 4
      for (int part = 0; part < S::kParts; ++part) {
        Sum sum[MR];
        S::start_at_zero_point(sum, 8, rows, b);
        dot_split(sum, p + u4s::kQs + codes_of<S>(part), rows, b * kBlock);
        D::add_scaled(acc, part, sum, S::load_half(p + u4s::kD + halves_of<S>(part)), rows, b);
      }
    }
    acc.store();
  }

  template <class N>
  static void u4sm(N, const uint8_t* p, const Activations& a, int row0, float* out) {
    constexpr int MR = N::value;
    const Ahead ahead(a, p);
    const RowsA8<MR> rows(a, row0);
    typename S::template Accumulators<MR> acc(out);
    for (long b = 0; b < rows.blocks; ++b, p += u4sm::kBytes) {
      ahead.fetch<u4sm::kBytes>(p);
#pragma GCC unroll 4
      for (int part = 0; part < S::kParts; ++part) {
        Sum sum[MR];
        D::clear(sum);
        dot_split(sum, p + u4sm::kQs + codes_of<S>(part), rows, b * kBlock);
        const auto scale = S::load_half(p + u4sm::kD + halves_of<S>(part));
        D::add_scale_min(acc, part, sum, scale, S::load_half(p + u4sm::kM + halves_of<S>(part)), rows, b);
      }
    }
    acc.store();
  }

  // Groups of Blocks * 32 columns, value = d * (code - z).
  template <int Blocks>
  struct Zeros {
    template <class N>
    static void u4z(N, const uint8_t* p, const Activations& a, int row0, float* out) {
      constexpr int MR = N::value;
      const Ahead ahead(a, p);
      const RowsA8<MR> rows(a, row0);
      typename S::template Accumulators<MR> acc(out);
      for (long b = 0; b < rows.blocks; b += Blocks, p += u4z::bytes(Blocks)) {
        ahead.fetch<u4z::kQs>(p);
        for (long i = 0; i < Blocks; ++i) {
          const uint8_t* qs = p + u4z::kQs + i * u4z::kBlockBytes;
          ahead.fetch<u4z::kBlockBytes>(qs);
#pragma GCC unroll 4
          for (int part = 0; part < S::kParts; ++part) {
            Sum sum[MR];
            D::clear(sum);
            dot_split(sum, qs + codes_of<S>(part), rows, (b + i) * kBlock);
            const auto d = S::load_half(p + u4z::kD + halves_of<S>(part));
            const auto z = S::load_half(p + u4z::kZ + halves_of<S>(part));
            D::add_scale_min(acc, part, sum, d, S::negate(S::mul(d, z)), rows, b + i);
          }
        }
      }
      acc.store();
    }
  };

  // One sub-block of 32 columns: the low or high nibbles of eight groups.
  template <bool High, int MR, class Accumulators>
  static SPOLA_INLINE void sub_block(Accumulators& acc, const uint8_t* qs, const float* scale,
                                     const float* min, const RowsA8<MR>& rows, long b) {
#pragma GCC unroll 4
    for (int part = 0; part < S::kParts; ++part) {
      Sum sum[MR];
      D::clear(sum);
      unrolled<2>([&](auto half) {
        const typename S::template Sixteen<MR> act(rows, b * kBlock + 16 * half.value);
        unrolled<4>([&](auto j) {
          const auto raw = S::load_codes(qs + (4 * half.value + j.value) * kGroupBytes + codes_of<S>(part));
          S::template dot<j.value>(sum, High ? S::high_nibbles(raw) : S::low_nibbles(raw), act);
        });
      });
      D::add_scale_min(acc, part, sum, S::load_float(scale + part * S::kLanes),
                       S::load_float(min + part * S::kLanes), rows, b);
    }
  }

  template <class N>
  static void u4k(N, const uint8_t* p, const Activations& a, int row0, float* out) {
    constexpr int MR = N::value;
    const Ahead ahead(a, p);
    const RowsA8<MR> rows(a, row0);
    typename S::template Accumulators<MR> acc(out);
    typename S::KScales scales;
    for (long b = 0; b < rows.blocks; b += 8, p += u4k::kBytes) {
      ahead.fetch<u4k::kPairs>(p);
      scales.load(p);
      for (long i = 0; i < 4; ++i) {
        const uint8_t* pair = p + u4k::kPairs + i * u4k::kPairBytes;
        ahead.fetch<u4k::kPairBytes>(pair);
        sub_block<false>(acc, pair, scales.scale[i * 2], scales.min[i * 2], rows, b + i * 2);
        sub_block<true>(acc, pair, scales.scale[i * 2 + 1], scales.min[i * 2 + 1], rows, b + i * 2 + 1);
      }
    }
    acc.store();
  }
};

}  // namespace
}  // namespace spola
