// The shape of the attention kernels, the same for every instruction set: for the sources attention_ISA.cc
// only.
//
// The query heads of all rows of a call are the rows of a small matrix product: a tile of up to V::kTile of
// them shares each load of K and V, and its scores and sums stay in registers. There is no score matrix, only
// the running softmax of docs/numerics.md. Lanes are positions while scores are made (K is stored transposed,
// so there are no horizontal sums) and dimensions of V while values are summed. Blocks are the outer loop: K
// and V of a block stay in the first-level cache for all tiles.
//
// V is a vector of kWidth floats (vector_ISA.h). Everything here is internal to its source file, and no
// standard library is used: an inline function compiled for one instruction set could be the copy the linker
// keeps for everybody.
#pragma once

#include "kernels/attention.h"
#include "kernels/math_tile.h"

namespace spola {
namespace {

// One query head against one block.
struct Query {
  const float* q;
  float* out;  // m, l, o[v_dim]
  int lo, hi;  // valid positions of the block
};

template <class V>
struct Attention {
  using F = typename V::F;
  static constexpr int W = V::kWidth;

  template <KvType T>
  static inline F load(const uint8_t* data, size_t index) {
    if constexpr (T == KvType::kI8) return V::load_i8(data + index);
    if constexpr (T == KvType::kF16) return V::load_half(data + index * 2);
    return V::load(reinterpret_cast<const float*>(data) + index);
  }

  template <KvType T>
  static inline float load1(const uint8_t* data, size_t index) {
    if constexpr (T == KvType::kI8) return static_cast<float>(static_cast<int8_t>(data[index]));
    if constexpr (T == KvType::kF16) return V::load_half1(data + index * 2);
    float f;
    __builtin_memcpy(&f, data + index * 4, sizeof f);
    return f;
  }

  template <size_t Bytes>
  static inline void prefetch(const uint8_t* p) {
    for (size_t i = 0; i < Bytes; i += 64) __builtin_prefetch(p + i);
  }

