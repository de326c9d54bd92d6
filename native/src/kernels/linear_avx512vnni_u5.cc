// 5-bit weights times A8 activations with vpdpbusd: Q5_0, Q5_1, Q5_K. As for 4 bits; 32 * 31 * 127 is exact.
#include "kernels/panel_avx512vnni.h"
#include "kernels/variants.h"

namespace spola::avx512vnni {
namespace {

// Codes of one group: low (Shift 0) or high (Shift 4) nibbles, and fifth bit J of each byte of the plane.
template <int Shift, int J>
SPOLA_INLINE __m512i codes(const uint8_t* qs, __m512i plane) {
  __m512i w = load512(qs), bit = plane;
  if constexpr (Shift != 0) w = _mm512_srli_epi16(w, Shift);
  if constexpr (J < 4) bit = _mm512_slli_epi32(plane, 4 - J);
  if constexpr (J > 4) bit = _mm512_srli_epi32(plane, J - 4);
  bit = _mm512_and_si512(bit, _mm512_set1_epi8(16));
  return _mm512_ternarylogic_epi32(w, _mm512_set1_epi8(15), bit, 0xea);  // (w & 15) | bit
}

// sum[r] += dot of columns 4 First .. 4 First + 15; group First + i is the nibbles at qs + i groups.
template <int Shift, int First, int MR>
SPOLA_INLINE void dot16(__m512i (&sum)[MR], const uint8_t* qs, __m512i plane, const RowsA8<MR>& rows,
                        long at) {
  dot4_rows(sum, codes<Shift, First>(qs, plane), rows, at);
  dot4_rows(sum, codes<Shift, First + 1>(qs + kGroupBytes, plane), rows, at + 4);
  dot4_rows(sum, codes<Shift, First + 2>(qs + 2 * kGroupBytes, plane), rows, at + 8);
  dot4_rows(sum, codes<Shift, First + 3>(qs + 3 * kGroupBytes, plane), rows, at + 12);
}

// Low nibbles are columns 0..15, high nibbles 16..31 of four groups.
template <int MR>
SPOLA_INLINE void dot_split(__m512i (&sum)[MR], const uint8_t* qs, const uint8_t* plane,
                            const RowsA8<MR>& rows, long at) {
  const __m512i bits = load512(plane);
  dot16<0, 0>(sum, qs, bits, rows, at);
  dot16<4, 4>(sum, qs, bits, rows, at + 16);
}

template <class N>
void u5s(N, const uint8_t* p, const Activations& a, int row0, float* out) {
  constexpr int MR = N::value;
  const Ahead ahead(a, p);
  const RowsA8<MR> rows(a, row0);
  __m512 acc[MR];
  clear(acc);
  for (long b = 0; b < rows.blocks; ++b, p += u5s::kBytes) {
    ahead.fetch<u5s::kBytes>(p);
    __m512i sum[MR];
    start_at_zero_point(sum, 16, rows, b);
    dot_split(sum, p + u5s::kQs, p + u5s::kPlane, rows, b * kBlock);
    add_scaled(acc, sum, load_half16(p + u5s::kD), rows, b);
  }
  store(acc, out);
}

template <class N>
void u5sm(N, const uint8_t* p, const Activations& a, int row0, float* out) {
  constexpr int MR = N::value;
  const Ahead ahead(a, p);
  const RowsA8<MR> rows(a, row0);
  __m512 acc[MR];
  clear(acc);
  for (long b = 0; b < rows.blocks; ++b, p += u5sm::kBytes) {
    ahead.fetch<u5sm::kBytes>(p);
    __m512i sum[MR];
    start(sum);
    dot_split(sum, p + u5sm::kQs, p + u5sm::kPlane, rows, b * kBlock);
    add_scale_min(acc, sum, load_half16(p + u5sm::kD), load_half16(p + u5sm::kM), rows, b);
  }
  store(acc, out);
}

// One sub-block of 32 columns: the low (Shift 0) or high (Shift 4) nibbles of a pair.
template <int Shift, int MR>
SPOLA_INLINE void sub_block(__m512 (&acc)[MR], const uint8_t* pair, const float* scale, const float* min,
                            const RowsA8<MR>& rows, long b) {
  const __m512i bits = load512(pair + (Shift != 0 ? kGroupBytes : 0));
  const uint8_t* qs = pair + u5k::kPlanes;
  __m512i sum[MR];
  start(sum);
  dot16<Shift, 0>(sum, qs, bits, rows, b * kBlock);
  dot16<Shift, 4>(sum, qs + 4 * kGroupBytes, bits, rows, b * kBlock + 16);
  add_scale_min(acc, sum, _mm512_load_ps(scale), _mm512_load_ps(min), rows, b);
}

template <class N>
void u5k(N, const uint8_t* p, const Activations& a, int row0, float* out) {
  constexpr int MR = N::value;
  const Ahead ahead(a, p);
  const RowsA8<MR> rows(a, row0);
  __m512 acc[MR];
  clear(acc);
  KScales scales;
  for (long b = 0; b < rows.blocks; b += 8, p += u5k::kBytes) {
    ahead.fetch<u5k::kPairs>(p);
    scales.load(p);
    for (long i = 0; i < 4; ++i) {
      const uint8_t* pair = p + u5k::kPairs + i * u5k::kPairBytes;
      ahead.fetch<u5k::kPairBytes>(pair);
      sub_block<0>(acc, pair, scales.scale[i * 2], scales.min[i * 2], rows, b + i * 2);
      sub_block<4>(acc, pair, scales.scale[i * 2 + 1], scales.min[i * 2 + 1], rows, b + i * 2 + 1);
    }
  }
  store(acc, out);
}

// The bytes of groups First .. First + 3, whose nibbles are at qs.
template <int Shift, int First>
SPOLA_INLINE void unpack4(const uint8_t* qs, __m512i plane, uint8_t* to) {
  _mm512_store_si512(to, codes<Shift, First>(qs, plane));
  _mm512_store_si512(to + kGroupBytes, codes<Shift, First + 1>(qs + kGroupBytes, plane));
  _mm512_store_si512(to + 2 * kGroupBytes, codes<Shift, First + 2>(qs + 2 * kGroupBytes, plane));
  _mm512_store_si512(to + 3 * kGroupBytes, codes<Shift, First + 3>(qs + 3 * kGroupBytes, plane));
}

SPOLA_INLINE void unpack_split(const uint8_t* qs, const uint8_t* plane, uint8_t* to) {
  const __m512i bits = load512(plane);
  unpack4<0, 0>(qs, bits, to);
  unpack4<4, 4>(qs, bits, to + 4 * kGroupBytes);
}

struct ManyU5S : Scaled<RowPlane::kZero16> {
  using Panel = avx512vnni::Panel;

