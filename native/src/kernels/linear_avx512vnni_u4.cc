// 4-bit weights times A8 activations with vpdpbusd: Q4_0, Q4_1, Q4_K, and groups of 64 or 128 with zero
// points.
//
// Codes stay unsigned and sums are exact in int32 (32 * 15 * 127). A zero point of 8 is where the integer
// sums start: -8 times the sum of the activations.
#include "kernels/panel_avx512vnni.h"
#include "kernels/variants.h"

namespace spola::avx512vnni {
namespace {

// sum[r] += dot of 32 columns whose low nibbles are columns 0..15 and high nibbles 16..31.
template <int MR>
SPOLA_INLINE void dot_split(__m512i (&sum)[MR], const uint8_t* qs, const RowsA8<MR>& rows, long at) {
  const __m512i low = _mm512_set1_epi8(15);
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i raw = load512(qs + j * kGroupBytes);
    dot4_rows(sum, _mm512_and_si512(raw, low), rows, at + 4 * j);
    dot4_rows(sum, _mm512_and_si512(_mm512_srli_epi16(raw, 4), low), rows, at + 16 + 4 * j);
  }
}

template <class N>
void u4s(N, const uint8_t* p, const Activations& a, int row0, float* out) {
  constexpr int MR = N::value;
  const Ahead ahead(a, p);
  const RowsA8<MR> rows(a, row0);
  __m512 acc[MR];
  clear(acc);
  for (long b = 0; b < rows.blocks; ++b, p += u4s::kBytes) {
    ahead.fetch<u4s::kBytes>(p);
    __m512i sum[MR];
    start_at_zero_point(sum, 8, rows, b);
    dot_split(sum, p + u4s::kQs, rows, b * kBlock);
    add_scaled(acc, sum, load_half16(p + u4s::kD), rows, b);
  }
  store(acc, out);
}

template <class N>
void u4sm(N, const uint8_t* p, const Activations& a, int row0, float* out) {
  constexpr int MR = N::value;
  const Ahead ahead(a, p);
  const RowsA8<MR> rows(a, row0);
  __m512 acc[MR];
  clear(acc);
  for (long b = 0; b < rows.blocks; ++b, p += u4sm::kBytes) {
    ahead.fetch<u4sm::kBytes>(p);
    __m512i sum[MR];
    start(sum);
    dot_split(sum, p + u4sm::kQs, rows, b * kBlock);
    add_scale_min(acc, sum, load_half16(p + u4sm::kD), load_half16(p + u4sm::kM), rows, b);
  }
  store(acc, out);
}

// Groups of Blocks * 32 columns, value = d * (code - z).
template <int Blocks>
struct Zeros {
  template <class N>
  static void u4z(N, const uint8_t* p, const Activations& a, int row0, float* out) {
    constexpr int MR = N::value;
    const Ahead ahead(a, p);
    const RowsA8<MR> rows(a, row0);
    __m512 acc[MR];
    clear(acc);
    for (long b = 0; b < rows.blocks; b += Blocks, p += u4z::bytes(Blocks)) {
      ahead.fetch<u4z::kQs>(p);
      for (long i = 0; i < Blocks; ++i) {
        const uint8_t* qs = p + u4z::kQs + i * u4z::kBlockBytes;
        ahead.fetch<u4z::kBlockBytes>(qs);
        __m512i sum[MR];
        start(sum);
        dot_split(sum, qs, rows, (b + i) * kBlock);
        const __m512 d = load_half16(p + u4z::kD);
        const __m512 m = _mm512_xor_ps(_mm512_mul_ps(d, load_half16(p + u4z::kZ)), _mm512_set1_ps(-0.0f));
        add_scale_min(acc, sum, d, m, rows, b + i);
      }
    }
    store(acc, out);
  }
};

// One sub-block of 32 columns: the low (Shift 0) or high (Shift 4) nibbles of eight groups.
template <int Shift, int MR>
SPOLA_INLINE void sub_block(__m512 (&acc)[MR], const uint8_t* qs, const float* scale, const float* min,
                            const RowsA8<MR>& rows, long b) {
  __m512i sum[MR];
  start(sum);
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    __m512i w = load512(qs + j * kGroupBytes);
    if constexpr (Shift != 0) w = _mm512_srli_epi16(w, Shift);
    dot4_rows(sum, _mm512_and_si512(w, _mm512_set1_epi8(15)), rows, b * kBlock + 4 * j);
  }
  add_scale_min(acc, sum, _mm512_load_ps(scale), _mm512_load_ps(min), rows, b);
}

