// Eight floats as the templates of this folder (math_tile.h, rows_tile.h, attention_tile.h) use them. For
// AVX2 sources only.
#pragma once

#include "kernels/simd_avx2.h"

namespace spola::avx2 {
namespace {

struct Vector {
  using F = __m256;
  using Mask = __m256;
  static constexpr int kWidth = 8;
  static constexpr int kTile = 6;           // attention: queries of a tile
  static constexpr int kAccumulators = 12;  // registers for sums: the others hold a row and a factor

  static SPOLA_INLINE F zero() { return _mm256_setzero_ps(); }
  static SPOLA_INLINE F set1(float x) { return _mm256_set1_ps(x); }
  static SPOLA_INLINE F load(const float* p) { return _mm256_loadu_ps(p); }
  static SPOLA_INLINE void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  // The first n lanes, 1 to 7; zeros beyond.
  static SPOLA_INLINE F load_first(const float* p, int n) { return _mm256_maskload_ps(p, first(n)); }
  static SPOLA_INLINE void store_first(float* p, int n, F x) { _mm256_maskstore_ps(p, first(n), x); }
  static SPOLA_INLINE F load_half(const uint8_t* p) { return load_half8(p); }
  static SPOLA_INLINE float load_half1(const uint8_t* p) {
    uint16_t h;
    __builtin_memcpy(&h, p, sizeof h);
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
  }
  // Integers of -128 .. 127 as bytes.
  static SPOLA_INLINE F load_i8(const uint8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i_u*>(p))));
  }
  static SPOLA_INLINE void store_i8(int8_t* p, F x) {
    const __m256i v = _mm256_cvtps_epi32(x);
    const __m128i w = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i_u*>(p), _mm_packs_epi16(w, w));
  }
  static SPOLA_INLINE void store_half(uint16_t* p, F x) {
    _mm_storeu_si128(reinterpret_cast<__m128i_u*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }

  static SPOLA_INLINE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static SPOLA_INLINE F add(F a, F b) { return _mm256_add_ps(a, b); }
  static SPOLA_INLINE F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static SPOLA_INLINE F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static SPOLA_INLINE F div(F a, F b) { return _mm256_div_ps(a, b); }
  static SPOLA_INLINE F max(F a, F b) { return _mm256_max_ps(a, b); }
  // In this order NaN comes through.
  static SPOLA_INLINE F min_of(float limit, F x) { return _mm256_min_ps(set1(limit), x); }
  static SPOLA_INLINE F negate(F x) { return _mm256_xor_ps(x, set1(-0.0f)); }
  static SPOLA_INLINE F abs(F x) { return _mm256_andnot_ps(set1(-0.0f), x); }
  // |x| with the sign of s.
  static SPOLA_INLINE F with_sign(F x, F s) { return _mm256_or_ps(abs(x), _mm256_and_ps(set1(-0.0f), s)); }
  static SPOLA_INLINE F round(F x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  // 2^n for an integral n of -126 .. 127.
  static SPOLA_INLINE F power_of_two(F n) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
  }
  // y, but 0 where x < limit.
  static SPOLA_INLINE F zero_below(F x, float limit, F y) {
    return _mm256_andnot_ps(_mm256_cmp_ps(x, set1(limit), _CMP_LT_OQ), y);
  }

  // Lanes lo .. hi - 1; both may lie outside of the vector.
  static SPOLA_INLINE Mask lanes(int lo, int hi) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(lane, _mm256_set1_epi32(lo - 1)),
                                                _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), lane)));
  }
  static SPOLA_INLINE F select(Mask mask, F yes, F no) { return _mm256_blendv_ps(no, yes, mask); }
  static SPOLA_INLINE Mask unordered(F x) { return _mm256_cmp_ps(x, x, _CMP_UNORD_Q); }  // NaN
  static SPOLA_INLINE Mask either(Mask a, Mask b) { return _mm256_or_ps(a, b); }
  static SPOLA_INLINE bool any(Mask mask) { return _mm256_movemask_ps(mask) != 0; }

  static SPOLA_INLINE float max_lane(F x) {
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
  }
  // The tree of sum16 over lanes 0..7 and 8..15.
  static SPOLA_INLINE float tree16(const F (&lane)[2]) {
    const __m256 a = _mm256_add_ps(lane[0], lane[1]);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
  }

 private:
  // All ones in the first n lanes.
  static SPOLA_INLINE __m256i first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
};

}  // namespace
}  // namespace spola::avx2
