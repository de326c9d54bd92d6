// Sixteen floats as the templates of this folder (math_tile.h, rows_tile.h, attention_tile.h) use them. For
// AVX-512 sources only.
#pragma once

#include "kernels/simd_avx512vnni.h"

namespace spola::avx512vnni {
namespace {

struct Vector {
  using F = __m512;
  using Mask = __mmask16;
  static constexpr int kWidth = 16;
  static constexpr int kTile = 12;          // attention: queries of a tile
  static constexpr int kAccumulators = 24;  // registers for sums: the others hold a row and a factor

  static SPOLA_INLINE F zero() { return _mm512_setzero_ps(); }
  static SPOLA_INLINE F set1(float x) { return _mm512_set1_ps(x); }
  static SPOLA_INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
  static SPOLA_INLINE void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  // The first n lanes, 1 to 15; zeros beyond.
  static SPOLA_INLINE F load_first(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static SPOLA_INLINE void store_first(float* p, int n, F x) { _mm512_mask_storeu_ps(p, first(n), x); }
  static SPOLA_INLINE F load_half(const uint8_t* p) { return load_half16(p); }
  static SPOLA_INLINE F load_i8(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(p))));
  }
  static SPOLA_INLINE float load_half1(const uint8_t* p) {
    uint16_t h;
    __builtin_memcpy(&h, p, sizeof h);
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
  }

  static SPOLA_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static SPOLA_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
  static SPOLA_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static SPOLA_INLINE F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static SPOLA_INLINE F div(F a, F b) { return _mm512_div_ps(a, b); }
  static SPOLA_INLINE F max(F a, F b) { return _mm512_max_ps(a, b); }
  // In this order NaN comes through.
  static SPOLA_INLINE F min_of(float limit, F x) { return _mm512_min_ps(set1(limit), x); }
  static SPOLA_INLINE F negate(F x) { return _mm512_xor_ps(x, set1(-0.0f)); }
  static SPOLA_INLINE F abs(F x) { return _mm512_andnot_ps(set1(-0.0f), x); }
  // |x| with the sign of s.
  static SPOLA_INLINE F with_sign(F x, F s) { return _mm512_or_ps(abs(x), _mm512_and_ps(set1(-0.0f), s)); }
  static SPOLA_INLINE F round(F x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  // 2^n for an integral n of -126 .. 127.
  static SPOLA_INLINE F power_of_two(F n) {
    const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23));
  }
  // y, but 0 where x < limit.
  static SPOLA_INLINE F zero_below(F x, float limit, F y) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, set1(limit), _CMP_NLT_UQ), y);
  }

  // Lanes lo .. hi - 1; both may lie outside of the vector.
  static SPOLA_INLINE Mask lanes(int lo, int hi) {
    const int from = lo < 0 ? 0 : lo > 16 ? 16 : lo, to = hi < 0 ? 0 : hi > 16 ? 16 : hi;
    return static_cast<Mask>(first(to) & ~first(from));
  }
  static SPOLA_INLINE F select(Mask mask, F yes, F no) { return _mm512_mask_blend_ps(mask, no, yes); }
  static SPOLA_INLINE Mask unordered(F x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q); }  // NaN
  static SPOLA_INLINE Mask either(Mask a, Mask b) { return static_cast<Mask>(a | b); }
  static SPOLA_INLINE bool any(Mask mask) { return mask != 0; }

  static SPOLA_INLINE float max_lane(F x) {
    const __m256 a = _mm256_max_ps(low_half(x), high_half(x));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
  }
  // The tree of sum16.
  static SPOLA_INLINE float tree16(const F (&lane)[1]) {
    const __m256 a = _mm256_add_ps(low_half(lane[0]), high_half(lane[0]));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
  }

 private:
  static SPOLA_INLINE __m256 low_half(F x) { return _mm512_castps512_ps256(x); }
  static SPOLA_INLINE __m256 high_half(F x) { return _mm512_extractf32x8_ps(x, 1); }
  // The first n lanes, 0 to 16.
  static SPOLA_INLINE Mask first(int n) { return static_cast<Mask>((1u << n) - 1); }
};

}  // namespace
}  // namespace spola::avx512vnni
