// 8-bit codes: Q8_0 times A16 activations, and the generic schemes times A8 or A16.
//
// A16: codes are sign-extended to 16 bits in registers and multiplied by madd, exact in int32. A8: maddubs
// of |code| and the activation with the code's sign; 2 * 128 * 127 fits in int16, then widened at once.
#include "kernels/simd_avx2.h"
#include "kernels/variants.h"

namespace spola::avx2 {
namespace {

template <int MR>
struct RowsA16 {
  const int16_t* q[MR];

  SPOLA_INLINE RowsA16(const Activations& a, int row0) {
#pragma GCC unroll 4
    for (int r = 0; r < MR; ++r) q[r] = a.q16 + (row0 + r) * static_cast<long>(a.k);
  }
};

// sum += w * a for pairs of int16, 16 rows, columns q[r] + at and at + 1.
template <bool First, int MR>
SPOLA_INLINE void pair_add(__m256i (&sum)[MR][2], __m256i w0, __m256i w1, const int16_t* const (&q)[MR],
                           long at) {
#pragma GCC unroll 4
  for (int r = 0; r < MR; ++r) {
    const __m256i b = bcast4(q[r] + at);
    const __m256i p0 = _mm256_madd_epi16(w0, b), p1 = _mm256_madd_epi16(w1, b);
    sum[r][0] = First ? p0 : _mm256_add_epi32(sum[r][0], p0);
    SPOLA_PIN(sum[r][0]);
    sum[r][1] = First ? p1 : _mm256_add_epi32(sum[r][1], p1);
    SPOLA_PIN(sum[r][1]);
  }
}

// 4 codes per dword: in natural order they are first put in the order 0, 2, 1, 3 of i8s records.
template <bool Natural>
SPOLA_INLINE __m256i load_codes(const uint8_t* p) {
  const __m256i w = load256(p);
  if constexpr (!Natural) return w;
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
  return _mm256_shuffle_epi8(w, order);
}

// Dot of 4 * Groups columns.
template <int Groups, bool Natural, int MR>
SPOLA_INLINE void dot_a16(__m256i (&sum)[MR][2], const uint8_t* qs, const int16_t* const (&q)[MR], long at) {
#pragma GCC unroll 16
  for (int j = 0; j < Groups; ++j) {
    const __m256i w0 = load_codes<Natural>(qs + j * kGroupBytes),
                  w1 = load_codes<Natural>(qs + j * kGroupBytes + 32);
    const __m256i even0 = _mm256_srai_epi16(_mm256_slli_epi16(w0, 8), 8);
    const __m256i even1 = _mm256_srai_epi16(_mm256_slli_epi16(w1, 8), 8);
    if (j == 0) {
      pair_add<true>(sum, even0, even1, q, at);
    } else {
      pair_add<false>(sum, even0, even1, q, at + 4 * j);
    }
    pair_add<false>(sum, _mm256_srai_epi16(w0, 8), _mm256_srai_epi16(w1, 8), q, at + 4 * j + 2);
  }
}

template <class N>
void i8s(N, const uint8_t* p, const Activations& a, int row0, float* out) {
  constexpr int MR = N::value;
  const RowsA16<MR> rows(a, row0);
  Accumulators<MR> acc(out);
  for (long b = 0; b < a.k / kBlock; ++b, p += i8s::kBytes) {
    prefetch<MR, i8s::kBytes>(p);
    __m256i sum[MR][2];
    dot_a16<8, false>(sum, p + i8s::kQs, rows.q, b * kBlock);
    const __m256 d[2] = {load_half8(p + i8s::kD), load_half8(p + i8s::kD + 16)};
#pragma GCC unroll 4
    for (int r = 0; r < MR; ++r) {
      acc.fma(r, 0, d[0], _mm256_cvtepi32_ps(sum[r][0]));
      acc.fma(r, 1, d[1], _mm256_cvtepi32_ps(sum[r][1]));
    }
  }
  acc.store_scaled(a.d16 + row0);
}

// Sum of 16 or 32 int16, in all lanes, as f32.
template <int Group>
SPOLA_INLINE __m256 sum_codes(const int16_t* q) {
  __m256i s = pair_sum(load256(q));
  if constexpr (Group == 32) s = _mm256_add_epi32(s, pair_sum(load256(q + 16)));
  __m128i t = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
  t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
  t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1));
  return _mm256_cvtepi32_ps(_mm256_broadcastd_epi32(t));
}

template <int Group, bool Min>
struct Generic {
  static constexpr int kCodes = kFloatPlane * (Min ? 2 : 1);
  static constexpr int kBytes = kCodes + Group / 4 * kGroupBytes;

