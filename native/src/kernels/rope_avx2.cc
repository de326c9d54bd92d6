// rope with AVX2 and FMA: equal bits to the scalar twin.

#include <immintrin.h>

#include "kernels/rope.h"

namespace spola {
namespace {

void rotate_halves(float* x, const float* cosine, const float* sine, int half) {
  int i = 0;
  for (; i + 8 <= half; i += 8) {
    const __m256 a = _mm256_loadu_ps(x + i);
    const __m256 b = _mm256_loadu_ps(x + half + i);
    const __m256 c = _mm256_loadu_ps(cosine + i);
    const __m256 s = _mm256_loadu_ps(sine + i);
    _mm256_storeu_ps(x + i, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
    _mm256_storeu_ps(x + half + i, _mm256_fmadd_ps(a, s, _mm256_mul_ps(b, c)));
  }
  for (; i < half; ++i) {
    const float a = x[i];
    const float b = x[half + i];
    x[i] = __builtin_fmaf(a, cosine[i], -(b * sine[i]));
    x[half + i] = __builtin_fmaf(a, sine[i], b * cosine[i]);
  }
}

void rotate_pairs(float* x, const float* cosine, const float* sine, int half) {
  int i = 0;
  for (; i + 4 <= half; i += 4) {
    const __m128 c = _mm_loadu_ps(cosine + i);
    const __m128 s = _mm_loadu_ps(sine + i);
    const __m128 negative = _mm_xor_ps(s, _mm_set1_ps(-0.0f));
    const __m256 cs = _mm256_set_m128(_mm_unpackhi_ps(c, s), _mm_unpacklo_ps(c, s));
    const __m256 sc = _mm256_set_m128(_mm_unpackhi_ps(negative, c), _mm_unpacklo_ps(negative, c));
    const __m256 v = _mm256_loadu_ps(x + 2 * i);
    const __m256 product = _mm256_mul_ps(_mm256_movehdup_ps(v), sc);
    _mm256_storeu_ps(x + 2 * i, _mm256_fmadd_ps(_mm256_moveldup_ps(v), cs, product));
  }
  for (; i < half; ++i) {
    const float a = x[2 * i];
    const float b = x[2 * i + 1];
    x[2 * i] = __builtin_fmaf(a, cosine[i], -(b * sine[i]));
    x[2 * i + 1] = __builtin_fmaf(a, sine[i], b * cosine[i]);
  }
}

}  // namespace

void rope_avx2(float* x, const float* cosine, const float* sine, int half, bool interleaved) {
  if (interleaved) return rotate_pairs(x, cosine, sine, half);
  rotate_halves(x, cosine, sine, half);
}

}  // namespace spola
