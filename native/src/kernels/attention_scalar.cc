// attention_segment and attention_merge without SIMD: the operations of docs/numerics.md one by one.

#include <cmath>
#include <cstring>
#include <limits>

#include "base/half.h"
#include "kernels/attention.h"
#include "kernels/math_scalar.h"

namespace spola {
namespace {

float soft_cap(float s, float cap) { return cap * scalar::tanh1(s / cap); }

float load(const uint8_t* data, KvType type, size_t index) {
  if (type == KvType::kF16) {
    uint16_t h;
    std::memcpy(&h, data + index * 2, sizeof h);
    return f16_to_f32(h);
  }
  float f;
  std::memcpy(&f, data + index * 4, sizeof f);
  return f;
}

float sum32(const float* e) {
  scalar::Lanes16 sum;
  for (int t = 0; t < kBlock; ++t) sum.add(t, e[t]);
  return sum.total();
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
  const float corr = first ? 0.0f : scalar::exp1(out[0] - m);
  for (int t = lo; t < hi; ++t) e[t] = scalar::exp1(e[t] - m);
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

void attention_merge_scalar(const float* part, int v_dim, float* into) {
  const float m = part[0] > into[0] ? part[0] : into[0];
  const float a = scalar::exp1(into[0] - m);
  const float b = scalar::exp1(part[0] - m);
  into[0] = m;
  for (int i = 1; i < v_dim + 2; ++i) into[i] = std::fma(into[i], a, part[i] * b);
}

}  // namespace spola