  template <class N>
  static void a16(N, const uint8_t* p, const Activations& a, int row0, float* out) {
    constexpr int MR = N::value;
    const RowsA16<MR> rows(a, row0);
    Accumulators<MR> acc(out);
    for (long k = 0; k < a.k; k += Group, p += kBytes) {
      prefetch<MR, kBytes>(p);
      __m256i sum[MR][2];
      dot_a16<Group / 4, true>(sum, p + kCodes, rows.q, k);
#pragma GCC unroll 4
      for (int r = 0; r < MR; ++r) {
        acc.fma(r, 0, load_float8(p), _mm256_cvtepi32_ps(sum[r][0]));
        acc.fma(r, 1, load_float8(p + 32), _mm256_cvtepi32_ps(sum[r][1]));
        if constexpr (Min) {
          const __m256 s = sum_codes<Group>(rows.q[r] + k);
          acc.fma(r, 0, load_float8(p + kFloatPlane), s);
          acc.fma(r, 1, load_float8(p + kFloatPlane + 32), s);
        }
      }
    }
    acc.store_scaled(a.d16 + row0);
  }

  template <class N>
  static void a8(N, const uint8_t* p, const Activations& a, int row0, float* out) {
    constexpr int MR = N::value;
    const RowsA8<MR> rows(a, row0);
    Accumulators<MR> acc(out);
    for (long k = 0; k < a.k; k += Group, p += kBytes) {
      prefetch<MR, kBytes>(p);
      __m256i sum[MR][2];
      dot_a8(sum, p + kCodes, rows.q, k);
#pragma GCC unroll 4
      for (int r = 0; r < MR; ++r) {
        const __m256 da = _mm256_broadcast_ss(rows.d[r] + k / kBlock);
        acc.fma(r, 0, scaled(sum[r][0], load_float8(p)), da);
        acc.fma(r, 1, scaled(sum[r][1], load_float8(p + 32)), da);
        if constexpr (Min) {
          const __m256 s = min_factor(rows, r, k, da);
          acc.fma(r, 0, load_float8(p + kFloatPlane), s);
          acc.fma(r, 1, load_float8(p + kFloatPlane + 32), s);
        }
      }
    }
    acc.store();
  }

  template <int MR>
  static SPOLA_INLINE __m256 min_factor(const RowsA8<MR>& rows, int r, long k, __m256 da) {
    if constexpr (Group == 32) return _mm256_broadcast_ss(rows.s[r] + k / kBlock);
    return _mm256_mul_ps(da, _mm256_set1_ps(static_cast<float>(rows.h[r][k / 16])));
  }

  template <int MR>
  static SPOLA_INLINE void dot_a8(__m256i (&sum)[MR][2], const uint8_t* qs, const int8_t* const (&q)[MR],
                                  long at) {
#pragma GCC unroll 8
    for (int j = 0; j < Group / 4; ++j) {
      const __m256i w0 = load256(qs + j * kGroupBytes), w1 = load256(qs + j * kGroupBytes + 32);
      const __m256i m0 = _mm256_abs_epi8(w0), m1 = _mm256_abs_epi8(w1);
#pragma GCC unroll 4
      for (int r = 0; r < MR; ++r) {
        const __m256i b = bcast4(q[r] + at + 4 * j);
        const __m256i p0 = pair_sum(_mm256_maddubs_epi16(m0, _mm256_sign_epi8(b, w0)));
        const __m256i p1 = pair_sum(_mm256_maddubs_epi16(m1, _mm256_sign_epi8(b, w1)));
        sum[r][0] = j == 0 ? p0 : _mm256_add_epi32(sum[r][0], p0);
        SPOLA_PIN(sum[r][0]);
        sum[r][1] = j == 0 ? p1 : _mm256_add_epi32(sum[r][1], p1);
        SPOLA_PIN(sum[r][1]);
      }
    }
  }
};

}  // namespace

SPOLA_TILE_KERNEL(tile_i8s_a16, i8s)
SPOLA_TILE_KERNEL(tile_i8g16_a8, Generic<16, false>::a8)
SPOLA_TILE_KERNEL(tile_i8g16m_a8, Generic<16, true>::a8)
SPOLA_TILE_KERNEL(tile_i8g32_a8, Generic<32, false>::a8)
SPOLA_TILE_KERNEL(tile_i8g32m_a8, Generic<32, true>::a8)
SPOLA_TILE_KERNEL(tile_i8g16_a16, Generic<16, false>::a16)
SPOLA_TILE_KERNEL(tile_i8g16m_a16, Generic<16, true>::a16)
SPOLA_TILE_KERNEL(tile_i8g32_a16, Generic<32, false>::a16)
SPOLA_TILE_KERNEL(tile_i8g32m_a16, Generic<32, true>::a16)
SPOLA_TILE_KERNEL(tile_i8g64_a16, Generic<64, false>::a16)

}  // namespace spola::avx2
