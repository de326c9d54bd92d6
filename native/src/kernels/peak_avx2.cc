// Peak rates of AVX2: the instruction mixes of the linear kernels, in registers only. See Kernels::peak.
#include "kernels/peak_mix.h"
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

// Sums of one group of columns for N vectors of eight output rows, as int32: `Parts` times products of `Chain`
// groups of four columns in int16, each part widened by a madd.
template <int N, int Parts, int Chain>
SPOLA_INLINE void dot_chains(__m256i (&sum)[N], __m256i w, __m256i& a) {
  for (int part = 0; part < Parts; ++part) {
    __m256i chain[N];
#pragma GCC unroll 8
    for (int j = 0; j < Chain; ++j) {
#pragma GCC unroll 4
      for (int c = 0; c < N; ++c) {
        SPOLA_PIN(a);
        const __m256i product = _mm256_maddubs_epi16(w, a);
        chain[c] = j == 0 ? product : _mm256_add_epi16(chain[c], product);
        SPOLA_PIN(chain[c]);
      }
    }
#pragma GCC unroll 4
    for (int c = 0; c < N; ++c) {
      sum[c] = part == 0 ? pair_sum(chain[c]) : _mm256_add_epi32(sum[c], pair_sum(chain[c]));
      SPOLA_PIN(sum[c]);
    }
  }
}

// Sums by `dot`, and `end` that adds what becomes of them; vector c is half c % 2 of a tile.
template <int N, class Dot, class End>
SPOLA_INLINE double blocks(long rounds, int columns, Dot dot, End end) {
  __m256 acc[N];
#pragma GCC unroll 4
  for (int c = 0; c < N; ++c) acc[c] = _mm256_setzero_ps();
  for (long n = 0; n < rounds; ++n) {
    __m256i sum[N];
    dot(sum);
#pragma GCC unroll 4
    for (int c = 0; c < N; ++c) {
      acc[c] = end(acc[c], sum[c], c);
      SPOLA_PIN(acc[c]);
    }
  }
  keep(acc);
  return static_cast<double>(rounds) * N * 8 * columns;
}

struct Mix {
  static double f32(long rounds) { return peak_f32(rounds); }

  template <int Bits, bool Zero, bool Min>
  static double a8(long rounds) {
    constexpr int kChain = Bits == 4 ? 8 : 4;
    constexpr int kVectors = Bits == 4 ? 4 : 3;
    const __m256i w = _mm256_set1_epi8(3);
    __m256i a = _mm256_set1_epi8(1), zero = a;
    const __m256 half = _mm256_set1_ps(0.5f);
    const auto dot = [&](__m256i(&sum)[kVectors]) { dot_chains<kVectors, 8 / kChain, kChain>(sum, w, a); };
    return blocks<kVectors>(rounds, kBlock, dot, [&](__m256 acc, __m256i sum, int c) {
      if constexpr (Zero) {
        if (Bits == 5 || c % 2 == 0) {  // with 4 bits both halves of a tile share it
          SPOLA_PIN(a);
          zero = _mm256_madd_epi16(a, w);
        }
        sum = _mm256_add_epi32(sum, zero);
      }
      acc = _mm256_fmadd_ps(scaled(sum, half), half, acc);
      return Min ? _mm256_fmadd_ps(half, half, acc) : acc;
    });
  }

  static double six(long rounds) {
    constexpr int kVectors = 4;
    const __m256i w = _mm256_set1_epi8(3);
    __m256i a = _mm256_set1_epi8(1);
    const __m256 half = _mm256_set1_ps(0.5f);
    const auto dot = [&](__m256i(&sum)[kVectors]) { dot_chains<kVectors, 2, 2>(sum, w, a); };
    return blocks<kVectors>(rounds, 16, dot, [&](__m256 acc, __m256i sum, int) {
      const __m256i i = _mm256_add_epi32(sum, a);
      return _mm256_fmadd_ps(_mm256_fmadd_ps(_mm256_castsi256_ps(i), half, half), half, acc);
    });
  }

  // Codes and activations both as int16, which each row's must become first: with signs moved and bytes multiplied,
  // as the kernels do it, three instructions of four are for the ports that multiply, here two.
  template <int Group, bool Min>
  static double codes(long rounds) {
    return pairs<Group, Min, true>(rounds, [](__m256 half, __m256i sum) { return scaled(sum, half); });
  }

  template <int Group, bool Min>
  static double a16(long rounds) {
    return pairs<Group, Min, false>(rounds, [](__m256, __m256i sum) { return _mm256_cvtepi32_ps(sum); });
  }

 private:
  // Products of int16 pairs; `factor` makes of a sum what is multiplied by a scale.
  template <int Group, bool Min, bool Widen, class Factor>
  static SPOLA_INLINE double pairs(long rounds, Factor factor) {
    constexpr int kVectors = 4;
    const __m256i w = _mm256_set1_epi16(3);
    __m256i a = _mm256_set1_epi16(1), row = a;
    const __m256 half = _mm256_set1_ps(0.5f);
    const auto dot = [&](__m256i(&sum)[kVectors]) {
#pragma GCC unroll 32
      for (int j = 0; j < Group / 2; ++j) {
#pragma GCC unroll 4
        for (int c = 0; c < kVectors; ++c) {
          SPOLA_PIN(a);
          if (!Widen) {
            row = a;
          } else if (j % 8 == 0 && c % 2 == 0) {  // both halves of a tile share it
            row = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(a));
          }
          SPOLA_PIN(row);
          const __m256i part = _mm256_madd_epi16(w, row);
          sum[c] = j == 0 ? part : _mm256_add_epi32(sum[c], part);
          SPOLA_PIN(sum[c]);
        }
      }
    };
    return blocks<kVectors>(rounds, Group, dot, [&](__m256 acc, __m256i sum, int) {
      acc = _mm256_fmadd_ps(half, factor(half, sum), acc);
      return Min ? _mm256_fmadd_ps(half, half, acc) : acc;
    });
  }
};

}  // namespace

double mix(Scheme scheme, ActFormat format, long rounds) { return mix_of<Mix>(scheme, format, rounds); }

double peak(ActFormat format, long rounds) {
  if (format == ActFormat::kF32) return peak_f32(rounds);
  return format == ActFormat::kA8 ? peak_a8(rounds) : peak_a16(rounds);
}

}  // namespace spola::avx2
