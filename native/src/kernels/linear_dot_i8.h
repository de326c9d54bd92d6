// 8-bit codes: Q8_0 times A16 activations, and the generic schemes times A8 or A16. See linear_dot.h.
//
// All integer sums are exact in int32: 32 * 128 * 32767 and 32 * 255 * 127 are far below 2^31.
#pragma once

#include "kernels/linear_dot.h"

namespace spola {
namespace {

template <class S>
struct EightBits {
  using Sum = typename S::Sum;

  template <class N>
  static void i8s(N, const uint8_t* p, const Activations& a, int row0, float* out) {
    constexpr int MR = N::value;
    const Ahead ahead(a, p);
    const RowsA16<MR> rows(a, row0);
    typename S::template Accumulators<MR> acc(out);
    for (long k = 0; k < a.k; k += kBlock, p += i8s::kBytes) {
      ahead.fetch<i8s::kBytes>(p);
      const typename S::template BlockA16<8, false, MR> block(rows, k);
#pragma GCC unroll 4
      for (int part = 0; part < S::kParts; ++part) {
        Sum sum[MR];
        block.dot(sum, p + i8s::kQs + codes_of<S>(part));
        const auto d = S::load_half(p + i8s::kD + halves_of<S>(part));
#pragma GCC unroll 16
        for (int r = 0; r < MR; ++r) acc.set(r, part, S::fma(d, S::to_float(sum[r]), acc.get(r, part)));
      }
    }
    acc.store_scaled(a.d16 + row0);
  }
};

template <class S, int Group, bool Min>
struct GenericCodes {
  using Sum = typename S::Sum;
  static constexpr int kCodes = kFloatPlane * (Min ? 2 : 1);
  static constexpr int kBytes = kCodes + Group / 4 * kGroupBytes;

  static SPOLA_INLINE auto plane(const uint8_t* p, int part) {
    return S::load_float(reinterpret_cast<const float*>(p + floats_of<S>(part)));
  }

  template <class N>
  static void a16(N, const uint8_t* p, const Activations& a, int row0, float* out) {
    constexpr int MR = N::value;
    const Ahead ahead(a, p);
    const RowsA16<MR> rows(a, row0);
    typename S::template Accumulators<MR> acc(out);
    for (long k = 0; k < a.k; k += Group, p += kBytes) {
      ahead.fetch<kBytes>(p);
      const typename S::template BlockA16<Group / 4, true, MR> block(rows, k);
#pragma GCC unroll 4
      for (int part = 0; part < S::kParts; ++part) {
        Sum sum[MR];
        block.dot(sum, p + kCodes + codes_of<S>(part));
#pragma GCC unroll 16
        for (int r = 0; r < MR; ++r) {
          auto t = S::fma(plane(p, part), S::to_float(sum[r]), acc.get(r, part));
          if constexpr (Min) {
            t = S::fma(plane(p + kFloatPlane, part), S::template sum_codes<Group>(rows.codes(r, k)), t);
          }
          acc.set(r, part, t);
        }
      }
    }
    acc.store_scaled(a.d16 + row0);
  }

  template <class N>
  static void a8(N, const uint8_t* p, const Activations& a, int row0, float* out) {
    constexpr int MR = N::value;
    const Ahead ahead(a, p);
    const RowsA8<MR> rows(a, row0);
    typename S::template Accumulators<MR> acc(out);
    for (long k = 0; k < a.k; k += Group, p += kBytes) {
      ahead.fetch<kBytes>(p);
#pragma GCC unroll 4
      for (int part = 0; part < S::kParts; ++part) {
        Sum sum[MR];
        dot_a8(sum, p + kCodes + codes_of<S>(part), rows, k);
        Dot<S>::add_scaled(acc, part, sum, plane(p, part), rows, k / kBlock);
        if constexpr (Min) {
          const auto min = plane(p + kFloatPlane, part);
#pragma GCC unroll 16
          for (int r = 0; r < MR; ++r) {
            acc.set(r, part, S::fma(min, min_factor(rows, r, k), acc.get(r, part)));
          }
        }
      }
    }
    acc.store();
  }

  template <int MR>
  static SPOLA_INLINE float min_factor(const RowsA8<MR>& rows, int r, long k) {
    if constexpr (Group == kBlock) return rows.scaled_sum(r, k / kBlock);
    return rows.scale(r, k / kBlock) * static_cast<float>(rows.halves(r, k / kBlock)[k % kBlock / 16]);
  }

  template <int MR>
  static SPOLA_INLINE void dot_a8(Sum (&sum)[MR], const uint8_t* qs, const RowsA8<MR>& rows, long at) {
    S::template start_signed<Group>(sum, rows, at);
    unrolled<Group / 16>([&](auto half) {
      const typename S::template Sixteen<MR> act(rows, at + 16 * half.value);
      unrolled<4>([&](auto j) {
        const auto raw = S::load_codes(qs + (4 * half.value + j.value) * kGroupBytes);
        S::template dot<j.value>(sum, S::signed_codes(raw), act);
      });
    });
  }
};

}  // namespace
}  // namespace spola
