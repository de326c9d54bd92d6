// Activation functions, conversions and reductions over a row, one value at a time.
#include "base/half.h"
#include "kernels/math_scalar.h"
#include "kernels/variants.h"

namespace spola::scalar {

void silu_mul(const float* gate, const float* up, int n, float* y) {
  for (int i = 0; i < n; ++i) {
    const float g = gate[i];
    y[i] = g / (1.0f + exp1(-g)) * up[i];
  }
}

void gelu_tanh_mul(const float* gate, const float* up, int n, float* y) {
  for (int i = 0; i < n; ++i) {
    const float x = gate[i];
    const float u = 0.7978845608f * std::fmaf(0.044715f * (x * x), x, x);
    const float h = 0.5f * x;
    y[i] = std::fmaf(h, tanh1(u), h) * up[i];
  }
}

void gelu_mul(const float* gate, const float* up, int n, float* y) {
  for (int i = 0; i < n; ++i) {
    const float h = 0.5f * gate[i];
    y[i] = std::fmaf(h, erf1(0.7071067812f * gate[i]), h) * up[i];
  }
}

void f32_to_f16(const float* x, int n, uint16_t* y) {
  for (int i = 0; i < n; ++i) y[i] = f32_to_f16_bits(x[i]);
}

void exp_many(const float* x, int n, float* y) {
  for (int i = 0; i < n; ++i) y[i] = exp1(x[i]);
}

float max_many(const float* x, int n) {
  float most = -INFINITY;
  bool nan = false;
  for (int i = 0; i < n; ++i) {
    if (x[i] > most) most = x[i];
    nan = nan || x[i] != x[i];
  }
  return nan ? NAN : most + 0.0f;  // -0 becomes +0
}

float sum_exp16(const float* x, int n, float shift) {
  Lanes16 sum;
  for (int i = 0; i < n; ++i) sum.add(i, exp1(x[i] - shift));
  return sum.total();
}

}  // namespace spola::scalar
