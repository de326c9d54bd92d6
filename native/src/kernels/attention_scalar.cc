// attention_segment without SIMD: the operations of docs/numerics.md one by one.

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/attention.h"

namespace spola {
namespace {

float exp_poly(float x) {
  if (x < -87.33654f) return 0.0f;
  if (x > 88.0f) x = 88.0f;
  const float n = std::nearbyint(x * 1.44269504f);
  float r = std::fma(n, -0.693359375f, x);
  r = std::fma(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = std::fma(p, r, 1.3981999507e-3f);
  p = std::fma(p, r, 8.3334519073e-3f);
  p = std::fma(p, r, 4.1665795894e-2f);
  p = std::fma(p, r, 1.6666665459e-1f);
  p = std::fma(p, r, 5.0000001201e-1f);
  const float y = std::fma(p, r * r, r) + 1.0f;
  if (x != x) return x;  // a NaN has no exponent to build
  const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23;
  float scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return y * scale;
}

float soft_cap(float s, float cap) {
  const float u = s / cap;
  float a = 2.0f * std::fabs(u);
  if (a > 40.0f) a = 40.0f;
  const float t = 1.0f - 2.0f / (exp_poly(a) + 1.0f);
  return cap * std::copysign(t, u);
}

float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 31u;
  const uint32_t mantissa = h & 1023u;
  uint32_t bits;
  if (exponent == 31) {
    bits = sign | 0x7f800000u | (mantissa << 13) | (mantissa ? 0x400000u : 0u);
  } else if (exponent != 0) {
    bits = sign | ((exponent + 112u) << 23) | (mantissa << 13);
  } else {
    const float value = static_cast<float>(mantissa) * 0x1p-24f;  // subnormal or zero: exact
    std::memcpy(&bits, &value, sizeof bits);
    bits |= sign;
  }
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

float load(const uint8_t* data, KvType type, size_t index) {
  if (type == KvType::kF16) {
    uint16_t h;
    std::memcpy(&h, data + index * 2, sizeof h);
    return half_to_float(h);
  }
  float f;
  std::memcpy(&f, data + index * 4, sizeof f);
  return f;
}

float sum32(const float* e) {
  float lane[16];
  for (int j = 0; j < 16; ++j) lane[j] = e[j] + e[j + 16];
  for (int width = 8; width >= 1; width /= 2) {
    for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
  }
  return lane[0];
}

// One block for one query head: updates m, l and o.
void block(const AttentionArgs& a, const float* q, int b, int lo, int hi, bool first, float* out) {
  float e[kBlock] = {};
  float top = -std::numeric_limits<float>::infinity();
  for (int t = lo; t < hi; ++t) {
    float s = 0.0f;
    for (int d = 0; d < a.k_dim; ++d) {
      s = std::fma(q[d], load(a.k[b], a.k_type, static_cast<size_t>(d) * kBlock + t), s);
    }
    if (a.softcap != 0.0f) s = soft_cap(s, a.softcap);
    e[t] = s;
    top = s > top ? s : top;
  }
  const float m = first || top > out[0] ? top : out[0];
  const float corr = first ? 0.0f : exp_poly(out[0] - m);
  for (int t = lo; t < hi; ++t) e[t] = exp_poly(e[t] - m);
  out[0] = m;
  out[1] = std::fma(out[1], corr, sum32(e));
  float* o = out + 2;
  for (int d = 0; d < a.v_dim; ++d) {
    float acc = o[d] * corr;
    for (int t = lo; t < hi; ++t) {
      acc = std::fma(e[t], load(a.v[b], a.v_type, static_cast<size_t>(t) * a.v_dim + d), acc);
    }
    o[d] = acc;
  }
}

}  // namespace

void attention_segment_scalar(const AttentionArgs& a) {
  for (int r = 0; r < a.rows; ++r) {
    for (int g = 0; g < a.heads; ++g) {
      const float* q = a.q + r * a.q_stride + static_cast<size_t>(g) * a.k_dim;
      float* out = a.out + r * a.out_stride + static_cast<size_t>(g) * (a.v_dim + 2);
      out[0] = -std::numeric_limits<float>::infinity();
      for (int i = 1; i < a.v_dim + 2; ++i) out[i] = 0.0f;
      for (int b = 0; b < a.blocks; ++b) {
        const int start = (a.first_block + b) * kBlock;
        const int lo = a.low[r] > start ? a.low[r] - start : 0;
        const int hi = a.high[r] - start < kBlock ? a.high[r] - start : kBlock;
        block(a, q, b, lo, hi, b == 0, out);
      }
    }
  }
}

}  // namespace spola
