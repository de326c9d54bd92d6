// 4-bit weights times A8 activations: Q4_0, Q4_1, Q4_K, and groups of 64 or 128 with zero points.
//
// Codes stay unsigned. Eight products of maddubs add up in int16 without overflow (8 * 2 * 15 * 127 =
// 30480), so the widening madd is paid once per 32 columns. A zero point of 8 is taken off in int32, from
// the sums of activations.
#include "kernels/panel_avx2.h"
#include "kernels/variants.h"

namespace spola::avx2 {
namespace {

// Dot of 32 columns whose low nibbles are columns 0..15 and high nibbles 16..31.
template <int MR>
SPOLA_INLINE void dot_split(__m256i (&chain)[MR][2], const uint8_t* qs, const int8_t* const (&q)[MR],
                            long at) {
  const __m256i low = _mm256_set1_epi8(15);
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m256i raw0 = load256(qs + j * kGroupBytes), raw1 = load256(qs + j * kGroupBytes + 32);
    const __m256i l0 = _mm256_and_si256(raw0, low), l1 = _mm256_and_si256(raw1, low);
    if (j == 0) {
      chain_add<true>(chain, l0, l1, q, at);
    } else {
      chain_add<false>(chain, l0, l1, q, at + 4 * j);
    }
    const __m256i h0 = _mm256_and_si256(_mm256_srli_epi16(raw0, 4), low);
    const __m256i h1 = _mm256_and_si256(_mm256_srli_epi16(raw1, 4), low);
    chain_add<false>(chain, h0, h1, q, at + 16 + 4 * j);
  }
}

// Dot of 32 columns that are all in the low (Shift 0) or high (Shift 4) nibbles of eight groups.
template <int Shift, int MR>
SPOLA_INLINE void dot_plane(__m256i (&chain)[MR][2], const uint8_t* qs, const int8_t* const (&q)[MR],
                            long at) {
  const __m256i low = _mm256_set1_epi8(15);
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    __m256i w0 = load256(qs + j * kGroupBytes), w1 = load256(qs + j * kGroupBytes + 32);
    if constexpr (Shift != 0) w0 = _mm256_srli_epi16(w0, Shift), w1 = _mm256_srli_epi16(w1, Shift);
    w0 = _mm256_and_si256(w0, low);
    w1 = _mm256_and_si256(w1, low);
    if (j == 0) {
      chain_add<true>(chain, w0, w1, q, at);
    } else {
      chain_add<false>(chain, w0, w1, q, at + 4 * j);
    }
  }
}

template <class N>
void u4s(N, const uint8_t* p, const Activations& a, int row0, float* out) {
  constexpr int MR = N::value;
  const RowsA8<MR> rows(a, row0);
  Accumulators<MR> acc(out);
  const long blocks = a.k / kBlock;
  for (long b = 0; b < blocks; ++b, p += u4s::kBytes) {
    prefetch<MR, u4s::kBytes>(p);
    __m256i chain[MR][2];
    dot_split(chain, p + u4s::kQs, rows.q, b * kBlock);
    const __m256 d[2] = {load_half8(p + u4s::kD), load_half8(p + u4s::kD + 16)};
#pragma GCC unroll 4
    for (int r = 0; r < MR; ++r) {
      const __m256 da = _mm256_broadcast_ss(rows.d[r] + b);
      const __m256i zero = _mm256_madd_epi16(bcast4(rows.h[r] + b * 2), _mm256_set1_epi16(-8));
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        const __m256i i = _mm256_add_epi32(pair_sum(chain[r][h]), zero);
        acc.fma(r, h, scaled(i, d[h]), da);
      }
    }
  }
  acc.store();
}

// acc = fma(da, scale(h) * float(i), acc), then fma(min(h), s, acc). A half of the tile after the other:
// scales and mins of both would not fit into the registers beside the chains.
template <int MR, class Scale, class Min>
SPOLA_INLINE void add_scale_min(Accumulators<MR>& acc, const __m256i (&chain)[MR][2], Scale scale, Min min,
                                const RowsA8<MR>& rows, long b) {
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    const __m256 d = scale(h), m = min(h);
#pragma GCC unroll 4
    for (int r = 0; r < MR; ++r) {
      const __m256 product = scaled(pair_sum(chain[r][h]), d);
      const __m256 sum = _mm256_fmadd_ps(product, _mm256_broadcast_ss(rows.d[r] + b), acc.get(r, h));
      acc.set(r, h, _mm256_fmadd_ps(m, _mm256_broadcast_ss(rows.s[r] + b), sum));
    }
  }
}

template <class N>
void u4sm(N, const uint8_t* p, const Activations& a, int row0, float* out) {
  constexpr int MR = N::value;
  const RowsA8<MR> rows(a, row0);
  Accumulators<MR> acc(out);
  const long blocks = a.k / kBlock;
  for (long b = 0; b < blocks; ++b, p += u4sm::kBytes) {
    prefetch<MR, u4sm::kBytes>(p);
    __m256i chain[MR][2];
    dot_split(chain, p + u4sm::kQs, rows.q, b * kBlock);
    add_scale_min(
        acc, chain, [&](int h) { return load_half8(p + u4sm::kD + h * 16); },
        [&](int h) { return load_half8(p + u4sm::kM + h * 16); }, rows, b);
  }
  acc.store();
}