  // Scores of N heads for the P * W positions from `at`; `ahead` is what the next block will read. Scales of K
  // stand outside the sums of their groups.
  template <int N, int P, KvType T>
  static inline void scores_at(const Query* queries, int k_dim, const uint8_t* k, int at,
                               const uint8_t* ahead, float (*s)[kBlock]) {
    constexpr size_t kBytes = kv_value_bytes(T);
    constexpr bool kScaled = T == KvType::kI8;
    const long step = kScaled ? kKvGroup : k_dim;
    const float* q[N];
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) q[n] = queries[n].q;
    size_t scales = static_cast<size_t>(k_dim) * kBlock + at * 2;
    long from = 0;
    do {
      const long to = from + step < k_dim ? from + step : k_dim;
      F acc[N][P];
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) {
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) acc[n][p] = V::zero();
      }
      for (long d = from; d < to; ++d) {
        F row[P];
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) row[p] = load<T>(k, static_cast<size_t>(d) * kBlock + at + W * p);
        if (ahead) prefetch<P * W * kBytes>(ahead + (static_cast<size_t>(d) * kBlock + at) * kBytes);
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) {
          const F x = V::set1(q[n][d]);
#pragma GCC unroll 4
          for (int p = 0; p < P; ++p) acc[n][p] = V::fma(x, row[p], acc[n][p]);
        }
      }
      if (kScaled && ahead) prefetch<P * W * 2>(ahead + scales);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        const F scale = kScaled ? V::load_half(k + scales + W * p * 2) : V::zero();
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) {
          float* to_s = s[n] + at + W * p;
          if constexpr (kScaled) acc[n][p] = V::fma(scale, acc[n][p], V::load(to_s));
          V::store(to_s, acc[n][p]);
        }
      }
      from += step;
      scales += kBlock * 2;
    } while (from < k_dim);
  }

  template <int N, KvType T>
  static void scores(const Query* queries, int k_dim, const uint8_t* k, const uint8_t* ahead,
                     float (*s)[kBlock]) {
    constexpr int P = N * (kBlock / W) <= V::kAccumulators ? kBlock / W : 2;
    if constexpr (T == KvType::kI8) {
      for (int i = 0; i < N * kBlock; i += W) V::store(s[0] + i, V::zero());
    }
    for (int at = 0; at < kBlock; at += P * W) scores_at<N, P, T>(queries, k_dim, k, at, ahead, s);
  }

  static inline F largest(const F (&v)[kBlock / W]) {
    F most = v[0];
#pragma GCC unroll 8
    for (int j = 1; j < kBlock / W; ++j) most = V::max(most, v[j]);
    return most;
  }

  // The 32 values of a block as sum16 adds them.
  static inline float sum32(const F (&v)[kBlock / W]) {
    F lane[16 / W];
#pragma GCC unroll 4
    for (int j = 0; j < 16 / W; ++j) lane[j] = V::add(v[j], v[j + 16 / W]);
    return V::tree16(lane);
  }

  // Softmax over one block: scores in, weights out, in place; updates m and l, gives the corrections. Whole: every
  // query sees all positions.
  template <int N, bool Whole>
  static void soften(const Query* queries, float softcap, bool first, float (*s)[kBlock], float* corr) {
    constexpr int J = kBlock / W;
    alignas(64) float before[16] = {};
    float m[N];
    for (int n = 0; n < N; ++n) {
      const Query& query = queries[n];
      F v[J];
#pragma GCC unroll 4
      for (int j = 0; j < J; ++j) {
        v[j] = V::load(s[n] + W * j);
        if (softcap != 0.0f) {
          const F cap = V::set1(softcap);
          v[j] = V::mul(cap, Maths<V>::tanh(V::div(v[j], cap)));
        }
        if constexpr (!Whole) {
          v[j] = V::select(V::lanes(query.lo - W * j, query.hi - W * j), v[j], V::set1(-__builtin_inff()));
        }
        if (!Whole || softcap != 0.0f) V::store(s[n] + W * j, v[j]);
      }
      const float top = V::max_lane(largest(v));
      m[n] = first || top > query.out[0] ? top : query.out[0];
      before[n] = query.out[0] - m[n];
    }
    for (int n = 0; n < N; n += W) V::store(corr + n, first ? V::zero() : Maths<V>::exp(V::load(before + n)));
    for (int n = 0; n < N; ++n) {
      const Query& query = queries[n];
      F e[J];
#pragma GCC unroll 4
      for (int j = 0; j < J; ++j) {
        e[j] = Maths<V>::exp(V::sub(V::load(s[n] + W * j), V::set1(m[n])));
        if constexpr (!Whole) e[j] = V::select(V::lanes(query.lo - W * j, query.hi - W * j), e[j], V::zero());
        V::store(s[n] + W * j, e[j]);
      }
      query.out[0] = m[n];
      query.out[1] = __builtin_fmaf(query.out[1], corr[n], sum32(e));
    }
  }

  // Weights of N queries: head n, group g, position t at e[g * group + n * kBlock + t].
  struct Weights {
    const float* e;
    size_t group;  // 0 where all dimensions of V share a weight
  };

  // o[n] = o[n] * corr[n] + sum over t of e[n][t] * v[t], for P * W dimensions from d, which have the weights of
  // G groups.
  template <int N, int P, int G, KvType T>
  static inline void values_at(const Query* queries, const uint8_t* v, int v_dim, int d, Weights w,
                               const float* corr, int lo, int hi, const uint8_t* ahead) {
    constexpr size_t kBytes = kv_value_bytes(T);
    F acc[N][P];
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
      const F c = V::set1(corr[n]);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) acc[n][p] = V::mul(V::load(queries[n].out + 2 + d + W * p), c);
    }
    for (long t = lo; t < hi; ++t) {
      const size_t base = static_cast<size_t>(t) * v_dim + d;
      F row[P];
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) row[p] = load<T>(v, base + W * p);
      if (ahead) prefetch<P * W * kBytes>(ahead + base * kBytes);
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) {
#pragma GCC unroll 2
        for (int g = 0; g < G; ++g) {
          const F x = V::set1(w.e[g * w.group + static_cast<size_t>(n) * kBlock + t]);
#pragma GCC unroll 4
          for (int p = g * P / G; p < (g + 1) * P / G; ++p) acc[n][p] = V::fma(x, row[p], acc[n][p]);
        }
      }
    }
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) V::store(queries[n].out + 2 + d + W * p, acc[n][p]);
    }
  }

  // Dimensions from .. to - 1; `from` begins a group.
  template <int N, KvType T>
  static void values(const Query* queries, const uint8_t* v, int v_dim, int from, int to, Weights w,
                     const float* corr, int lo, int hi, const uint8_t* ahead) {
    constexpr int P = N * 4 <= V::kAccumulators ? 4 : 2;
    constexpr int G = T == KvType::kI8 && P * W > kKvGroup ? P * W / kKvGroup : 1;
    const auto of = [&](int d) { return Weights{w.e + (d - from) / kKvGroup * w.group, w.group}; };
    int d = from;
    for (; d + P * W <= to; d += P * W) {
      values_at<N, P, G, T>(queries, v, v_dim, d, of(d), corr, lo, hi, ahead);
    }
    for (; d + W <= to; d += W) values_at<N, 1, 1, T>(queries, v, v_dim, d, of(d), corr, lo, hi, ahead);
    for (; d < to; ++d) {
      for (int n = 0; n < N; ++n) {
        const float* e = of(d).e + static_cast<size_t>(n) * kBlock;
        float acc = queries[n].out[2 + d] * corr[n];
        for (int t = lo; t < hi; ++t) {
          acc = __builtin_fmaf(e[t], load1<T>(v, static_cast<size_t>(t) * v_dim + d), acc);
        }
        queries[n].out[2 + d] = acc;
      }
    }
  }

  // Positions that all queries see are summed together, what a later row sees more of by itself: each still
  // adds in ascending order.
  template <int N, KvType T>
  static void ragged_values(const Query* queries, const uint8_t* v, int v_dim, int from, int to, Weights w,
                            const float* corr, const uint8_t* ahead) {
    constexpr float kOne = 1.0f;
    const int lo = queries[0].lo;
    int hi = queries[0].hi;
    bool together = true;
    for (int n = 1; n < N; ++n) {
      together = together && queries[n].lo == lo;
      if (queries[n].hi < hi) hi = queries[n].hi;
    }
    together = together && hi > lo;
    if (together) values<N, T>(queries, v, v_dim, from, to, w, corr, lo, hi, ahead);
    for (int n = 0; n < N; ++n) {
      const Query& query = queries[n];
      const Weights own{w.e + n * kBlock, w.group};
      if (!together) {
        values<1, T>(&query, v, v_dim, from, to, own, corr + n, query.lo, query.hi, nullptr);
      } else if (query.hi > hi) {
        values<1, T>(&query, v, v_dim, from, to, own, &kOne, hi, query.hi, nullptr);
      }
    }
  }

  // Adds V of a block. Scales of V go into the weights, two groups of dimensions at a time.
  template <int N, KvType T>
  static void weigh(const Query* queries, const uint8_t* v, int v_dim, const float (*e)[kBlock],
                    const float* corr, const uint8_t* ahead) {
    if constexpr (T != KvType::kI8) {
      ragged_values<N, T>(queries, v, v_dim, 0, v_dim, {e[0], 0}, corr, ahead);
    } else {
      alignas(64) float w[2][N][kBlock];
      const size_t codes = static_cast<size_t>(v_dim) * kBlock;
      for (int from = 0; from < v_dim; from += 2 * kKvGroup) {
        const int to = from + 2 * kKvGroup < v_dim ? from + 2 * kKvGroup : v_dim;
        for (int g = 0; from + g * kKvGroup < to; ++g) {
          const size_t at = codes + static_cast<size_t>(from / kKvGroup + g) * kBlock * 2;
          if (ahead) prefetch<kBlock * 2>(ahead + at);
          for (int t = 0; t < kBlock; t += W) {
            const F scale = V::load_half(v + at + t * 2);
            for (int n = 0; n < N; ++n) V::store(w[g][n] + t, V::mul(V::load(e[n] + t), scale));
          }
        }
        ragged_values<N, T>(queries, v, v_dim, from, to, {w[0][0], N * kBlock}, corr, ahead);
      }
    }
  }

  // A block as the tiles read it; `k_ahead` and `v_ahead` are what to ask for meanwhile, or null.
  struct Block {
    const uint8_t* k;
    const uint8_t* v;
    KvType k_type, v_type;
    const uint8_t* k_ahead;
    const uint8_t* v_ahead;
    bool first;
  };

  template <int N>
  static inline bool all_seen(const Query* queries) {
    bool all = true;
    for (int n = 0; n < N; ++n) all = all && queries[n].lo <= 0 && queries[n].hi >= kBlock;
    return all;
  }

  // N queries against a block.
  template <int N>
  static void tile(const AttentionArgs& a, const Query* queries, const Block& b) {
    alignas(64) float s[N][kBlock];
    alignas(64) float corr[16];
    switch (b.k_type) {
      case KvType::kF16: scores<N, KvType::kF16>(queries, a.k_dim, b.k, b.k_ahead, s); break;
      case KvType::kI8: scores<N, KvType::kI8>(queries, a.k_dim, b.k, b.k_ahead, s); break;
      default: scores<N, KvType::kF32>(queries, a.k_dim, b.k, b.k_ahead, s);
    }
    if (all_seen<N>(queries)) {
      soften<N, true>(queries, a.softcap, b.first, s, corr);
    } else {
      soften<N, false>(queries, a.softcap, b.first, s, corr);
    }
    switch (b.v_type) {
      case KvType::kF16: weigh<N, KvType::kF16>(queries, b.v, a.v_dim, s, corr, b.v_ahead); break;
      case KvType::kI8: weigh<N, KvType::kI8>(queries, b.v, a.v_dim, s, corr, b.v_ahead); break;
      default: weigh<N, KvType::kF32>(queries, b.v, a.v_dim, s, corr, b.v_ahead);
    }
  }

  // As many of the queries as fill a tile; returns how many.
  static int any_tile(const AttentionArgs& a, const Query* queries, int left, const Block& b) {
    if constexpr (V::kTile >= 12) {
      if (left >= 12) return tile<12>(a, queries, b), 12;
      if (left >= 8) return tile<8>(a, queries, b), 8;
    }
    if (left >= 6) return tile<6>(a, queries, b), 6;
    if (left >= 4) return tile<4>(a, queries, b), 4;
    if (left == 3) return tile<3>(a, queries, b), 3;
    if (left == 2) return tile<2>(a, queries, b), 2;
    return tile<1>(a, queries, b), 1;
  }

  static constexpr int kWideDim = 128;  // K and V of a block as f32 take two thirds of a first-level cache
  static constexpr int kWideTiles = 3;  // from so many tiles on f16 is turned into f32 once for all of them

  // The block's values as f32 at `wide`, where that is of use: they are the same, and each tile would convert them.
  static inline KvType widen(KvType type, int dim, int tiles, const uint8_t** data, float* wide) {
    if (type != KvType::kF16 || dim > kWideDim || tiles < kWideTiles) return type;
    for (int i = 0; i < dim * kBlock; i += W) V::store(wide + i, V::load_half(*data + static_cast<size_t>(i) * 2));
    *data = reinterpret_cast<const uint8_t*>(wide);
    return KvType::kF32;
  }

  static void start(const AttentionArgs& a) {
    for (int r = 0; r < a.rows; ++r) {
      for (int g = 0; g < a.heads; ++g) {
        float* out = a.out + r * a.out_stride + static_cast<size_t>(g) * (a.v_dim + 2);
        out[0] = -__builtin_inff();
        for (int i = 1; i < a.v_dim + 2; ++i) out[i] = 0.0f;
      }
    }
  }

  static void segment(const AttentionArgs& a) {
    start(a);
    const int total = a.rows * a.heads, tiles = (total + V::kTile - 1) / V::kTile;
    alignas(64) float wide[2][kWideDim * kBlock];
    for (int b = 0; b < a.blocks; ++b) {
      const int first = (a.first_block + b) * kBlock;
      // With one tile each block is read once, from memory, and the next one can be on its way.
      const bool prefetch = tiles == 1 && b + 1 < a.blocks;
      Block block{a.k[b], a.v[b], a.k_type, a.v_type, nullptr, nullptr, b == 0};
      if (prefetch) block.k_ahead = a.k[b + 1], block.v_ahead = a.v[b + 1];
      block.k_type = widen(a.k_type, a.k_dim, tiles, &block.k, wide[0]);
      block.v_type = widen(a.v_type, a.v_dim, tiles, &block.v, wide[1]);
      Query queries[V::kTile];
      int held = 0;
      for (int r = 0; r < a.rows; ++r) {
        const int lo = a.low[r] > first ? a.low[r] - first : 0;
        const int hi = a.high[r] - first < kBlock ? a.high[r] - first : kBlock;
        for (int g = 0; g < a.heads; ++g) {
          queries[held++] = {a.q + r * a.q_stride + static_cast<size_t>(g) * a.k_dim,
                             a.out + r * a.out_stride + static_cast<size_t>(g) * (a.v_dim + 2), lo, hi};
          if (held < V::kTile) continue;
          any_tile(a, queries, held, block);
          held = 0;
        }
      }
      for (int done = 0; done < held;) done += any_tile(a, queries + done, held - done, block);
    }
  }

  // part and into: m, l, o[v_dim]. The maxima are merged first, then all the others alike.
  static void merge(const float* part, int v_dim, float* into) {
    const float m = part[0] > into[0] ? part[0] : into[0];
    alignas(64) float x[W] = {into[0] - m, part[0] - m};
    V::store(x, Maths<V>::exp(V::load(x)));
    into[0] = m;
    const int n = v_dim + 2;
    int i = 1;
    for (; i + W <= n; i += W) {
      const F p = V::mul(V::load(part + i), V::set1(x[1]));
      V::store(into + i, V::fma(V::load(into + i), V::set1(x[0]), p));
    }
    for (; i < n; ++i) into[i] = __builtin_fmaf(into[i], x[0], part[i] * x[1]);
  }
};

}  // namespace
}  // namespace spola
