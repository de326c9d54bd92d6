// exp, tanh, erf and the sixteen-lane sum of docs/numerics.md, eight values at a time. For AVX2 sources only.
#pragma once

#include "kernels/simd_avx2.h"

namespace spola::avx2 {
namespace {

SPOLA_INLINE __m256 exp8(__m256 x) {
  const __m256 zero = _mm256_cmp_ps(x, _mm256_set1_ps(-87.33654f), _CMP_LT_OQ);
  x = _mm256_min_ps(_mm256_set1_ps(88.0f), x);  // in this order NaN comes through
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-0.693359375f), x);
  r = _mm256_fmadd_ps(n, _mm256_set1_ps(2.12194440e-4f), r);
  __m256 p = _mm256_set1_ps(1.9875691500e-4f);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.3981999507e-3f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.3334519073e-3f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.1665795894e-2f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.6666665459e-1f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.0000001201e-1f));
  const __m256 y = _mm256_add_ps(_mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0f));
  const __m256i e = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_andnot_ps(zero, _mm256_mul_ps(y, _mm256_castsi256_ps(e)));
}

SPOLA_INLINE __m256 tanh8(__m256 x) {
  const __m256 sign = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1.0f);
  const __m256 twice = _mm256_mul_ps(_mm256_set1_ps(2.0f), _mm256_andnot_ps(sign, x));
  const __m256 e = exp8(_mm256_min_ps(_mm256_set1_ps(40.0f), twice));
  const __m256 t = _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2.0f), _mm256_add_ps(e, one)));
  return _mm256_or_ps(_mm256_andnot_ps(sign, t), _mm256_and_ps(sign, x));
}

SPOLA_INLINE __m256 erf8(__m256 x) {
  const __m256 sign = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1.0f);
  const __m256 a = _mm256_andnot_ps(sign, x);
  const __m256 t = _mm256_div_ps(one, _mm256_fmadd_ps(_mm256_set1_ps(0.3275911f), a, one));
  __m256 p = _mm256_set1_ps(1.061405429f);
  p = _mm256_fmadd_ps(p, t, _mm256_set1_ps(-1.453152027f));
  p = _mm256_fmadd_ps(p, t, _mm256_set1_ps(1.421413741f));
  p = _mm256_fmadd_ps(p, t, _mm256_set1_ps(-0.284496736f));
  p = _mm256_fmadd_ps(p, t, _mm256_set1_ps(0.254829592f));
  const __m256 e = exp8(_mm256_xor_ps(_mm256_mul_ps(a, a), sign));
  const __m256 y = _mm256_sub_ps(one, _mm256_mul_ps(_mm256_mul_ps(p, t), e));
  return _mm256_or_ps(_mm256_andnot_ps(sign, y), _mm256_and_ps(sign, x));
}

// The tree of sum16 over lanes 0..7 (low) and 8..15 (high).
SPOLA_INLINE float tree16(__m256 low, __m256 high) {
  const __m256 a = _mm256_add_ps(low, high);
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

// All ones in the first n (0..8) lanes.
SPOLA_INLINE __m256i first_lanes(long n) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), index);
}

// Calls body(i, mask, full) for n values in steps of 8; lanes outside the mask must be left alone. Full
// steps have no mask to apply, which `full` says at compile time.
struct Full {
  static constexpr bool value = true;
};
struct Tail {
  static constexpr bool value = false;
};

template <class Step>
SPOLA_INLINE __m256 load_step(Step, const float* p, __m256i mask) {
  if constexpr (Step::value) return _mm256_loadu_ps(p);
  return _mm256_maskload_ps(p, mask);
}

template <class Step>
SPOLA_INLINE void store_step(Step, float* p, __m256i mask, __m256 x) {
  if constexpr (Step::value) {
    _mm256_storeu_ps(p, x);
  } else {
    _mm256_maskstore_ps(p, mask, x);
  }
}

template <class Body>
SPOLA_INLINE void each8(long n, Body body) {
  long i = 0;
  for (; i + 8 <= n; i += 8) body(Full{}, i, _mm256_set1_epi32(-1));
  if (i < n) body(Tail{}, i, first_lanes(n - i));
}

// sum16 of term(step, i, mask, lane sum before) -> lane sum after.
template <class Term>
SPOLA_INLINE float sum16(long n, Term term) {
  __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();
  long i = 0;
  for (; i + 16 <= n; i += 16) {
    low = term(Full{}, i, _mm256_set1_epi32(-1), low);
    high = term(Full{}, i + 8, _mm256_set1_epi32(-1), high);
  }
  if (i < n) low = term(Tail{}, i, first_lanes(n - i), low);
  if (i + 8 < n) high = term(Tail{}, i + 8, first_lanes(n - i - 8), high);
  return tree16(low, high);
}

}  // namespace
}  // namespace spola::avx2
