// 8-bit codes with VNNI: Q8_0 times A16 activations, and the generic schemes times A8 or A16.
//
// A16: codes sign-extended to 16 bits in registers, vpdpwssd. A8: vpdpbusd takes unsigned weights, so 128 is
// added to the codes and taken off in int32 again, from the sums of activations. All of it is exact:
// 32 * 128 * 32767 and 32 * 255 * 127 are far below 2^31.
#include "kernels/simd_avx512vnni.h"
#include "kernels/variants.h"

namespace spola::avx512vnni {
namespace {

template <int MR>
struct RowsA16 {
  const int16_t* q;
  long k;

  SPOLA_INLINE RowsA16(const Activations& a, int row0) : q(a.q16 + row0 * static_cast<long>(a.k)), k(a.k) {}
  SPOLA_INLINE const int16_t* codes(int r, long at) const { return q + r * k + at; }
};

template <int MR>
SPOLA_INLINE void dot2_rows(__m512i (&sum)[MR], __m512i w, const RowsA16<MR>& rows, long at) {
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) dot2(sum[r], w, rows.codes(r, at));
}

// Codes in natural order are first put in the order 0, 2, 1, 3 of i8s records: the even and the odd bytes of
// a dword, sign-extended, are then pairs of neighbours.
template <bool Natural>
SPOLA_INLINE __m512i load_codes(const uint8_t* p) {
  const __m512i w = load512(p);
  if constexpr (!Natural) return w;
  const __m128i order = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
  return _mm512_shuffle_epi8(w, _mm512_broadcast_i32x4(order));
}

// sum[r] = dot of 4 * Groups columns.
template <int Groups, bool Natural, int MR>
SPOLA_INLINE void dot_a16(__m512i (&sum)[MR], const uint8_t* qs, const RowsA16<MR>& rows, long at) {
  clear(sum);
#pragma GCC unroll 16
  for (int j = 0; j < Groups; ++j) {
    const __m512i w = load_codes<Natural>(qs + j * kGroupBytes);
    dot2_rows(sum, _mm512_srai_epi16(_mm512_slli_epi16(w, 8), 8), rows, at + 4 * j);
    dot2_rows(sum, _mm512_srai_epi16(w, 8), rows, at + 4 * j + 2);
  }
}

template <int MR>
SPOLA_INLINE void store_scaled(const __m512 (&acc)[MR], const float* scale, float* out) {
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) {
    _mm512_storeu_ps(out + r * kTileRows, _mm512_mul_ps(acc[r], _mm512_set1_ps(scale[r])));
  }
}

template <class N>
void i8s(N, const uint8_t* p, const Activations& a, int row0, float* out) {
  constexpr int MR = N::value;
  const Ahead ahead(a, p);
  const RowsA16<MR> rows(a, row0);
  __m512 acc[MR];
  clear(acc);
  for (long b = 0; b < a.k / kBlock; ++b, p += i8s::kBytes) {
    ahead.fetch<i8s::kBytes>(p);
    __m512i sum[MR];
    dot_a16<8, false>(sum, p + i8s::kQs, rows, b * kBlock);
    const __m512 d = load_half16(p + i8s::kD);
#pragma GCC unroll 16
    for (int r = 0; r < MR; ++r) acc[r] = _mm512_fmadd_ps(d, _mm512_cvtepi32_ps(sum[r]), acc[r]);
  }
  store_scaled(acc, a.d16 + row0, out);
}

// Sum of 16 or 32 int16, in all lanes, as f32.
template <int Group>
SPOLA_INLINE __m512 sum_codes(const int16_t* q) {
  const __m256i one = _mm256_set1_epi16(1);
  __m256i s = _mm256_madd_epi16(load256(q), one);
  if constexpr (Group == 32) s = _mm256_add_epi32(s, _mm256_madd_epi16(load256(q + 16), one));
  __m128i t = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
  t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
  t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1));
  return _mm512_cvtepi32_ps(_mm512_broadcastd_epi32(t));
}

template <int Group, bool Min>
struct Generic {
  static constexpr int kCodes = kFloatPlane * (Min ? 2 : 1);
  static constexpr int kBytes = kCodes + Group / 4 * kGroupBytes;

  template <class N>
  static void a16(N, const uint8_t* p, const Activations& a, int row0, float* out) {
    constexpr int MR = N::value;
    const Ahead ahead(a, p);
    const RowsA16<MR> rows(a, row0);
    __m512 acc[MR];
    clear(acc);
    for (long k = 0; k < a.k; k += Group, p += kBytes) {
      ahead.fetch<kBytes>(p);
      __m512i sum[MR];
      dot_a16<Group / 4, true>(sum, p + kCodes, rows, k);
#pragma GCC unroll 16
      for (int r = 0; r < MR; ++r) {
        acc[r] = _mm512_fmadd_ps(load_float16(p), _mm512_cvtepi32_ps(sum[r]), acc[r]);
        if constexpr (Min) {
          acc[r] = _mm512_fmadd_ps(load_float16(p + kFloatPlane), sum_codes<Group>(rows.codes(r, k)), acc[r]);
        }
      }
    }
    store_scaled(acc, a.d16 + row0, out);
  }

  template <class N>
  static void a8(N, const uint8_t* p, const Activations& a, int row0, float* out) {
    constexpr int MR = N::value;
    const Ahead ahead(a, p);
    const RowsA8<MR> rows(a, row0);
    __m512 acc[MR];
    clear(acc);
    for (long k = 0; k < a.k; k += Group, p += kBytes) {
      ahead.fetch<kBytes>(p);
      __m512i sum[MR];
      dot_a8(sum, p + kCodes, rows, k);
      const __m512 scale = load_float16(p);
#pragma GCC unroll 16
      for (int r = 0; r < MR; ++r) {
        const __m512 product = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sum[r]), _mm512_setzero_ps());
        acc[r] = _mm512_fmadd_ps(product, rows.scale(r, k / kBlock), acc[r]);
      }
      if constexpr (Min) {
#pragma GCC unroll 16
        for (int r = 0; r < MR; ++r) {
          acc[r] = _mm512_fmadd_ps(load_float16(p + kFloatPlane), min_factor(rows, r, k), acc[r]);
        }
      }
    }
    store(acc, out);
  }

  template <int MR>
  static SPOLA_INLINE __m512 min_factor(const RowsA8<MR>& rows, int r, long k) {
    if constexpr (Group == 32) return rows.scaled_sum(r, k / kBlock);
    const float sum = static_cast<float>(rows.halves(r, k / kBlock)[k % kBlock / 16]);
    return _mm512_mul_ps(rows.scale(r, k / kBlock), _mm512_set1_ps(sum));
  }

  template <int MR>
  static SPOLA_INLINE void dot_a8(__m512i (&sum)[MR], const uint8_t* qs, const RowsA8<MR>& rows, long at) {
    const __m512i half = k_half(at);
    clear(sum);
#pragma GCC unroll 16
    for (int r = 0; r < MR; ++r) dot2(sum[r], half, rows.halves(r, at / kBlock));
#pragma GCC unroll 8
    for (int j = 0; j < Group / 4; ++j) {
      const __m512i w = _mm512_xor_si512(load512(qs + j * kGroupBytes), _mm512_set1_epi8(-128));
      dot4_rows(sum, w, rows, at + 4 * j);
    }
  }

  // -128 for the halves of the block that the group at `at` covers.
  static SPOLA_INLINE __m512i k_half(long at) {
    if constexpr (Group == 32) return pair_of(-128, -128);
    return at % kBlock == 0 ? pair_of(-128, 0) : pair_of(0, -128);
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

}  // namespace spola::avx512vnni