  static SPOLA_NOINLINE const uint8_t* unpack(Panel& to, const uint8_t* p, int blocks) {
    for (int b = 0; b < blocks; ++b, p += u5s::kBytes) {
      unpack_split(p + u5s::kQs, p + u5s::kPlane, to.codes[b]);
      store_scale(to, b, load_half16(p + u5s::kD));
    }
    return p;
  }
};

struct ManyU5SM : ScaledMin {
  using Panel = avx512vnni::Panel;

  static SPOLA_NOINLINE const uint8_t* unpack(Panel& to, const uint8_t* p, int blocks) {
    for (int b = 0; b < blocks; ++b, p += u5sm::kBytes) {
      unpack_split(p + u5sm::kQs, p + u5sm::kPlane, to.codes[b]);
      store_scale(to, b, load_half16(p + u5sm::kD));
      _mm512_store_ps(to.min[b], load_half16(p + u5sm::kM));
    }
    return p;
  }
};

struct ManyU5K : ScaledMin {
  using Panel = avx512vnni::Panel;

  static SPOLA_NOINLINE const uint8_t* unpack(Panel& to, const uint8_t* p, int) {
    load_kscales(p, to.scale, to.min);
    store_origins(to);
    for (int i = 0; i < 4; ++i) {
      const uint8_t* pair = p + u5k::kPairs + i * u5k::kPairBytes;
      const uint8_t* qs = pair + u5k::kPlanes;
      sub_block_bytes<0>(pair, qs, to.codes[2 * i]);
      sub_block_bytes<4>(pair, qs, to.codes[2 * i + 1]);
    }
    return p + u5k::kBytes;
  }

 private:
  template <int Shift>
  static SPOLA_INLINE void sub_block_bytes(const uint8_t* pair, const uint8_t* qs, uint8_t* to) {
    const __m512i bits = load512(pair + (Shift != 0 ? kGroupBytes : 0));
    unpack4<Shift, 0>(qs, bits, to);
    unpack4<Shift, 4>(qs + 4 * kGroupBytes, bits, to + 4 * kGroupBytes);
  }
};

}  // namespace

SPOLA_PANEL_KERNEL(tile_u5s_a8, u5s, ManyU5S)
SPOLA_PANEL_KERNEL(tile_u5sm_a8, u5sm, ManyU5SM)
SPOLA_PANEL_KERNEL(tile_u5k_a8, u5k, ManyU5K)

}  // namespace spola::avx512vnni
