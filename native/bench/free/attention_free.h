// Attention in the order that is fastest for the call: for the sources free_ISA.cc only. See attention_tile.h
// for what it has in common with the library's.
//
// No segments of 256 positions: one running softmax over all of them, kept up once per chunk of blocks. Sums of
// weights stay in lanes until the end. The diagonal is masked instead of done row by row, so a row's
// sums do take in positions that it must not see, with weight 0.
#pragma once

#include "free/free.h"
#include "kernels/math_tile.h"

namespace spola::free_order {
namespace {

template <class V>
struct FreeAttention {
  using F = typename V::F;
  static constexpr int W = V::kWidth;
  static constexpr int kChunk = 4;  // blocks that share one step of the softmax
  static constexpr int kWidest = kChunk * kBlock;

  struct Query {
    const float* q;
    float* out;
    int high;
  };

  // Scores of N heads for P * W positions from `at` of one block, to columns from `to`. With few heads the
  // dimensions are summed in two chains, or the FMA's latency would show.
  template <int N, int P>
  static SPOLA_INLINE void scores(const Query* queries, int k_dim, const uint8_t* k, int at, int to,
                                  const uint8_t* ahead, float (*s)[kWidest]) {
    constexpr int kChains = N * P * 2 <= V::kAccumulators ? 2 : 1;
    const float* q[N];
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) q[n] = queries[n].q;
    F acc[kChains][N][P];
#pragma GCC unroll 2
    for (int c = 0; c < kChains; ++c) {
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) {
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) acc[c][n][p] = V::zero();
      }
    }
    for (long d = 0; d < k_dim; d += kChains) {
#pragma GCC unroll 2
      for (int c = 0; c < kChains; ++c) {
        const size_t row = static_cast<size_t>(d + c) * kBlock + static_cast<size_t>(at);
        if (ahead) {
#pragma GCC unroll 4
          for (int i = 0; i < P * W * 2; i += 64) __builtin_prefetch(ahead + row * 2 + i);
        }
        F x[P];
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) x[p] = V::load_half(k + (row + W * p) * 2);
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) {
          const F y = V::set1(q[n][d + c]);
#pragma GCC unroll 4
          for (int p = 0; p < P; ++p) acc[c][n][p] = V::fma(y, x[p], acc[c][n][p]);
        }
      }
    }
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        const F sum = kChains == 2 ? V::add(acc[0][n][p], acc[kChains - 1][n][p]) : acc[0][n][p];
        V::store(s[n] + to + W * p, sum);
      }
    }
  }

  // Scores of `width` positions become weights; m and the lanes of l go on.
  template <int N>
  static void soften(const Query* queries, int from, int width, bool masked, float (*s)[kWidest], float* m,
                     F* l, float* corr) {
    alignas(64) float before[16] = {};
    for (int n = 0; n < N; ++n) {
      F most = V::set1(m[n]);
      for (int j = 0; j < width; j += W) {
        F x = V::load(s[n] + j);
        if (masked) {
          x = V::select(V::lanes(0, queries[n].high - from - j), x, V::set1(-__builtin_inff()));
          V::store(s[n] + j, x);
        }
        most = V::max(most, x);
      }
      const float top = V::max_lane(most);
      before[n] = m[n] - top;
      m[n] = top;
    }
    for (int n = 0; n < N; n += W) V::store(corr + n, Maths<V>::exp(V::load(before + n)));
    for (int n = 0; n < N; ++n) {
      const F top = V::set1(m[n]);
      F sum = V::mul(l[n], V::set1(corr[n]));
      for (int j = 0; j < width; j += W) {
        const F e = Maths<V>::exp(V::sub(V::load(s[n] + j), top));
        V::store(s[n] + j, e);
        sum = V::add(sum, e);
      }
      l[n] = sum;
    }
  }

  // o = o * corr + sum of e * v over `positions` positions of consecutive blocks, P * W dimensions from d.
  template <int N, int P>
  static SPOLA_INLINE void values(const Query* queries, const uint8_t* const* v, int v_dim, int d,
                                  const float (*e)[kWidest], const float* corr, int positions, bool ahead) {
    F acc[N][P];
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
      const F c = V::set1(corr[n]);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) acc[n][p] = V::mul(V::load(queries[n].out + 2 + d + W * p), c);
    }
    for (int b = 0; b * kBlock < positions; ++b) {
      const int end = positions - b * kBlock < kBlock ? positions - b * kBlock : kBlock;
      const uint8_t* next = ahead ? v[b + 1] : nullptr;
      for (long t = 0; t < end; ++t) {
        const size_t base = static_cast<size_t>(t) * static_cast<size_t>(v_dim) + static_cast<size_t>(d);
        if (next) {
#pragma GCC unroll 4
          for (int i = 0; i < P * W * 2; i += 64) __builtin_prefetch(next + base * 2 + i);
        }
        F row[P];
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) row[p] = V::load_half(v[b] + (base + W * p) * 2);
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) {
          const F x = V::set1(e[n][b * kBlock + t]);
#pragma GCC unroll 4
          for (int p = 0; p < P; ++p) acc[n][p] = V::fma(x, row[p], acc[n][p]);
        }
      }
    }
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) V::store(queries[n].out + 2 + d + W * p, acc[n][p]);
    }
  }

  // N queries against all blocks.
  template <int N>
  static void tile(const Attention& a, const Query* queries, bool alone) {
    constexpr int P = N * (kBlock / W) <= V::kAccumulators ? kBlock / W : 2;
    constexpr int Q = N * 4 <= V::kAccumulators ? 4 : 2;
    alignas(64) float s[N][kWidest];
    alignas(64) float corr[16];
    float m[N];
    F l[N];
    int last = 0, least = queries[0].high;
    for (int n = 0; n < N; ++n) {
      m[n] = -3.0e38f;
      l[n] = V::zero();
      for (int d = 0; d < a.v_dim; ++d) queries[n].out[2 + d] = 0.0f;
      last = queries[n].high > last ? queries[n].high : last;
      least = queries[n].high < least ? queries[n].high : least;
    }
    for (int from = 0; from < last; from += kWidest) {
      const int positions = last - from < kWidest ? last - from : kWidest;
      const int first = from / kBlock, blocks = (positions + kBlock - 1) / kBlock;
      for (int b = 0; b < blocks; ++b) {
        const uint8_t* ahead = alone && first + b + 1 < a.blocks ? a.k[first + b + 1] : nullptr;
        for (int at = 0; at < kBlock; at += P * W) {
          scores<N, P>(queries, a.k_dim, a.k[first + b], at, b * kBlock + at, ahead, s);
        }
      }
      soften<N>(queries, from, blocks * kBlock, from + blocks * kBlock > least, s, m, l, corr);
      const bool more = alone && first + blocks < a.blocks;
      for (int d = 0; d < a.v_dim; d += Q * W) {
        values<N, Q>(queries, a.v + first, a.v_dim, d, s, corr, positions, more);
      }
    }
    for (int n = 0; n < N; ++n) {
      alignas(64) float lanes[W];
      V::store(lanes, l[n]);
      float sum = 0.0f;
      for (int j = 0; j < W; ++j) sum += lanes[j];
      queries[n].out[0] = m[n];
      queries[n].out[1] = sum;
    }
  }

  static void run(const Attention& a) {
    constexpr int kMost = V::kTile;
    const int total = a.rows * a.heads;
    const bool alone = total <= kMost;
    for (int i = 0; i < total;) {
      Query queries[kMost];
      const int left = total - i < kMost ? total - i : kMost;
      for (int n = 0; n < left; ++n) {
        const int r = (i + n) / a.heads, g = (i + n) % a.heads;
        const size_t row = static_cast<size_t>(r), head = static_cast<size_t>(g);
        queries[n] = {a.q + row * a.q_stride + head * static_cast<size_t>(a.k_dim),
                      a.out + row * a.out_stride + head * static_cast<size_t>(a.v_dim + 2), a.high[r]};
      }
      i += any(a, queries, left, alone);
    }
  }

  static int any(const Attention& a, const Query* queries, int left, bool alone) {
    if constexpr (V::kTile >= 12) {
      if (left >= 12) return tile<12>(a, queries, alone), 12;
      if (left >= 8) return tile<8>(a, queries, alone), 8;
    }
    if (left >= 6) return tile<6>(a, queries, alone), 6;
    if (left >= 4) return tile<4>(a, queries, alone), 4;
    if (left == 3) return tile<3>(a, queries, alone), 3;
    if (left == 2) return tile<2>(a, queries, alone), 2;
    return tile<1>(a, queries, alone), 1;
  }
};

