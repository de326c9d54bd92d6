// Q6_K weights times A8 activations with vpdpbusd.
//
// Codes stay unsigned. Sums of 16 columns are exact in int32; a zero point of 32 is where they start: -32 times the
// sum of the activations.
#include "kernels/panel_avx512vnni.h"
#include "kernels/variants.h"

namespace spola::avx512vnni {
namespace {

// What `p` points at is not used before all of acc is there: GCC would begin with the next half early and run out of
// registers.
template <int MR>
SPOLA_INLINE void after(__m512 (&acc)[MR], const uint8_t*& p) {
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) __asm__("" : "+v"(acc[r]), "+r"(p));
}

// Codes of one group: low nibbles of quarter Q, high bit pairs of quarter Q.
template <int Q>
SPOLA_INLINE __m512i codes(const uint8_t* low, const uint8_t* high) {
  __m512i l = load512(low), h = load512(high);
  if constexpr (Q >= 2) l = _mm512_srli_epi16(l, 4);
  if constexpr (Q == 0) h = _mm512_slli_epi16(h, 4);
  if constexpr (Q == 1) h = _mm512_slli_epi16(h, 2);
  if constexpr (Q == 3) h = _mm512_srli_epi16(h, 2);
  h = _mm512_and_si512(h, _mm512_set1_epi8(0x30));
  return _mm512_ternarylogic_epi32(l, _mm512_set1_epi8(0x0f), h, 0xea);  // (l & 15) | h
}

// sum[r] = dot of the 16 columns of half H of block b, codes less 32.
template <int Q, int H, int MR>
SPOLA_INLINE void dot16(__m512i (&sum)[MR], __m512 (&acc)[MR], const uint8_t* half, const RowsA8<MR>& rows,
                        long b) {
  after(acc, half);
  const uint8_t* low = half + (Q % 2 * 8 + H * 4) * kGroupBytes;
  const uint8_t* high = half + u6k::kHigh + H * 4 * kGroupBytes;
  __m512i zero = H == 0 ? pair_of(-32, 0) : pair_of(0, -32);
  __asm__("" : "+v"(zero), "+r"(half));
  start(sum);
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) dot2(sum[r], zero, rows.halves(r, b));
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i w = codes<Q>(low + j * kGroupBytes, high + j * kGroupBytes);
    dot4_rows(sum, w, rows, b * kBlock + H * 16 + 4 * j);
  }
}

// d times the int8 scale of half H of 32 columns, of which each row has a pair; exact.
template <int H>
SPOLA_INLINE __m512 half_scale(__m512 d, __m512i pairs) {
  if constexpr (H == 0) pairs = _mm512_slli_epi32(pairs, 16);
  return _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_srai_epi32(pairs, 16)));
}

SPOLA_INLINE __m512i load_pairs(const uint8_t* scales) { return _mm512_cvtepi8_epi16(load256(scales)); }

// The same, not before `sum` is there: all registers are taken until then.
template <int H>
SPOLA_INLINE __m512 half_scale(const uint8_t* d, const uint8_t* scales, __m512i& sum) {
  __asm__("" : "+r"(d), "+r"(scales), "+v"(sum));
  return half_scale<H>(load_half16(d), load_pairs(scales));
}

// 32 columns, quarter Q of the half record at `half`.
template <int Q, int MR>
SPOLA_INLINE void quarter(__m512 (&acc)[MR], const uint8_t* half, const uint8_t* d, const uint8_t* scales,
                          const RowsA8<MR>& rows, long b) {
  __m512i sum[MR];
  dot16<Q, 0>(sum, acc, half, rows, b);
  add_scaled(acc, sum, half_scale<0>(d, scales, sum[MR - 1]), rows, b);
  dot16<Q, 1>(sum, acc, half, rows, b);
  RowsA8<MR> again = rows;
  __asm__("" : "+r"(again.d));  // or GCC would keep every row's scale of the first half
  add_scaled(acc, sum, half_scale<1>(d, scales, sum[MR - 1]), again, b);
}

