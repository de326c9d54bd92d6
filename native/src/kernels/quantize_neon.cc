// f32 activations to int8 blocks (A8) and int16 rows (A16). See quantize_scalar.cc.
#include <arm_neon.h>

#include "kernels/inline.h"
#include "kernels/variants.h"

namespace spola::neon {
namespace {

SPOLA_INLINE uint32x4_t abs_bits(float32x4_t x) { return vreinterpretq_u32_f32(vabsq_f32(x)); }

// max |x| from its bits: 0 when tiny, or not finite (then *ok becomes false).
SPOLA_INLINE float amax_of(uint32_t bits, bool* ok) {
  if (bits >= 0x7f800000u) {
    *ok = false;
    return 0;
  }
  float amax;
  __builtin_memcpy(&amax, &bits, sizeof amax);
  return amax < 0x1p-100f ? 0 : amax;
}

// Rounded codes; zeros for a block without scale, whatever is in it.
SPOLA_INLINE int32x4_t codes(float32x4_t x, float inverse) {
  if (inverse == 0) return vdupq_n_s32(0);
  return vcvtnq_s32_f32(vmulq_n_f32(x, inverse));
}

// Eight codes, which fit in int16.
SPOLA_INLINE int16x8_t codes8(const float* x, float inverse) {
  return vcombine_s16(vmovn_s32(codes(vld1q_f32(x), inverse)), vmovn_s32(codes(vld1q_f32(x + 4), inverse)));
}

}  // namespace

bool quantize_a8(const float* x, int k, int8_t* q, float* d, float* s, int16_t* h) {
  bool ok = true;
  for (long b = 0; b < k / kBlock; ++b, x += kBlock, q += kBlock) {
    uint32x4_t most = vdupq_n_u32(0);
#pragma GCC unroll 8
    for (int i = 0; i < kBlock; i += 4) most = vmaxq_u32(most, abs_bits(vld1q_f32(x + i)));
    const float amax = amax_of(vmaxvq_u32(most), &ok);
    const float inverse = amax == 0 ? 0 : 127.0f / amax;
    int sum[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const int16x8_t q0 = codes8(x + 16 * i, inverse), q1 = codes8(x + 16 * i + 8, inverse);
      vst1q_s8(q + 16 * i, vcombine_s8(vmovn_s16(q0), vmovn_s16(q1)));
      sum[i] = vaddvq_s16(vaddq_s16(q0, q1));
      h[b * 2 + i] = static_cast<int16_t>(sum[i]);
    }
    d[b] = amax / 127.0f;
    s[b] = d[b] * static_cast<float>(sum[0] + sum[1]);
  }
  return ok;
}

bool quantize_a16(const float* x, int k, int16_t* q, float* d) {
  bool ok = true;
  uint32x4_t most = vdupq_n_u32(0);
  long i = 0;
  for (; i + 4 <= k; i += 4) most = vmaxq_u32(most, abs_bits(vld1q_f32(x + i)));
  for (; i < k; ++i) most = vmaxq_u32(most, abs_bits(vdupq_n_f32(x[i])));
  const float amax = amax_of(vmaxvq_u32(most), &ok);
  const float inverse = amax == 0 ? 0 : 32767.0f / amax;
  i = 0;
  for (; i + 8 <= k; i += 8) vst1q_s16(q + i, codes8(x + i, inverse));
  for (; i < k; ++i) {
    q[i] = static_cast<int16_t>(vgetq_lane_s32(codes(vdupq_n_f32(x[i]), inverse), 0));
  }
  *d = amax / 32767.0f;
  return ok;
}

}  // namespace spola::neon
