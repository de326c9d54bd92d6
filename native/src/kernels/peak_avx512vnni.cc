// Peak rates of AVX-512 with VNNI: the instructions of the linear kernels, in registers only. See
// Kernels::peak.
#include "kernels/peak_mix.h"
#include "kernels/simd_avx512vnni.h"
#include "kernels/variants.h"

namespace spola::avx512vnni {
namespace {

constexpr int kChains = 16;

template <class Vector, class Step>
SPOLA_INLINE void repeat(Vector zero, long rounds, Step step) {
  Vector acc[kChains];
#pragma GCC unroll 16
  for (int c = 0; c < kChains; ++c) acc[c] = zero;
  for (long n = 0; n < rounds; ++n) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) {
      acc[c] = step(acc[c]);
      __asm__("" : "+v"(acc[c]));
    }
  }
#pragma GCC unroll 16
  for (int c = 0; c < kChains; ++c) __asm__ volatile("" : : "v"(acc[c]));  // or all of it would be dead code
}

// Where sums start: what costs no port of the arithmetic, as in the kernels.
SPOLA_INLINE __m512i zero() {
  __m512i x;
  __asm__ volatile("vpxord %0, %0, %0" : "=v"(x));
  return x;
}
SPOLA_INLINE __m512i loaded(const int32_t& x) {
  __m512i y;
  __asm__ volatile("vpbroadcastd %1, %0" : "=v"(y) : "m"(x));
  return y;
}

// `Dots` products of each chain from `start` on, then what makes f32 of their sum and adds it.
template <int Dots, class Start, class Dot, class End>
SPOLA_INLINE double blocks(long rounds, int columns, Start start, Dot dot, End end) {
  constexpr int kRowsOfCall = 12;
  __m512 acc[kRowsOfCall];
  clear(acc);
  for (long n = 0; n < rounds; ++n) {
    __m512i sum[kRowsOfCall];
#pragma GCC unroll 16
    for (int c = 0; c < kRowsOfCall; ++c) sum[c] = start();
#pragma GCC unroll 8
    for (int j = 0; j < Dots; ++j) {
#pragma GCC unroll 16
      for (int c = 0; c < kRowsOfCall; ++c) {
        sum[c] = dot(sum[c]);
        __asm__ volatile("" : "+v"(sum[c]));  // all chains are alike: GCC would keep one
      }
    }
#pragma GCC unroll 16
    for (int c = 0; c < kRowsOfCall; ++c) {
      acc[c] = end(acc[c], sum[c]);
      __asm__ volatile("" : "+v"(acc[c]));
    }
  }
#pragma GCC unroll 16
  for (int c = 0; c < kRowsOfCall; ++c) __asm__ volatile("" : : "v"(acc[c]));
  return static_cast<double>(rounds) * kRowsOfCall * kTileRows * columns;
}

// A product that GCC cannot make once for all.
SPOLA_INLINE __m512 product(__m512 x) {
  __m512 y;
  __asm__ volatile("vmulps %1, %1, %0" : "=v"(y) : "v"(x));
  return y;
}

struct Mix {
  static double f32(long rounds) { return peak(ActFormat::kF32, rounds); }

  template <int Bits, bool Zero, bool Min>
  static double a8(long rounds) {
    const __m512i ones = _mm512_set1_epi8(1);
    const __m512 half = _mm512_set1_ps(0.5f);
    const auto dot = [&](__m512i x) { return _mm512_dpbusd_epi32(x, ones, ones); };
    const auto start = [] { return loaded(kMagicBits); };
    return blocks<8>(rounds, kBlock, start, dot, [&](__m512 acc, __m512i sum) {
      acc = _mm512_fmadd_ps(scaled(sum, half, half), half, acc);
      return Min ? _mm512_fmadd_ps(half, half, acc) : acc;
    });
  }

  // Two integer sums of 16 columns.
  static double six(long rounds) {
    const __m512i ones = _mm512_set1_epi8(1);
    const __m512 half = _mm512_set1_ps(0.5f);
    const auto dot = [&](__m512i x) { return _mm512_dpbusd_epi32(x, ones, ones); };
    const auto start = [] { return loaded(kMagicBits); };
    return blocks<4>(rounds, 16, start, dot, [&](__m512 acc, __m512i sum) {
      return _mm512_fmadd_ps(scaled(sum, half, half), half, acc);
    });
  }

  template <int Group, bool Min>
  static double codes(long rounds) {
    const __m512i ones = _mm512_set1_epi8(1);
    const __m512 half = _mm512_set1_ps(0.5f);
    const auto dot = [&](__m512i x) { return _mm512_dpbusd_epi32(x, ones, ones); };
    return blocks<Group / 4>(rounds, Group, zero, dot, [&](__m512 acc, __m512i sum) {
      sum = _mm512_dpwssd_epi32(sum, ones, ones);  // the codes' sign
      const __m512 i = _mm512_fmadd_ps(half, _mm512_cvtepi32_ps(sum), half);
      acc = _mm512_fmadd_ps(i, half, acc);
      if constexpr (!Min) return acc;
      return _mm512_fmadd_ps(Group == 16 ? product(half) : half, half, acc);
    });
  }

  template <int Group, bool Min>
  static double a16(long rounds) {
    const __m512i ones = _mm512_set1_epi8(1);
    const __m512 half = _mm512_set1_ps(0.5f);
    const auto dot = [&](__m512i x) { return _mm512_dpwssd_epi32(x, ones, ones); };
    return blocks<Group / 2>(rounds, Group, zero, dot, [&](__m512 acc, __m512i sum) {
      acc = _mm512_fmadd_ps(half, _mm512_cvtepi32_ps(sum), acc);
      return Min ? _mm512_fmadd_ps(half, half, acc) : acc;
    });
  }
};

}  // namespace

double mix(Scheme scheme, ActFormat format, long rounds) { return mix_of<Mix>(scheme, format, rounds); }

double peak(ActFormat format, long rounds) {
  const __m512i ones = _mm512_set1_epi8(1);
  const double steps = static_cast<double>(rounds) * kChains;
  if (format == ActFormat::kF32) {
    const __m512 half = _mm512_set1_ps(0.5f);
    repeat(_mm512_setzero_ps(), rounds, [&](__m512 x) { return _mm512_fmadd_ps(x, half, half); });
    return steps * 16;
  }
  if (format == ActFormat::kA8) {
    repeat(_mm512_setzero_si512(), rounds, [&](__m512i x) { return _mm512_dpbusd_epi32(x, ones, ones); });
    return steps * 64;
  }
  repeat(_mm512_setzero_si512(), rounds, [&](__m512i x) { return _mm512_dpwssd_epi32(x, ones, ones); });
  return steps * 32;
}

}  // namespace spola::avx512vnni
