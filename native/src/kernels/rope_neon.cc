// rope with NEON: equal bits to the scalar twin.

#include <arm_neon.h>

#include "kernels/inline.h"
#include "kernels/rope.h"

namespace spola {
namespace {

// (a, b) rotated by the angles of c and s.
SPOLA_INLINE float32x4x2_t rotate(float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t s) {
  return {{vfmaq_f32(vnegq_f32(vmulq_f32(b, s)), a, c), vfmaq_f32(vmulq_f32(b, c), a, s)}};
}

SPOLA_INLINE void rotate1(float* a, float* b, float c, float s) {
  const float x = *a, y = *b;
  *a = __builtin_fmaf(x, c, -(y * s));
  *b = __builtin_fmaf(x, s, y * c);
}

void rotate_halves(float* x, const float* cosine, const float* sine, int half) {
  int i = 0;
  for (; i + 4 <= half; i += 4) {
    const float32x4x2_t r =
        rotate(vld1q_f32(x + i), vld1q_f32(x + half + i), vld1q_f32(cosine + i), vld1q_f32(sine + i));
    vst1q_f32(x + i, r.val[0]);
    vst1q_f32(x + half + i, r.val[1]);
  }
  for (; i < half; ++i) rotate1(x + i, x + half + i, cosine[i], sine[i]);
}

void rotate_pairs(float* x, const float* cosine, const float* sine, int half) {
  int i = 0;
  for (; i + 4 <= half; i += 4) {
    const float32x4x2_t v = vld2q_f32(x + 2 * i);
    vst2q_f32(x + 2 * i, rotate(v.val[0], v.val[1], vld1q_f32(cosine + i), vld1q_f32(sine + i)));
  }
  for (; i < half; ++i) rotate1(x + 2 * i, x + 2 * i + 1, cosine[i], sine[i]);
}

}  // namespace

void rope_neon(float* x, const float* cosine, const float* sine, int half, bool interleaved) {
  if (interleaved) return rotate_pairs(x, cosine, sine, half);
  rotate_halves(x, cosine, sine, half);
}

}  // namespace spola
