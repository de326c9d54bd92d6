// exp, tanh, erf and the sixteen-lane sum of docs/numerics.md, one value at a time.
//
// For the scalar kernels of this folder (element-wise, norms, attention). Not for SIMD sources.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace spola::scalar {

inline float exp1(float x) {
  if (x != x) return x;
  if (x < -87.33654f) return 0.0f;
  if (x > 88.0f) x = 88.0f;
  const float n = std::nearbyintf(x * 1.44269504f);
  float r = std::fmaf(n, -0.693359375f, x);
  r = std::fmaf(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = std::fmaf(p, r, 1.3981999507e-3f);
  p = std::fmaf(p, r, 8.3334519073e-3f);
  p = std::fmaf(p, r, 4.1665795894e-2f);
  p = std::fmaf(p, r, 1.6666665459e-1f);
  p = std::fmaf(p, r, 5.0000001201e-1f);
  const float y = std::fmaf(p, r * r, r) + 1.0f;
  return y * std::bit_cast<float>(static_cast<uint32_t>(static_cast<int>(n) + 127) << 23);
}

inline float tanh1(float x) {
  const float twice = 2.0f * std::fabs(x);
  const float e = exp1(twice > 40.0f ? 40.0f : twice);
  return std::copysign(1.0f - 2.0f / (e + 1.0f), x);
}

inline float erf1(float x) {
  const float a = std::fabs(x);
  const float t = 1.0f / std::fmaf(0.3275911f, a, 1.0f);
  float p = 1.061405429f;
  p = std::fmaf(p, t, -1.453152027f);
  p = std::fmaf(p, t, 1.421413741f);
  p = std::fmaf(p, t, -0.284496736f);
  p = std::fmaf(p, t, 0.254829592f);
  return std::copysign(1.0f - p * t * exp1(-(a * a)), x);
}

// Sixteen running sums, element i in lane i % 16, and their tree.
struct Lanes16 {
  float lane[16] = {};

  void add(int i, float x) { lane[i % 16] += x; }
  void add_square(int i, float x) { lane[i % 16] = std::fmaf(x, x, lane[i % 16]); }
  float total() {
    for (int width = 8; width >= 1; width /= 2) {
      for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
    }
    return lane[0];
  }
};

}  // namespace spola::scalar
