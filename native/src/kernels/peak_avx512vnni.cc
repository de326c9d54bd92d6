// Peak rates of AVX-512 with VNNI: the instructions of the linear kernels, in registers only. See
// Kernels::peak.
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

}  // namespace

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
