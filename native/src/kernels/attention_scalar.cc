// attention_segment and attention_merge without SIMD: the operations of docs/numerics.md one by one.

#include <algorithm>
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
  if (type == KvType::kI8) return static_cast<float>(static_cast<int8_t>(data[index]));
  if (type == KvType::kF16) {
    uint16_t h;
    std::memcpy(&h, data + index * 2, sizeof h);
    return f16_to_f32(h);
  }
  float f;
  std::memcpy(&f, data + index * 4, sizeof f);
  return f;
}

// The scale of group `group` of token t in an int8 block of `dim` dimensions.
float scale_at(const uint8_t* data, int dim, int group, int t) {
  return load(data + static_cast<size_t>(dim) * kBlock, KvType::kF16, static_cast<size_t>(group) * kBlock + t);
}

float score(const AttentionArgs& a, const float* q, const uint8_t* k, int t) {
  const int step = a.k_type == KvType::kI8 ? kKvGroup : a.k_dim;
  float s = 0.0f;
  for (int from = 0; from < a.k_dim; from += step) {
    const int to = std::min(from + step, a.k_dim);
    float sum = 0.0f;
    for (int d = from; d < to; ++d) {
      sum = std::fma(q[d], load(k, a.k_type, static_cast<size_t>(d) * kBlock + t), sum);
    }
    s = a.k_type == KvType::kI8 ? std::fma(scale_at(k, a.k_dim, from / step, t), sum, s) : sum;
  }
  return s;
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
    float s = score(a, q, a.k[b], t);
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
      const float w = a.v_type == KvType::kI8 ? e[t] * scale_at(a.v[b], a.v_dim, d / kKvGroup, t) : e[t];
      acc = std::fma(w, load(a.v[b], a.v_type, static_cast<size_t>(t) * a.v_dim + d), acc);
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