template <class N>
void u6k(N, const uint8_t* p, const Activations& a, int row0, float* out) {
  constexpr int MR = N::value;
  const Ahead ahead(a, p);
  const RowsA8<MR> rows(a, row0);
  __m512 acc[MR];
  clear(acc);
  for (long b = 0; b < rows.blocks; b += 8, p += u6k::kBytes) {
    ahead.fetch<u6k::kHalves>(p);
    for (long i = 0; i < 2; ++i) {
      const uint8_t* half = p + u6k::kHalves + i * u6k::kHalfBytes;
      const uint8_t* scales = p + u6k::kScales + i * 4 * 32;
      ahead.fetch<u6k::kHalfBytes>(half);
      quarter<0>(acc, half, p + u6k::kD, scales, rows, b + i * 4);
      quarter<1>(acc, half, p + u6k::kD, scales + 32, rows, b + i * 4 + 1);
      quarter<2>(acc, half, p + u6k::kD, scales + 64, rows, b + i * 4 + 2);
      quarter<3>(acc, half, p + u6k::kD, scales + 96, rows, b + i * 4 + 3);
    }
  }
  store(acc, out);
}

struct ManyU6K {
  using Panel = PanelOf<2>;  // of the two halves of a block

  template <int Q>
  static SPOLA_INLINE void quarter(Panel& to, int b, const uint8_t* half, __m512 d, const uint8_t* scales) {
    const __m512i pairs = load_pairs(scales);
    const __m512 first = half_scale<0>(d, pairs), second = half_scale<1>(d, pairs);
    _mm512_store_ps(to.scale[2 * b], first);
    _mm512_store_ps(to.scale[2 * b + 1], second);
    _mm512_store_ps(to.origin[2 * b], origin_of(first));
    _mm512_store_ps(to.origin[2 * b + 1], origin_of(second));
    const uint8_t* low = half + Q % 2 * 8 * kGroupBytes;
    const uint8_t* high = half + u6k::kHigh;
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const long at = j * kGroupBytes;
      _mm512_store_si512(to.codes[b] + at, codes<Q>(low + at, high + at));
    }
  }

  static SPOLA_NOINLINE const uint8_t* unpack(Panel& to, const uint8_t* p, int) {
    const __m512 d = load_half16(p + u6k::kD);
    for (int i = 0; i < 2; ++i) {
      const uint8_t* half = p + u6k::kHalves + i * u6k::kHalfBytes;
      const uint8_t* scales = p + u6k::kScales + i * 4 * 32;
      quarter<0>(to, i * 4, half, d, scales);
      quarter<1>(to, i * 4 + 1, half, d, scales + 32);
      quarter<2>(to, i * 4 + 2, half, d, scales + 64);
      quarter<3>(to, i * 4 + 3, half, d, scales + 96);
    }
    return p + u6k::kBytes;
  }

  template <int MR>
  static SPOLA_INLINE void block(__m512 (&acc)[MR], const Panel& panel, long b, const GroupRecord<MR>& rows) {
    __m512i sum[MR];
#pragma GCC unroll 16
    for (int r = 0; r < MR; ++r) sum[r] = rows.start(RowPlane::kHalf0, r);
    dot_bytes<4>(sum, panel.codes[b], rows, 0);
    add_scaled(acc, sum, panel.scale[2 * b], panel.origin[2 * b], rows);
    GroupRecord<MR> rest = rows;
    after(acc, rest.p);
#pragma GCC unroll 16
    for (int r = 0; r < MR; ++r) sum[r] = rest.start(RowPlane::kHalf1, r);
    dot_bytes<4>(sum, panel.codes[b] + 4 * kGroupBytes, rest, 16);
    add_scaled(acc, sum, panel.scale[2 * b + 1], panel.origin[2 * b + 1], rest);
  }
};

}  // namespace

SPOLA_PANEL_KERNEL(tile_u6k_a8, u6k, ManyU6K)

}  // namespace spola::avx512vnni
