// NEON with dotprod, as the linear templates (linear_dot.h) use it. For NEON sources only.
//
// A register holds a quarter of a group: 4 output rows, four codes of consecutive k each. Sixteen columns of
// activations of a row are one register, and a lane of it is what sdot multiplies a group with. All integer
// products go through sdot: codes below 128 are signed bytes as they are, and int16 activations are split
// into two signed bytes.
#pragma once

#include <arm_neon.h>

#include "kernels/linear_dot.h"

namespace spola::neon {
namespace {

struct Simd {
  static constexpr int kLanes = 4;  // output rows of a register
  static constexpr int kParts = kTileRows / kLanes;
  static constexpr int kRows = 8;  // activation rows of one call
  using Codes = uint8x16_t;
  using Sum = int32x4_t;
  using F = float32x4_t;

  static SPOLA_INLINE Codes load_codes(const uint8_t* p) { return vld1q_u8(p); }
  static SPOLA_INLINE F load_float(const float* p) { return vld1q_f32(p); }
  static SPOLA_INLINE F load_half(const uint8_t* p) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
  }
  static SPOLA_INLINE void store(float* p, F x) { vst1q_f32(p, x); }

  static SPOLA_INLINE F zero() { return vdupq_n_f32(0); }
  static SPOLA_INLINE Sum zero_sum() { return vdupq_n_s32(0); }
  static SPOLA_INLINE F to_float(Sum x) { return vcvtq_f32_s32(x); }
  static SPOLA_INLINE F mul(F x, float y) { return vmulq_n_f32(x, y); }
  static SPOLA_INLINE F mul(F x, F y) { return vmulq_f32(x, y); }
  static SPOLA_INLINE F negate(F x) { return vnegq_f32(x); }
  static SPOLA_INLINE F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  static SPOLA_INLINE F fma(F a, float b, F c) { return vfmaq_n_f32(c, a, b); }

  static SPOLA_INLINE Codes low_nibbles(Codes raw) { return vandq_u8(raw, vdupq_n_u8(15)); }
  static SPOLA_INLINE Codes high_nibbles(Codes raw) { return vshrq_n_u8(raw, 4); }
  static SPOLA_INLINE Codes signed_codes(Codes raw) { return raw; }

  // Low or high nibbles, and fifth bit J of each byte of the plane.
  template <bool High, int J>
  static SPOLA_INLINE Codes five_bits(Codes raw, Codes plane) {
    if constexpr (J < 4) plane = vshlq_n_u8(plane, 4 - J);
    if constexpr (J > 4) plane = vshrq_n_u8(plane, J - 4);
    if constexpr (High) return vbslq_u8(vdupq_n_u8(16), plane, vshrq_n_u8(raw, 4));
    return vandq_u8(vbslq_u8(vdupq_n_u8(15), raw, plane), vdupq_n_u8(31));
  }

  // Low nibbles of quarter Q, high bit pairs of quarter Q.
  template <int Q>
  static SPOLA_INLINE Codes six_bits(Codes low, Codes high) {
    if constexpr (Q == 0) high = vshlq_n_u8(high, 4);
    if constexpr (Q == 1) high = vshlq_n_u8(high, 2);
    if constexpr (Q == 3) high = vshrq_n_u8(high, 2);
    if constexpr (Q >= 2) return vbslq_u8(vdupq_n_u8(0x30), high, vshrq_n_u8(low, 4));
    return vandq_u8(vbslq_u8(vdupq_n_u8(0x0f), low, high), vdupq_n_u8(0x3f));
  }

  // 16 columns of each row.
  template <int MR>
  struct Sixteen {
    int8x16_t q[MR];

    SPOLA_INLINE Sixteen(const RowsA8<MR>& rows, long at) {
#pragma GCC unroll 8
      for (int r = 0; r < MR; ++r) q[r] = vld1q_s8(rows.codes(r, at));
    }
  };

  // sum[r] += dot of columns 4J .. 4J + 3 of the sixteen.
  template <int J, int MR>
  static SPOLA_INLINE void dot(Sum (&sum)[MR], Codes w, const Sixteen<MR>& act) {
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) sum[r] = vdotq_laneq_s32(sum[r], vreinterpretq_s8_u8(w), act.q[r], J);
  }

