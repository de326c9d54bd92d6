// attention_segment and attention_merge with AVX2, FMA and F16C: equal bits to the scalar twins.
//
// Lanes are positions while scores are made (K is stored transposed, so no horizontal sums) and dimensions of
// V while values are summed. Up to three heads of a row share each load of K and V. No standard library here:
// an inline function compiled with AVX could be the copy the linker keeps for everybody.

#include "kernels/attention.h"
#include "kernels/math_avx2.h"

namespace spola {
namespace {

float exp_one(float x) { return _mm256_cvtss_f32(avx2::exp8(_mm256_set1_ps(x))); }

__m256 soft_cap(__m256 s, float cap) {
  return _mm256_mul_ps(_mm256_set1_ps(cap), avx2::tanh8(_mm256_div_ps(s, _mm256_set1_ps(cap))));
}

template <KvType T>
inline __m256 load8(const uint8_t* data, size_t index) {
  if constexpr (T == KvType::kF16) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data + index * 2)));
  } else {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(data) + index);
  }
}

template <KvType T>
inline float load1(const uint8_t* data, size_t index) {
  if constexpr (T == KvType::kF16) {
    uint16_t h;
    __builtin_memcpy(&h, data + index * 2, sizeof h);
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
  } else {
    float f;
    __builtin_memcpy(&f, data + index * 4, sizeof f);
    return f;
  }
}

float sum32(__m256 v0, __m256 v1, __m256 v2, __m256 v3) {
  return avx2::tree16(_mm256_add_ps(v0, v2), _mm256_add_ps(v1, v3));
}

float max32(__m256 v0, __m256 v1, __m256 v2, __m256 v3) {
  const __m256 s = _mm256_max_ps(_mm256_max_ps(v0, v2), _mm256_max_ps(v1, v3));
  __m128 h = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  h = _mm_max_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
}

// Scores of N heads against one block: s[n][j], lane = position.
template <int N, KvType T>
inline void scores(const float* q, int k_dim, const uint8_t* k, __m256 (&s)[N][4]) {
  for (int n = 0; n < N; ++n) {
    for (int j = 0; j < 4; ++j) s[n][j] = _mm256_setzero_ps();
  }
  for (int d = 0; d < k_dim; ++d) {
    const size_t base = static_cast<size_t>(d) * kBlock;
    const __m256 k0 = load8<T>(k, base);
    const __m256 k1 = load8<T>(k, base + 8);
    const __m256 k2 = load8<T>(k, base + 16);
    const __m256 k3 = load8<T>(k, base + 24);
    for (int n = 0; n < N; ++n) {
      const __m256 x = _mm256_broadcast_ss(q + static_cast<size_t>(n) * k_dim + d);
      s[n][0] = _mm256_fmadd_ps(x, k0, s[n][0]);
      s[n][1] = _mm256_fmadd_ps(x, k1, s[n][1]);
      s[n][2] = _mm256_fmadd_ps(x, k2, s[n][2]);
      s[n][3] = _mm256_fmadd_ps(x, k3, s[n][3]);
    }
  }
}

// Softmax of one head over one block: scores in, weights e out; updates m and l, returns the correction.
float soften(__m256 (&s)[4], float softcap, int lo, int hi, bool first, float* e, float* out) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i above = _mm256_set1_epi32(lo - 1);
  const __m256i below = _mm256_set1_epi32(hi);
  const __m256 lowest = _mm256_set1_ps(-__builtin_inff());
  __m256 valid[4];
  for (int j = 0; j < 4; ++j) {
    const __m256i t = _mm256_add_epi32(lane, _mm256_set1_epi32(8 * j));
    valid[j] =
        _mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(t, above), _mm256_cmpgt_epi32(below, t)));
    if (softcap != 0.0f) s[j] = soft_cap(s[j], softcap);
    s[j] = _mm256_blendv_ps(lowest, s[j], valid[j]);
  }
  const float top = max32(s[0], s[1], s[2], s[3]);
  const float m = first || top > out[0] ? top : out[0];
  const float corr = first ? 0.0f : exp_one(out[0] - m);
  for (int j = 0; j < 4; ++j) {
    s[j] = _mm256_and_ps(valid[j], avx2::exp8(_mm256_sub_ps(s[j], _mm256_set1_ps(m))));
    _mm256_storeu_ps(e + 8 * j, s[j]);
  }
  out[0] = m;
  out[1] = __builtin_fmaf(out[1], corr, sum32(s[0], s[1], s[2], s[3]));
  return corr;
}

