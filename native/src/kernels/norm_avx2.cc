// RMSNorm and LayerNorm of one row. See norm_scalar.cc.
#include "kernels/math_avx2.h"
#include "kernels/variants.h"

namespace spola::avx2 {
namespace {

// 1 / sqrt(sum / n + eps)
SPOLA_INLINE float inverse_root(float sum, int n, float eps) {
  const __m128 v = _mm_set_ss(sum / static_cast<float>(n) + eps);
  return 1.0f / _mm_cvtss_f32(_mm_sqrt_ss(v));
}

}  // namespace

void rms_norm(const float* x, const float* w, float eps, int n, float* y) {
  const float squares = sum16(n, [&](auto step, long i, __m256i mask, __m256 lane) {
    const __m256 v = load_step(step, x + i, mask);
    return _mm256_fmadd_ps(v, v, lane);
  });
  const __m256 r = _mm256_set1_ps(inverse_root(squares, n, eps));
  each8(n, [&](auto step, long i, __m256i mask) {
    const __m256 v = _mm256_mul_ps(load_step(step, x + i, mask), r);
    store_step(step, y + i, mask, _mm256_mul_ps(v, load_step(step, w + i, mask)));
  });
}

void layer_norm(const float* x, const float* w, const float* b, float eps, int n, float* y) {
  const float sum = sum16(n, [&](auto step, long i, __m256i mask, __m256 lane) {
    return _mm256_add_ps(lane, load_step(step, x + i, mask));
  });
  const __m256 mu = _mm256_set1_ps(sum / static_cast<float>(n));
  const float squares = sum16(n, [&](auto step, long i, __m256i mask, __m256 lane) {
    __m256 c = _mm256_sub_ps(load_step(step, x + i, mask), mu);
    if constexpr (!decltype(step)::value) c = _mm256_and_ps(c, _mm256_castsi256_ps(mask));
    return _mm256_fmadd_ps(c, c, lane);
  });
  const __m256 r = _mm256_set1_ps(inverse_root(squares, n, eps));
  each8(n, [&](auto step, long i, __m256i mask) {
    const __m256 c = _mm256_mul_ps(_mm256_sub_ps(load_step(step, x + i, mask), mu), r);
    const __m256 v = _mm256_fmadd_ps(c, load_step(step, w + i, mask), load_step(step, b + i, mask));
    store_step(step, y + i, mask, v);
  });
}

}  // namespace spola::avx2
