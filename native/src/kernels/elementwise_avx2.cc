// Activation functions, conversions and reductions over a row. See elementwise_scalar.cc.
#include "kernels/math_avx2.h"
#include "kernels/variants.h"

namespace spola::avx2 {

void silu_mul(const float* gate, const float* up, int n, float* y) {
  each8(n, [&](auto step, long i, __m256i mask) {
    const __m256 g = load_step(step, gate + i, mask);
    const __m256 e = exp8(_mm256_xor_ps(g, _mm256_set1_ps(-0.0f)));
    const __m256 silu = _mm256_div_ps(g, _mm256_add_ps(_mm256_set1_ps(1.0f), e));
    store_step(step, y + i, mask, _mm256_mul_ps(silu, load_step(step, up + i, mask)));
  });
}

void gelu_tanh_mul(const float* gate, const float* up, int n, float* y) {
  each8(n, [&](auto step, long i, __m256i mask) {
    const __m256 x = load_step(step, gate + i, mask);
    const __m256 cube = _mm256_mul_ps(_mm256_set1_ps(0.044715f), _mm256_mul_ps(x, x));
    const __m256 u = _mm256_mul_ps(_mm256_set1_ps(0.7978845608f), _mm256_fmadd_ps(cube, x, x));
    const __m256 h = _mm256_mul_ps(_mm256_set1_ps(0.5f), x);
    const __m256 gelu = _mm256_fmadd_ps(h, tanh8(u), h);
    store_step(step, y + i, mask, _mm256_mul_ps(gelu, load_step(step, up + i, mask)));
  });
}

void gelu_mul(const float* gate, const float* up, int n, float* y) {
  each8(n, [&](auto step, long i, __m256i mask) {
    const __m256 x = load_step(step, gate + i, mask);
    const __m256 h = _mm256_mul_ps(_mm256_set1_ps(0.5f), x);
    const __m256 gelu = _mm256_fmadd_ps(h, erf8(_mm256_mul_ps(_mm256_set1_ps(0.7071067812f), x)), h);
    store_step(step, y + i, mask, _mm256_mul_ps(gelu, load_step(step, up + i, mask)));
  });
}

void f32_to_f16(const float* x, int n, uint16_t* y) {
  each8(n, [&](auto step, long i, __m256i mask) {
    const __m128i h = _mm256_cvtps_ph(load_step(step, x + i, mask), _MM_FROUND_TO_NEAREST_INT);
    if constexpr (decltype(step)::value) {
      _mm_storeu_si128(reinterpret_cast<__m128i_u*>(y + i), h);
    } else {
      alignas(16) uint16_t last[8];
      _mm_store_si128(reinterpret_cast<__m128i*>(last), h);
      for (long j = i; j < n; ++j) y[j] = last[j - i];
    }
  });
}

void exp_many(const float* x, int n, float* y) {
  each8(n, [&](auto step, long i, __m256i mask) {
    store_step(step, y + i, mask, exp8(load_step(step, x + i, mask)));
  });
}

float max_many(const float* x, int n) {
  const __m256 lowest = _mm256_set1_ps(-__builtin_inff());
  __m256 most = lowest, nan = _mm256_setzero_ps();
  each8(n, [&](auto step, long i, __m256i mask) {
    __m256 v = load_step(step, x + i, mask);
    if constexpr (!decltype(step)::value) v = _mm256_blendv_ps(lowest, v, _mm256_castsi256_ps(mask));
    nan = _mm256_or_ps(nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    most = _mm256_max_ps(most, v);
  });
  if (_mm256_movemask_ps(nan) != 0) return __builtin_nanf("");
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps(most, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  m = _mm_max_ss(m, _mm_movehdup_ps(m));
  return _mm_cvtss_f32(m) + 0.0f;  // -0 becomes +0
}

float sum_exp16(const float* x, int n, float shift) {
  const __m256 m = _mm256_set1_ps(shift);
  return sum16(n, [&](auto step, long i, __m256i mask, __m256 lane) {
    __m256 e = exp8(_mm256_sub_ps(load_step(step, x + i, mask), m));
    if constexpr (!decltype(step)::value) e = _mm256_and_ps(e, _mm256_castsi256_ps(mask));
    return _mm256_add_ps(lane, e);
  });
}

}  // namespace spola::avx2