// o[n] = o[n] * corr[n] + sum over t of e[n][t] * v[t], 8 * W dimensions from d.
template <int N, int W, KvType T>
inline void values(const AttentionArgs& a, const uint8_t* v, int d, const float (*e)[kBlock],
                   const float* corr, int lo, int hi, float* const* o) {
  __m256 acc[N][W];
  for (int n = 0; n < N; ++n) {
    for (int w = 0; w < W; ++w) {
      acc[n][w] = _mm256_mul_ps(_mm256_loadu_ps(o[n] + d + 8 * w), _mm256_set1_ps(corr[n]));
    }
  }
  for (int t = lo; t < hi; ++t) {
    const size_t base = static_cast<size_t>(t) * a.v_dim + d;
    __m256 row[W];
    for (int w = 0; w < W; ++w) row[w] = load8<T>(v, base + 8 * w);
    for (int n = 0; n < N; ++n) {
      const __m256 x = _mm256_broadcast_ss(e[n] + t);
      for (int w = 0; w < W; ++w) acc[n][w] = _mm256_fmadd_ps(x, row[w], acc[n][w]);
    }
  }
  for (int n = 0; n < N; ++n) {
    for (int w = 0; w < W; ++w) _mm256_storeu_ps(o[n] + d + 8 * w, acc[n][w]);
  }
}

// N heads of one row against one block.
template <int N, KvType K, KvType V>
void block(const AttentionArgs& a, const float* q, int b, int lo, int hi, float* out) {
  __m256 s[N][4];
  scores<N, K>(q, a.k_dim, a.k[b], s);
  alignas(32) float e[N][kBlock];
  float corr[N];
  float* o[N];
  for (int n = 0; n < N; ++n) {
    float* head = out + static_cast<size_t>(n) * (a.v_dim + 2);
    corr[n] = soften(s[n], a.softcap, lo, hi, b == 0, e[n], head);
    o[n] = head + 2;
  }
  int d = 0;
  for (; d + 32 <= a.v_dim; d += 32) values<N, 4, V>(a, a.v[b], d, e, corr, lo, hi, o);
  for (; d + 8 <= a.v_dim; d += 8) values<N, 1, V>(a, a.v[b], d, e, corr, lo, hi, o);
  for (; d < a.v_dim; ++d) {
    for (int n = 0; n < N; ++n) {
      float acc = o[n][d] * corr[n];
      for (int t = lo; t < hi; ++t) {
        acc = __builtin_fmaf(e[n][t], load1<V>(a.v[b], static_cast<size_t>(t) * a.v_dim + d), acc);
      }
      o[n][d] = acc;
    }
  }
}

template <KvType K, KvType V>
void segment(const AttentionArgs& a) {
  for (int r = 0; r < a.rows; ++r) {
    for (int g = 0; g < a.heads; ++g) {
      float* out = a.out + r * a.out_stride + static_cast<size_t>(g) * (a.v_dim + 2);
      out[0] = -__builtin_inff();
      for (int i = 1; i < a.v_dim + 2; ++i) out[i] = 0.0f;
    }
  }
  for (int b = 0; b < a.blocks; ++b) {
    const int start = (a.first_block + b) * kBlock;
    for (int r = 0; r < a.rows; ++r) {
      const int lo = a.low[r] > start ? a.low[r] - start : 0;
      const int hi = a.high[r] - start < kBlock ? a.high[r] - start : kBlock;
      const float* q = a.q + r * a.q_stride;
      float* out = a.out + r * a.out_stride;
      int g = 0;
      for (; g + 3 <= a.heads; g += 3) {
        block<3, K, V>(a, q + static_cast<size_t>(g) * a.k_dim, b, lo, hi,
                       out + static_cast<size_t>(g) * (a.v_dim + 2));
      }
      q += static_cast<size_t>(g) * a.k_dim;
      out += static_cast<size_t>(g) * (a.v_dim + 2);
      if (a.heads - g == 2) block<2, K, V>(a, q, b, lo, hi, out);
      if (a.heads - g == 1) block<1, K, V>(a, q, b, lo, hi, out);
    }
  }
}

}  // namespace

void attention_segment_avx2(const AttentionArgs& a) {
  const bool k16 = a.k_type == KvType::kF16;
  const bool v16 = a.v_type == KvType::kF16;
  if (k16 && v16) return segment<KvType::kF16, KvType::kF16>(a);
  if (k16) return segment<KvType::kF16, KvType::kF32>(a);
  if (v16) return segment<KvType::kF32, KvType::kF16>(a);
  segment<KvType::kF32, KvType::kF32>(a);
}

void attention_merge_avx2(const float* part, int v_dim, float* into) {
  const float m = part[0] > into[0] ? part[0] : into[0];
  const float a = exp_one(into[0] - m);
  const float b = exp_one(part[0] - m);
  into[0] = m;
  const int n = v_dim + 2;
  int i = 1;
  for (; i + 8 <= n; i += 8) {
    const __m256 p = _mm256_mul_ps(_mm256_loadu_ps(part + i), _mm256_set1_ps(b));
    _mm256_storeu_ps(into + i, _mm256_fmadd_ps(_mm256_loadu_ps(into + i), _mm256_set1_ps(a), p));
  }
  for (; i < n; ++i) into[i] = __builtin_fmaf(into[i], a, part[i] * b);
}

}  // namespace spola