template <class N>
void u4k(N, const uint8_t* p, const Activations& a, int row0, float* out) {
  constexpr int MR = N::value;
  const Ahead ahead(a, p);
  const RowsA8<MR> rows(a, row0);
  __m512 acc[MR];
  clear(acc);
  KScales scales;
  for (long b = 0; b < rows.blocks; b += 8, p += u4k::kBytes) {
    ahead.fetch<u4k::kPairs>(p);
    scales.load(p);
    for (long i = 0; i < 4; ++i) {
      const uint8_t* pair = p + u4k::kPairs + i * u4k::kPairBytes;
      ahead.fetch<u4k::kPairBytes>(pair);
      sub_block<0>(acc, pair, scales.scale[i * 2], scales.min[i * 2], rows, b + i * 2);
      sub_block<4>(acc, pair, scales.scale[i * 2 + 1], scales.min[i * 2 + 1], rows, b + i * 2 + 1);
    }
  }
  store(acc, out);
}

// The nibbles of Groups groups: the low ones to `low`, the high ones to `high`.
template <int Groups>
SPOLA_INLINE void split(const uint8_t* qs, uint8_t* low, uint8_t* high) {
  const __m512i mask = _mm512_set1_epi8(15);
#pragma GCC unroll 8
  for (int j = 0; j < Groups; ++j) {
    const __m512i raw = load512(qs + j * kGroupBytes);
    _mm512_store_si512(low + j * kGroupBytes, _mm512_and_si512(raw, mask));
    _mm512_store_si512(high + j * kGroupBytes, _mm512_and_si512(_mm512_srli_epi16(raw, 4), mask));
  }
}

SPOLA_INLINE void split_block(const uint8_t* qs, uint8_t* codes) {
  split<4>(qs, codes, codes + 4 * kGroupBytes);
}

struct ManyU4S : Scaled<RowPlane::kZero8> {
  using Panel = avx512vnni::Panel;

  static SPOLA_NOINLINE const uint8_t* unpack(Panel& to, const uint8_t* p, int blocks) {
    for (int b = 0; b < blocks; ++b, p += u4s::kBytes) {
      split_block(p + u4s::kQs, to.codes[b]);
      store_scale(to, b, load_half16(p + u4s::kD));
    }
    return p;
  }
};

struct ManyU4SM : ScaledMin {
  using Panel = avx512vnni::Panel;

  static SPOLA_NOINLINE const uint8_t* unpack(Panel& to, const uint8_t* p, int blocks) {
    for (int b = 0; b < blocks; ++b, p += u4sm::kBytes) {
      split_block(p + u4sm::kQs, to.codes[b]);
      store_scale(to, b, load_half16(p + u4sm::kD));
      _mm512_store_ps(to.min[b], load_half16(p + u4sm::kM));
    }
    return p;
  }
};

struct ManyU4K : ScaledMin {
  using Panel = avx512vnni::Panel;

  static SPOLA_NOINLINE const uint8_t* unpack(Panel& to, const uint8_t* p, int) {
    load_kscales(p, to.scale, to.min);
    store_origins(to);
    for (int i = 0; i < 4; ++i) {
      const uint8_t* pair = p + u4k::kPairs + i * u4k::kPairBytes;
      split<8>(pair, to.codes[2 * i], to.codes[2 * i + 1]);
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

}  // namespace spola::avx512vnni