  // sum[r] = -zero * (sum of the block's activations): what takes a zero point off unsigned codes.
  template <int MR>
  static SPOLA_INLINE void start_at_zero_point(Sum (&sum)[MR], int zero, const RowsA8<MR>& rows, long b) {
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) {
      const int16_t* h = rows.halves(r, b);
      sum[r] = vdupq_n_s32(-zero * (h[0] + h[1]));
    }
  }
  // The same for half H of the block.
  template <int H, int MR>
  static SPOLA_INLINE void start_at_half_zero_point(Sum (&sum)[MR], int zero, const RowsA8<MR>& rows,
                                                    long b) {
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) sum[r] = vdupq_n_s32(-zero * rows.halves(r, b)[H]);
  }
  // Where sums of signed_codes start.
  template <int Group, int MR>
  static SPOLA_INLINE void start_signed(Sum (&sum)[MR], const RowsA8<MR>&, long) {
    Dot<Simd>::clear(sum);
  }

  // The f32 accumulators of a 16 x MR tile in `out`, that is, in L1.
  template <int MR>
  struct MemoryAccumulators {
    float* out;

    SPOLA_INLINE explicit MemoryAccumulators(float* o) : out(o) {
#pragma GCC unroll 32
      for (int i = 0; i < MR * kParts; ++i) vst1q_f32(out + i * kLanes, vdupq_n_f32(0));
    }
    SPOLA_INLINE F get(int r, int part) const { return vld1q_f32(out + r * kTileRows + part * kLanes); }
    SPOLA_INLINE void set(int r, int part, F x) {
      float* p = out + r * kTileRows + part * kLanes;
      vst1q_f32(p, x);
      // Without this GCC remembers what it stored and keeps a second copy on the stack.
      __asm__("" : "+m"(*reinterpret_cast<float(*)[kLanes]>(p)));
    }
    SPOLA_INLINE void store() {}
    SPOLA_INLINE void store_scaled(const float* scale) {
#pragma GCC unroll 8
      for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 4
        for (int part = 0; part < kParts; ++part) set(r, part, vmulq_n_f32(get(r, part), scale[r]));
      }
    }
  };

  // The same in registers.
  template <int MR>
  struct RegisterAccumulators {
    F v[MR][kParts];
    float* out;

    SPOLA_INLINE explicit RegisterAccumulators(float* o) : out(o) {
#pragma GCC unroll 8
      for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 4
        for (int part = 0; part < kParts; ++part) v[r][part] = vdupq_n_f32(0);
      }
    }
    SPOLA_INLINE F get(int r, int part) const { return v[r][part]; }
    SPOLA_INLINE void set(int r, int part, F x) { v[r][part] = x; }
    SPOLA_INLINE void store() {
#pragma GCC unroll 8
      for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 4
        for (int part = 0; part < kParts; ++part)
          vst1q_f32(out + r * kTileRows + part * kLanes, v[r][part]);
      }
    }
    SPOLA_INLINE void store_scaled(const float* scale) {
#pragma GCC unroll 8
      for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 4
        for (int part = 0; part < kParts; ++part) v[r][part] = vmulq_n_f32(v[r][part], scale[r]);
      }
      store();
    }
  };

  // More than two rows leave the registers to the integers.
  template <int MR, bool Few = (MR <= 2)>
  struct AccumulatorsFor : MemoryAccumulators<MR> {
    using MemoryAccumulators<MR>::MemoryAccumulators;
  };
  template <int MR>
  struct AccumulatorsFor<MR, true> : RegisterAccumulators<MR> {
    using RegisterAccumulators<MR>::RegisterAccumulators;
  };
  template <int MR>
  using Accumulators = AccumulatorsFor<MR>;

  // The two int8 scales of each of 4 rows, as f32.
  static SPOLA_INLINE void scale_pairs(const uint8_t* p, F* first, F* second) {
    const int16x8_t pairs = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));
    *first = vcvtq_f32_s32(vmovl_s16(vget_low_s16(vuzp1q_s16(pairs, pairs))));
    *second = vcvtq_f32_s32(vmovl_s16(vget_low_s16(vuzp2q_s16(pairs, pairs))));
  }

  // Scale and min of every sub-block of one K-quant record, as f32. The three planes of dwords hold the 12
  // scale bytes of each row.
  struct KScales {
    float scale[8][kTileRows];
    float min[8][kTileRows];

    SPOLA_INLINE void load(const uint8_t* record) {
#pragma GCC unroll 4
      for (int part = 0; part < kParts; ++part) {
        const F d = load_half(record + u4k::kD + part * 8);
        const F dmin = vnegq_f32(load_half(record + u4k::kDmin + part * 8));
        const uint8_t* planes = record + u4k::kScales + part * 16;
        const Codes d0 = vld1q_u8(planes), d1 = vld1q_u8(planes + kGroupBytes),
                    d2 = vld1q_u8(planes + 2 * kGroupBytes);
        const Codes low6 = vdupq_n_u8(0x3f), high2 = vdupq_n_u8(0x30);
        spread(scale, part, d, vandq_u8(d0, low6));
        spread(min, part, dmin, vandq_u8(d1, low6));
        spread(scale + 4, part, d, vorrq_u8(low_nibbles(d2), vandq_u8(vshrq_n_u8(d0, 2), high2)));
        spread(min + 4, part, dmin, vorrq_u8(high_nibbles(d2), vandq_u8(vshrq_n_u8(d1, 2), high2)));
      }
    }

   private:
    // to[i] = factor * byte i of every dword
    static SPOLA_INLINE void spread(float (*to)[kTileRows], int part, F factor, Codes bytes) {
      unrolled<4>([&](auto i) {
        uint32x4_t one = vreinterpretq_u32_u8(bytes);
        if constexpr (i.value != 0) one = vshrq_n_u32(one, i.value == 0 ? 1 : 8 * i.value);
        one = vandq_u32(one, vdupq_n_u32(0xff));
        vst1q_f32(to[i.value] + part * kLanes, vmulq_f32(factor, vcvtq_f32_u32(one)));
      });
    }
  };
  static_assert(u4k::kD == u5k::kD && u4k::kDmin == u5k::kDmin && u4k::kScales == u5k::kScales);

  // int16 activations of 4 * Groups columns as two signed bytes each: 256 * high + (low + 128). The split is
  // made once for all parts and lies on the stack on purpose. With `Natural` false the columns are put in the
  // order 0, 2, 1, 3 of i8s records.
  template <int Groups, bool Natural, int MR>
  struct BlockA16 {
    static constexpr int kRegisters = Groups / 4;
    int8x16_t high[MR][kRegisters];
    int8x16_t low[MR][kRegisters];

    SPOLA_INLINE BlockA16(const RowsA16<MR>& rows, long at) {
      const uint8x16_t order = {0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15};
#pragma GCC unroll 8
      for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 2
        for (int i = 0; i < kRegisters; ++i) {
          const int16_t* q = rows.codes(r, at + 16 * i);
          const uint8x16_t a = vreinterpretq_u8_s16(vld1q_s16(q)), b = vreinterpretq_u8_s16(vld1q_s16(q + 8));
          uint8x16_t l = veorq_u8(vuzp1q_u8(a, b), vdupq_n_u8(128)), h = vuzp2q_u8(a, b);
          if constexpr (!Natural) l = vqtbl1q_u8(l, order), h = vqtbl1q_u8(h, order);
          low[r][i] = vreinterpretq_s8_u8(l);
          high[r][i] = vreinterpretq_s8_u8(h);
        }
      }
    }

    // sum[r] = dot of the columns with the codes at qs.
    SPOLA_INLINE void dot(Sum (&sum)[MR], const uint8_t* qs) const {
      Sum codes = vdupq_n_s32(0), upper[MR];
      Dot<Simd>::clear(sum);
      Dot<Simd>::clear(upper);
      unrolled<Groups>([&](auto j) {
        const int8x16_t w = vreinterpretq_s8_u8(vld1q_u8(qs + j.value * kGroupBytes));
        codes = vdotq_s32(codes, w, vdupq_n_s8(1));
#pragma GCC unroll 8
        for (int r = 0; r < MR; ++r) {
          upper[r] = vdotq_laneq_s32(upper[r], w, high[r][j.value / 4], j.value % 4);
          sum[r] = vdotq_laneq_s32(sum[r], w, low[r][j.value / 4], j.value % 4);
        }
      });
      codes = vshlq_n_s32(codes, 7);
#pragma GCC unroll 8
      for (int r = 0; r < MR; ++r) {
        sum[r] = vaddq_s32(vaddq_s32(sum[r], codes), vshlq_n_s32(upper[r], 8));
      }
    }
  };

  // Sum of 16 or 32 int16, as f32.
  template <int Group>
  static SPOLA_INLINE float sum_codes(const int16_t* q) {
    int s = vaddlvq_s16(vld1q_s16(q)) + vaddlvq_s16(vld1q_s16(q + 8));
    if constexpr (Group == 32) s += vaddlvq_s16(vld1q_s16(q + 16)) + vaddlvq_s16(vld1q_s16(q + 24));
    return static_cast<float>(s);
  }

  // 4 columns of f32 activations of each row.
  template <int MR>
  struct Four {
    F x[MR];

    SPOLA_INLINE Four(const float* p, long stride) {
#pragma GCC unroll 8
      for (int r = 0; r < MR; ++r) x[r] = vld1q_f32(p + r * stride);
    }
  };

  // acc[r] = fma(w, column I of the four, acc[r])
  template <int I, int MR>
  static SPOLA_INLINE void fma_rows(F (&acc)[MR], F w, const Four<MR>& four) {
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) acc[r] = vfmaq_laneq_f32(acc[r], w, four.x[r], I);
  }

  // Four E4M3 codes as f32, divided by 256: their bits, moved, are an f16.
  static SPOLA_INLINE F load_e4m3(const uint8_t* p) {
    uint32_t codes;
    __builtin_memcpy(&codes, p, sizeof codes);
    const uint16x4_t x = vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(codes))));
    const uint16x4_t sign = vshl_n_u16(vand_u16(x, vdup_n_u16(0x80)), 8);
    const uint16x4_t rest = vshl_n_u16(vand_u16(x, vdup_n_u16(0x7f)), 7);
    return vcvt_f32_f16(vreinterpret_f16_u16(vorr_u16(sign, rest)));
  }

  struct F32 {
    static constexpr int kSize = 4;
    static SPOLA_INLINE F load(const uint8_t* p) { return vreinterpretq_f32_u8(vld1q_u8(p)); }
  };
  struct F16 {
    static constexpr int kSize = 2;
    static SPOLA_INLINE F load(const uint8_t* p) { return load_half(p); }
  };
  struct BF16 {
    static constexpr int kSize = 2;
    static SPOLA_INLINE F load(const uint8_t* p) {
      return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
    }
  };
};

}  // namespace
}  // namespace spola::neon

// Defines the TileKernel `name` as the instances of `impl` for 1 to kRows activation rows.
#define SPOLA_TILE_KERNEL(name, ...)                                                     \
  void name(const uint8_t* tile, const Activations& a, int row0, int rows, float* out) { \
    static_assert(Simd::kRows == 8);                                                     \
    switch (rows) {                                                                      \
      case 1: return __VA_ARGS__(Constant<1>{}, tile, a, row0, out);                     \
      case 2: return __VA_ARGS__(Constant<2>{}, tile, a, row0, out);                     \
      case 3: return __VA_ARGS__(Constant<3>{}, tile, a, row0, out);                     \
      case 4: return __VA_ARGS__(Constant<4>{}, tile, a, row0, out);                     \
      case 5: return __VA_ARGS__(Constant<5>{}, tile, a, row0, out);                     \
      case 6: return __VA_ARGS__(Constant<6>{}, tile, a, row0, out);                     \
      case 7: return __VA_ARGS__(Constant<7>{}, tile, a, row0, out);                     \
      default: return __VA_ARGS__(Constant<8>{}, tile, a, row0, out);                    \
    }                                                                                    \
  }