// RMSNorm with four vectors of sums of squares instead of the sixteen lanes.
template <class V>
SPOLA_INLINE void rms_norm_free(const float* x, const float* w, float eps, int n, float* y) {
  using F = typename V::F;
  constexpr int W = V::kWidth, kSums = 4;
  F sum[kSums];
#pragma GCC unroll 4
  for (int j = 0; j < kSums; ++j) sum[j] = V::zero();
  int i = 0;
  for (; i + kSums * W <= n; i += kSums * W) {
#pragma GCC unroll 4
    for (int j = 0; j < kSums; ++j) {
      const F v = V::load(x + i + j * W);
      sum[j] = V::fma(v, v, sum[j]);
    }
  }
  for (; i + W <= n; i += W) {
    const F v = V::load(x + i);
    sum[0] = V::fma(v, v, sum[0]);
  }
  alignas(64) float lanes[W];
  V::store(lanes, V::add(V::add(sum[0], sum[1]), V::add(sum[2], sum[3])));
  float squares = 0.0f;
  for (int j = 0; j < W; ++j) squares += lanes[j];
  for (; i < n; ++i) squares += x[i] * x[i];
  const float root = 1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + eps);
  const F r = V::set1(root);
  for (i = 0; i + W <= n; i += W) V::store(y + i, V::mul(V::mul(V::load(x + i), r), V::load(w + i)));
  for (; i < n; ++i) y[i] = x[i] * root * w[i];
}

}  // namespace
}  // namespace spola::free_order
