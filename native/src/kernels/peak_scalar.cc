// Peak rates without SIMD: independent multiply-adds on values in registers. See Kernels::peak.
#include <cmath>

#include "kernels/variants.h"

namespace spola::scalar {

double peak(ActFormat format, long rounds) {
  constexpr int kChains = 8;
  float f[kChains] = {};
  int32_t i[kChains] = {};
  for (long n = 0; n < rounds; ++n) {
    for (int c = 0; c < kChains; ++c) {
      if (format == ActFormat::kF32) {
        f[c] = std::fmaf(f[c], 0.5f, 1.0f);
      } else {
        i[c] += 3 * i[c];
      }
    }
    __asm__ volatile("" : "+m"(f), "+m"(i));  // or all of it would be computed at once, or not at all
  }
  return static_cast<double>(rounds) * kChains;
}

// Without SIMD there is nothing to a kernel but its multiply-adds.
double mix(Scheme, ActFormat format, long rounds) { return peak(format, rounds); }

}  // namespace spola::scalar
