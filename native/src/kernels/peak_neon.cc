// Peak rates of NEON with dotprod: the instructions of the linear kernels, in registers only. See
// Kernels::peak.
#include <arm_neon.h>

#include "kernels/inline.h"
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

}  // namespace

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
