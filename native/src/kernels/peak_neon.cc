// Peak rates of NEON with dotprod: the instructions of the linear kernels, in registers only. See
// Kernels::peak.
#include <arm_neon.h>

#include "kernels/inline.h"
#include "kernels/peak_mix.h"
#include "kernels/variants.h"

namespace spola::neon {
namespace {

constexpr int kChains = 16;

template <class Vector, class Step>
SPOLA_INLINE void repeat(Vector zero, long rounds, Step step) {
  Vector acc[kChains];
#pragma GCC unroll 16
  for (int c = 0; c < kChains; ++c) acc[c] = zero;
  for (long n = 0; n < rounds; ++n) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) {
      acc[c] = step(acc[c]);
      __asm__("" : "+w"(acc[c]));
    }
  }
#pragma GCC unroll 16
  for (int c = 0; c < kChains; ++c) __asm__ volatile("" : : "w"(acc[c]));  // or all of it would be dead code
}

// `Dots` products of each chain, then what makes f32 of their sum and adds it.
template <int Dots, class End>
SPOLA_INLINE double blocks(long rounds, int columns, End end) {
  constexpr int kRowsOfCall = 8;
  const int8x16_t ones = vdupq_n_s8(1);
  float32x4_t acc[kRowsOfCall];
#pragma GCC unroll 16
  for (int c = 0; c < kRowsOfCall; ++c) acc[c] = vdupq_n_f32(0);
  for (long n = 0; n < rounds; ++n) {
    int32x4_t sum[kRowsOfCall];
#pragma GCC unroll 16
    for (int c = 0; c < kRowsOfCall; ++c) sum[c] = vdupq_n_s32(0);
    for (int j = 0; j < Dots; ++j) {
#pragma GCC unroll 16
      for (int c = 0; c < kRowsOfCall; ++c) {
        sum[c] = vdotq_s32(sum[c], ones, ones);
        __asm__ volatile("" : "+w"(sum[c]));  // all chains are alike: GCC would keep one
      }
    }
#pragma GCC unroll 16
    for (int c = 0; c < kRowsOfCall; ++c) {
      acc[c] = end(acc[c], sum[c]);
      __asm__ volatile("" : "+w"(acc[c]));
    }
  }
#pragma GCC unroll 16
  for (int c = 0; c < kRowsOfCall; ++c) __asm__ volatile("" : : "w"(acc[c]));
  return static_cast<double>(rounds) * kRowsOfCall * 4 * columns;
}

struct Mix {
  static double f32(long rounds) { return peak(ActFormat::kF32, rounds); }

  template <int Dots, bool Min>
  static double scaled(long rounds, int columns) {
    const float32x4_t half = vdupq_n_f32(0.5f);
    return blocks<Dots>(rounds, columns, [&](float32x4_t acc, int32x4_t sum) {
      acc = vfmaq_f32(acc, vfmaq_f32(half, half, vcvtq_f32_s32(sum)), half);
      return Min ? vfmaq_f32(acc, half, half) : acc;
    });
  }

  template <int Bits, bool Zero, bool Min>
  static double a8(long rounds) {
    return scaled<8, Min>(rounds, kBlock);
  }
  template <int Group, bool Min>
  static double codes(long rounds) {
    return scaled<Group / 4, Min>(rounds, Group);
  }

  static double six(long rounds) { return scaled<4, false>(rounds, 16); }

  // Signed high bytes and low bytes have sums of their own, which meet in int32.
  template <int Group, bool Min>
  static double a16(long rounds) {
    const float32x4_t half = vdupq_n_f32(0.5f);
    return blocks<Group / 2>(rounds, Group, [&](float32x4_t acc, int32x4_t sum) {
      acc = vfmaq_f32(acc, half, vcvtq_f32_s32(vmlaq_n_s32(sum, sum, 256)));
      return Min ? vfmaq_f32(acc, half, half) : acc;
    });
  }
};

}  // namespace

double mix(Scheme scheme, ActFormat format, long rounds) { return mix_of<Mix>(scheme, format, rounds); }

double peak(ActFormat format, long rounds) {
  const int8x16_t ones = vdupq_n_s8(1);
  const double steps = static_cast<double>(rounds) * kChains;
  if (format == ActFormat::kF32) {
    const float32x4_t half = vdupq_n_f32(0.5f);
    repeat(vdupq_n_f32(0), rounds, [&](float32x4_t x) { return vfmaq_f32(half, x, half); });
    return steps * 4;
  }
  repeat(vdupq_n_s32(0), rounds, [&](int32x4_t x) { return vdotq_s32(x, ones, ones); });
  // An int16 activation takes two of them.
  return steps * (format == ActFormat::kA8 ? 16 : 8);
}

}  // namespace spola::neon
