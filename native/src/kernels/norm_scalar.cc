// RMSNorm and LayerNorm of one row, one value at a time. y may be x.
#include <cmath>

#include "kernels/math_scalar.h"
#include "kernels/variants.h"

namespace spola::scalar {

void rms_norm(const float* x, const float* w, float eps, int n, float* y) {
  Lanes16 squares;
  for (int i = 0; i < n; ++i) squares.add_square(i, x[i]);
  const float r = 1.0f / std::sqrt(squares.total() / static_cast<float>(n) + eps);
  for (int i = 0; i < n; ++i) y[i] = x[i] * r * w[i];
}

void layer_norm(const float* x, const float* w, const float* b, float eps, int n, float* y) {
  Lanes16 sum;
  for (int i = 0; i < n; ++i) sum.add(i, x[i]);
  const float mu = sum.total() / static_cast<float>(n);
  Lanes16 squares;
  for (int i = 0; i < n; ++i) squares.add_square(i, x[i] - mu);
  const float r = 1.0f / std::sqrt(squares.total() / static_cast<float>(n) + eps);
  for (int i = 0; i < n; ++i) y[i] = std::fmaf((x[i] - mu) * r, w[i], b[i]);
}

}  // namespace spola::scalar
