// Peak rates of AVX2: the instruction mixes of the linear kernels, in registers only. See Kernels::peak.
#include "kernels/simd_avx2.h"
#include "kernels/variants.h"

namespace spola::avx2 {
namespace {

// Uses the sums, or all of the loop would be dead code.
template <int N, class Vector>
SPOLA_INLINE void keep(const Vector (&sum)[N]) {
#pragma GCC unroll 12
  for (int c = 0; c < N; ++c) __asm__ volatile("" : : "x"(sum[c]));
}

double peak_f32(long rounds) {
  constexpr int kChains = 12;
  __m256 acc[kChains];
  __m256 w = _mm256_set1_ps(0.5f);
#pragma GCC unroll 12
  for (int c = 0; c < kChains; ++c) acc[c] = _mm256_setzero_ps();
  for (long n = 0; n < rounds; ++n) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) {
      acc[c] = _mm256_fmadd_ps(acc[c], w, w);
      SPOLA_PIN(acc[c]);
    }
  }
  keep(acc);
  return static_cast<double>(rounds) * kChains * 8;
}

// Four chains of eight 4-bit products each, widened once: the cheapest mix there is for 32 columns.
double peak_a8(long rounds) {
  constexpr int kChains = 4;
  __m256i sum[kChains];
  __m256i w = _mm256_set1_epi8(3), a = _mm256_set1_epi8(1);
#pragma GCC unroll 4
  for (int c = 0; c < kChains; ++c) sum[c] = _mm256_setzero_si256();
  for (long n = 0; n < rounds; ++n) {
    __m256i chain[kChains];
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
#pragma GCC unroll 4
      for (int c = 0; c < kChains; ++c) {
        SPOLA_PIN(a);
        const __m256i product = _mm256_maddubs_epi16(w, a);
        chain[c] = j == 0 ? product : _mm256_add_epi16(chain[c], product);
        SPOLA_PIN(chain[c]);
      }
    }
#pragma GCC unroll 4
    for (int c = 0; c < kChains; ++c) {
      sum[c] = _mm256_add_epi32(sum[c], pair_sum(chain[c]));
      SPOLA_PIN(sum[c]);
    }
  }
  keep(sum);
  return static_cast<double>(rounds) * kChains * 8 * 32;
}

double peak_a16(long rounds) {
  constexpr int kChains = 8;
  __m256i sum[kChains];
  __m256i w = _mm256_set1_epi16(3), a = _mm256_set1_epi16(1);
#pragma GCC unroll 8
  for (int c = 0; c < kChains; ++c) sum[c] = _mm256_setzero_si256();
  for (long n = 0; n < rounds; ++n) {
#pragma GCC unroll 8
    for (int c = 0; c < kChains; ++c) {
      SPOLA_PIN(a);
      sum[c] = _mm256_add_epi32(sum[c], _mm256_madd_epi16(w, a));
      SPOLA_PIN(sum[c]);
    }
  }
  keep(sum);
  return static_cast<double>(rounds) * kChains * 16;
}

}  // namespace

double peak(ActFormat format, long rounds) {
  if (format == ActFormat::kF32) return peak_f32(rounds);
  return format == ActFormat::kA8 ? peak_a8(rounds) : peak_a16(rounds);
}

}  // namespace spola::avx2
