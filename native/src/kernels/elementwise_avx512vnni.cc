// Activation functions and reductions over a row. See elementwise_scalar.cc.
#include "kernels/math_avx512vnni.h"
#include "kernels/variants.h"

namespace spola::avx512vnni {

void silu_mul(const float* gate, const float* up, int n, float* y) {
  each16(n, [&](long i, __mmask16 mask) {
    const __m512 g = _mm512_maskz_loadu_ps(mask, gate + i);
    const __m512 e = exp16(_mm512_xor_ps(g, _mm512_set1_ps(-0.0f)));
    const __m512 silu = _mm512_div_ps(g, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
    _mm512_mask_storeu_ps(y + i, mask, _mm512_mul_ps(silu, _mm512_maskz_loadu_ps(mask, up + i)));
  });
}

void gelu_tanh_mul(const float* gate, const float* up, int n, float* y) {
  each16(n, [&](long i, __mmask16 mask) {
    const __m512 x = _mm512_maskz_loadu_ps(mask, gate + i);
    const __m512 cube = _mm512_mul_ps(_mm512_set1_ps(0.044715f), _mm512_mul_ps(x, x));
    const __m512 u = _mm512_mul_ps(_mm512_set1_ps(0.7978845608f), _mm512_fmadd_ps(cube, x, x));
    const __m512 h = _mm512_mul_ps(_mm512_set1_ps(0.5f), x);
    const __m512 gelu = _mm512_fmadd_ps(h, tanh16(u), h);
    _mm512_mask_storeu_ps(y + i, mask, _mm512_mul_ps(gelu, _mm512_maskz_loadu_ps(mask, up + i)));
  });
}

void exp_many(const float* x, int n, float* y) {
  each16(n, [&](long i, __mmask16 mask) {
    _mm512_mask_storeu_ps(y + i, mask, exp16(_mm512_maskz_loadu_ps(mask, x + i)));
  });
}

float max_many(const float* x, int n) {
  __m512 most = _mm512_set1_ps(-__builtin_inff());
  __mmask16 nan = 0;
  each16(n, [&](long i, __mmask16 mask) {
    const __m512 v = _mm512_maskz_loadu_ps(mask, x + i);
    nan = static_cast<__mmask16>(nan | _mm512_mask_cmp_ps_mask(mask, v, v, _CMP_UNORD_Q));
    most = _mm512_mask_max_ps(most, mask, most, v);
  });
  if (nan != 0) return __builtin_nanf("");
  return max16(most) + 0.0f;  // -0 becomes +0
}

float sum_exp16(const float* x, int n, float shift) {
  const __m512 m = _mm512_set1_ps(shift);
  __m512 sum = _mm512_setzero_ps();
  each16(n, [&](long i, __mmask16 mask) {
    sum = _mm512_mask_add_ps(sum, mask, sum, exp16(_mm512_sub_ps(_mm512_maskz_loadu_ps(mask, x + i), m)));
  });
  return tree16(sum);
}

}  // namespace spola::avx512vnni