// -(x * y) of eight f16 each.
SPOLA_INLINE __m256 minus_product(const uint8_t* x, const uint8_t* y) {
  return _mm256_xor_ps(_mm256_mul_ps(load_half8(x), load_half8(y)), _mm256_set1_ps(-0.0f));
}

// Groups of Blocks * 32 columns, value = d * (code - z).
template <int Blocks>
struct Zeros {
  template <class N>
  static void u4z(N, const uint8_t* p, const Activations& a, int row0, float* out) {
    constexpr int MR = N::value;
    const RowsA8<MR> rows(a, row0);
    Accumulators<MR> acc(out);
    for (long b = 0; b < a.k / kBlock; b += Blocks, p += u4z::bytes(Blocks)) {
      prefetch<MR, u4z::kQs>(p);
      for (long i = 0; i < Blocks; ++i) {
        const uint8_t* qs = p + u4z::kQs + i * u4z::kBlockBytes;
        prefetch<MR, u4z::kBlockBytes>(qs);
        __m256i chain[MR][2];
        dot_split(chain, qs, rows.q, (b + i) * kBlock);
        add_scale_min(
            acc, chain, [&](int h) { return load_half8(p + u4z::kD + h * 16); },
            [&](int h) { return minus_product(p + u4z::kD + h * 16, p + u4z::kZ + h * 16); }, rows, b + i);
      }
    }
    acc.store();
  }
};

template <class N>
void u4k(N, const uint8_t* p, const Activations& a, int row0, float* out) {
  constexpr int MR = N::value;
  const RowsA8<MR> rows(a, row0);
  Accumulators<MR> acc(out);
  KScales scales;
  for (long b = 0; b < a.k / kBlock; b += 8, p += u4k::kBytes) {
    prefetch<MR, u4k::kPairs>(p);
    scales.load(p);
    for (long i = 0; i < 4; ++i) {
      const uint8_t* pair = p + u4k::kPairs + i * u4k::kPairBytes;
      prefetch<MR, u4k::kPairBytes>(pair);
#pragma GCC unroll 2
      for (long n = 0; n < 2; ++n) {
        const long s = i * 2 + n;
        __m256i chain[MR][2];
        if (n == 0) {
          dot_plane<0>(chain, pair, rows.q, (b + s) * kBlock);
        } else {
          dot_plane<4>(chain, pair, rows.q, (b + s) * kBlock);
        }
        add_scale_min(
            acc, chain, [&](int h) { return _mm256_load_ps(scales.scale[s] + h * 8); },
            [&](int h) { return _mm256_load_ps(scales.min[s] + h * 8); }, rows, b + s);
      }
    }
  }
  acc.store();
}

// The nibbles of Groups groups: the low ones to `low`, the high ones to `high`.
template <int Groups>
SPOLA_INLINE void split(const uint8_t* qs, uint8_t* low, uint8_t* high) {
  const __m256i mask = _mm256_set1_epi8(15);
#pragma GCC unroll 16
  for (int i = 0; i < Groups * kGroupBytes; i += 32) {
    const __m256i raw = load256(qs + i);
    _mm256_store_si256(reinterpret_cast<__m256i*>(low + i), _mm256_and_si256(raw, mask));
    _mm256_store_si256(reinterpret_cast<__m256i*>(high + i), _mm256_and_si256(_mm256_srli_epi16(raw, 4), mask));
  }
}

SPOLA_INLINE void split_block(const uint8_t* qs, uint8_t* codes) {
  split<4>(qs, codes, codes + 4 * kGroupBytes);
}

struct ManyU4S : Nibbles<RowPlane::kZero8, false> {
  static SPOLA_NOINLINE const uint8_t* unpack(Panel& to, const uint8_t* p, int blocks) {
    for (int b = 0; b < blocks; ++b, p += u4s::kBytes) {
      split_block(p + u4s::kQs, to.codes[b]);
      store_half_planes(to, b, p + u4s::kD);
    }
    return p;
  }
};

struct ManyU4SM : Nibbles<RowPlane::kCount, true> {
  static SPOLA_NOINLINE const uint8_t* unpack(Panel& to, const uint8_t* p, int blocks) {
    for (int b = 0; b < blocks; ++b, p += u4sm::kBytes) {
      split_block(p + u4sm::kQs, to.codes[b]);
      store_half_planes(to, b, p + u4sm::kD);
      store_mins(to, b, p + u4sm::kM);
    }
    return p;
  }
};

struct ManyU4K : Nibbles<RowPlane::kCount, true> {
  static SPOLA_NOINLINE const uint8_t* unpack(Panel& to, const uint8_t* p, int) {
    store_kscales(to, p);
    for (int i = 0; i < 4; ++i) {
      split<8>(p + u4k::kPairs + i * u4k::kPairBytes, to.codes[2 * i], to.codes[2 * i + 1]);
    }
    return p + u4k::kBytes;
  }
};

}  // namespace

SPOLA_PANEL_KERNEL(tile_u4s_a8, u4s, ManyU4S)
SPOLA_PANEL_KERNEL(tile_u4sm_a8, u4sm, ManyU4SM)
SPOLA_PANEL_KERNEL(tile_u4k_a8, u4k, ManyU4K)
SPOLA_TILE_KERNEL(tile_u4z64_a8, Zeros<2>::u4z)
SPOLA_TILE_KERNEL(tile_u4z128_a8, Zeros<4>::u4z)

}  // namespace spola::avx2
