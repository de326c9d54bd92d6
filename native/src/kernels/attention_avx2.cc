// attention_segment and attention_merge with AVX2, FMA and F16C: equal bits to the scalar twins. What they do
// is in attention_tile.h.
#include "kernels/attention_tile.h"
#include "kernels/math_avx2.h"

namespace spola {
namespace {

struct Vector8 {
  using F = __m256;
  static constexpr int kWidth = 8;
  static constexpr int kTile = 6;           // queries of a tile
  static constexpr int kAccumulators = 12;  // registers for sums: the others hold a row and a factor

  static F zero() { return _mm256_setzero_ps(); }
  static F set1(float x) { return _mm256_set1_ps(x); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static F load_half(const uint8_t* p) { return avx2::load_half8(p); }
  static float load_half1(const uint8_t* p) {
    uint16_t h;
    __builtin_memcpy(&h, p, sizeof h);
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
  }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F exp(F x) { return avx2::exp8(x); }
  static F tanh(F x) { return avx2::tanh8(x); }

  // Lanes lo .. hi - 1; both may lie outside of the vector.
  static F lanes(int lo, int hi) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(lane, _mm256_set1_epi32(lo - 1)),
                                                _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), lane)));
  }
  static F select(F mask, F yes, F no) { return _mm256_blendv_ps(no, yes, mask); }

  static float max_all(const F (&v)[4]) {
    const F s = _mm256_max_ps(_mm256_max_ps(v[0], v[2]), _mm256_max_ps(v[1], v[3]));
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
  }
  static float sum_all(const F (&v)[4]) {
    return avx2::tree16(_mm256_add_ps(v[0], v[2]), _mm256_add_ps(v[1], v[3]));
  }
};

}  // namespace

void attention_segment_avx2(const AttentionArgs& a) { Attention<Vector8>::segment(a); }

void attention_merge_avx2(const float* part, int v_dim, float* into) {
  Attention<Vector8>::merge(part, v_dim, into);
}

}  // namespace spola
