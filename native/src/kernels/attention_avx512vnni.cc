// attention_segment and attention_merge with AVX-512: equal bits to the scalar twins. What they do is in
// attention_tile.h.
#include "kernels/attention_tile.h"
#include "kernels/math_avx512vnni.h"

namespace spola {
namespace {

struct Vector16 {
  using F = __m512;
  static constexpr int kWidth = 16;
  static constexpr int kTile = 12;          // queries of a tile
  static constexpr int kAccumulators = 24;  // registers for sums: the others hold a row and a factor

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static F load_half(const uint8_t* p) { return avx512vnni::load_half16(p); }
  static float load_half1(const uint8_t* p) {
    uint16_t h;
    __builtin_memcpy(&h, p, sizeof h);
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
  }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F exp(F x) { return avx512vnni::exp16(x); }
  static F tanh(F x) { return avx512vnni::tanh16(x); }

  // Lanes lo .. hi - 1; both may lie outside of the vector.
  static __mmask16 lanes(int lo, int hi) {
    const int from = lo < 0 ? 0 : lo > 16 ? 16 : lo, to = hi < 0 ? 0 : hi > 16 ? 16 : hi;
    return static_cast<__mmask16>(avx512vnni::first_lanes(to) & ~avx512vnni::first_lanes(from));
  }
  static F select(__mmask16 mask, F yes, F no) { return _mm512_mask_blend_ps(mask, no, yes); }

  static float max_all(const F (&v)[2]) { return avx512vnni::max16(_mm512_max_ps(v[0], v[1])); }
  static float sum_all(const F (&v)[2]) { return avx512vnni::tree16(_mm512_add_ps(v[0], v[1])); }
};

}  // namespace

void attention_segment_avx512vnni(const AttentionArgs& a) { Attention<Vector16>::segment(a); }

void attention_merge_avx512vnni(const float* part, int v_dim, float* into) {
  Attention<Vector16>::merge(part, v_dim, into);
}

}  // namespace spola
