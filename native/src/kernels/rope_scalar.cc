// rope without SIMD.

#include <cmath>

#include "kernels/rope.h"

namespace spola {

void rope_scalar(float* x, const float* cosine, const float* sine, int half, bool interleaved) {
  const int step = interleaved ? 2 : 1;
  const int other = interleaved ? 1 : half;
  for (int i = 0; i < half; ++i) {
    float* p = x + i * step;
    const float a = p[0];
    const float b = p[other];
    p[0] = std::fma(a, cosine[i], -(b * sine[i]));
    p[other] = std::fma(a, sine[i], b * cosine[i]);
  }
}

}  // namespace spola
