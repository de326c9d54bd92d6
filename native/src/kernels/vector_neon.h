// Eight floats as two NEON registers, as the templates of this folder (math_tile.h, rows_tile.h,
// attention_tile.h) use them: the lane pattern of AVX2. For NEON sources only.
#pragma once

#include <arm_neon.h>

#include "kernels/inline.h"

namespace spola::neon {
namespace {

struct Vector {
  struct F {
    float32x4_t low, high;
  };
  struct Mask {
    uint32x4_t low, high;
  };
  static constexpr int kWidth = 8;
  static constexpr int kTile = 6;           // attention: queries of a tile
  static constexpr int kAccumulators = 12;  // pairs of registers for sums: the others hold a row and a factor

  static SPOLA_INLINE F zero() { return set1(0.0f); }
  static SPOLA_INLINE F set1(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
  static SPOLA_INLINE F load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
  static SPOLA_INLINE void store(float* p, F x) {
    vst1q_f32(p, x.low);
    vst1q_f32(p + 4, x.high);
  }
  // The first n lanes, 1 to 7; zeros beyond.
  static SPOLA_INLINE F load_first(const float* p, int n) {
    float all[kWidth] = {};
    for (int i = 0; i < n; ++i) all[i] = p[i];
    return load(all);
  }
  static SPOLA_INLINE void store_first(float* p, int n, F x) {
    float all[kWidth];
    store(all, x);
    for (int i = 0; i < n; ++i) p[i] = all[i];
  }
  static SPOLA_INLINE F load_half(const uint8_t* p) {
    const float16x8_t h = vreinterpretq_f16_u8(vld1q_u8(p));
    return {vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
  }
  static SPOLA_INLINE float load_half1(const uint8_t* p) {
    uint16_t h;
    __builtin_memcpy(&h, p, sizeof h);
    return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h))), 0);
  }
  // Integers of -128 .. 127 as bytes.
  static SPOLA_INLINE F load_i8(const uint8_t* p) {
    const int16x8_t v = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));
    return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(v))), vcvtq_f32_s32(vmovl_high_s16(v))};
  }
  static SPOLA_INLINE void store_i8(int8_t* p, F x) {
    const int16x4_t low = vqmovn_s32(vcvtnq_s32_f32(x.low));
    vst1_s8(p, vqmovn_s16(vqmovn_high_s32(low, vcvtnq_s32_f32(x.high))));
  }
  static SPOLA_INLINE void store_half(uint16_t* p, F x) {
    vst1q_u16(p, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.low), x.high)));
  }

  static SPOLA_INLINE F fma(F a, F b, F c) {
    return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
  }
  static SPOLA_INLINE F add(F a, F b) { return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
  static SPOLA_INLINE F mul(F a, F b) { return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
  static SPOLA_INLINE F sub(F a, F b) { return {vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)}; }
  static SPOLA_INLINE F div(F a, F b) { return {vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)}; }
  static SPOLA_INLINE F max(F a, F b) { return {vmaxq_f32(a.low, b.low), vmaxq_f32(a.high, b.high)}; }
  static SPOLA_INLINE F min_of(float limit, F x) {  // NaN comes through
    return {vminq_f32(vdupq_n_f32(limit), x.low), vminq_f32(vdupq_n_f32(limit), x.high)};
  }
  static SPOLA_INLINE F negate(F x) { return {vnegq_f32(x.low), vnegq_f32(x.high)}; }
  static SPOLA_INLINE F abs(F x) { return {vabsq_f32(x.low), vabsq_f32(x.high)}; }
  // |x| with the sign of s.
  static SPOLA_INLINE F with_sign(F x, F s) {
    const uint32x4_t sign = vdupq_n_u32(0x80000000u);
    return {vbslq_f32(sign, s.low, x.low), vbslq_f32(sign, s.high, x.high)};
  }
  static SPOLA_INLINE F round(F x) { return {vrndnq_f32(x.low), vrndnq_f32(x.high)}; }
  // 2^n for an integral n of -126 .. 127.
  static SPOLA_INLINE F power_of_two(F n) { return {power_of_two(n.low), power_of_two(n.high)}; }
  // y, but 0 where x < limit.
  static SPOLA_INLINE F zero_below(F x, float limit, F y) {
    const float32x4_t l = vdupq_n_f32(limit);
    return {vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(y.low), vcltq_f32(x.low, l))),
            vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(y.high), vcltq_f32(x.high, l)))};
  }

  // Lanes lo .. hi - 1; both may lie outside of the vector.
  static SPOLA_INLINE Mask lanes(int lo, int hi) {
    const int32x4_t low = {0, 1, 2, 3}, high = {4, 5, 6, 7};
    const int32x4_t from = vdupq_n_s32(lo), to = vdupq_n_s32(hi);
    return {vandq_u32(vcgeq_s32(low, from), vcltq_s32(low, to)),
            vandq_u32(vcgeq_s32(high, from), vcltq_s32(high, to))};
  }
  static SPOLA_INLINE F select(Mask mask, F yes, F no) {
    return {vbslq_f32(mask.low, yes.low, no.low), vbslq_f32(mask.high, yes.high, no.high)};
  }
  static SPOLA_INLINE Mask unordered(F x) {  // NaN
    return {vmvnq_u32(vceqq_f32(x.low, x.low)), vmvnq_u32(vceqq_f32(x.high, x.high))};
  }
  static SPOLA_INLINE Mask either(Mask a, Mask b) {
    return {vorrq_u32(a.low, b.low), vorrq_u32(a.high, b.high)};
  }
  static SPOLA_INLINE bool any(Mask mask) { return vmaxvq_u32(vorrq_u32(mask.low, mask.high)) != 0; }

  static SPOLA_INLINE float max_lane(F x) { return vmaxvq_f32(vmaxq_f32(x.low, x.high)); }
  // The tree of sum16 over lanes 0..7 and 8..15.
  static SPOLA_INLINE float tree16(const F (&lane)[2]) {
    const F a = add(lane[0], lane[1]);
    const float32x4_t b = vaddq_f32(a.low, a.high);
    const float32x2_t c = vadd_f32(vget_low_f32(b), vget_high_f32(b));
    return vget_lane_f32(c, 0) + vget_lane_f32(c, 1);
  }

 private:
  static SPOLA_INLINE float32x4_t power_of_two(float32x4_t n) {
    const int32x4_t biased = vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127));
    return vreinterpretq_f32_s32(vshlq_n_s32(biased, 23));
  }
};

}  // namespace
}  // namespace spola::neon
