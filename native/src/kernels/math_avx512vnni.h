// exp, tanh and the sixteen-lane sum of docs/numerics.md, sixteen values at a time. For AVX-512 sources only.
#pragma once

#include "kernels/simd_avx512vnni.h"

namespace spola::avx512vnni {
namespace {

SPOLA_INLINE __m512 exp16(__m512 x) {
  const __mmask16 some = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.33654f), _CMP_NLT_UQ);
  x = _mm512_min_ps(_mm512_set1_ps(88.0f), x);  // in this order NaN comes through
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-0.693359375f), x);
  r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.9875691500e-4f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
  const __m512 y = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0f));
  const __m512i e = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23);
  return _mm512_maskz_mul_ps(some, y, _mm512_castsi512_ps(e));
}

SPOLA_INLINE __m512 tanh16(__m512 x) {
  const __m512 sign = _mm512_set1_ps(-0.0f), one = _mm512_set1_ps(1.0f);
  const __m512 twice = _mm512_mul_ps(_mm512_set1_ps(2.0f), _mm512_andnot_ps(sign, x));
  const __m512 e = exp16(_mm512_min_ps(_mm512_set1_ps(40.0f), twice));
  const __m512 t = _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2.0f), _mm512_add_ps(e, one)));
  return _mm512_or_ps(_mm512_andnot_ps(sign, t), _mm512_and_ps(sign, x));
}

SPOLA_INLINE __m256 low_half(__m512 x) { return _mm512_castps512_ps256(x); }
SPOLA_INLINE __m256 high_half(__m512 x) { return _mm512_extractf32x8_ps(x, 1); }

// The tree of sum16.
SPOLA_INLINE float tree16(__m512 x) {
  const __m256 a = _mm256_add_ps(low_half(x), high_half(x));
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

SPOLA_INLINE float max16(__m512 x) {
  const __m256 a = _mm256_max_ps(low_half(x), high_half(x));
  __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

// The first n lanes, 0 to 16.
SPOLA_INLINE __mmask16 first_lanes(long n) { return static_cast<__mmask16>((1u << n) - 1); }

// Calls body(i, mask) for n values in steps of 16; lanes outside the mask must be left alone.
template <class Body>
SPOLA_INLINE void each16(long n, Body body) {
  long i = 0;
  for (; i + 16 <= n; i += 16) body(i, static_cast<__mmask16>(0xffff));
  if (i < n) body(i, first_lanes(n - i));
}

}  // namespace
}  // namespace spola::avx512vnni
