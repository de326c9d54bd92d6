// Q6_K weights times A8 activations with vpdpbusd.
//
// The dots of both halves of 32 columns, zero point taken off, are exact in int32 and at most 16 * 32 * 127 =
// 65024, so that they and their products with int8 scales (at most 2 * 128 * 65024 < 2^24 in all) are exact
// in f32 too: the integer i of docs/numerics.md is formed by two FMAs, which are cheaper than vpmulld. The
// f32 accumulators live in `out` (L1), which leaves the registers to the two stages of i.
#include "kernels/simd_avx512vnni.h"
#include "kernels/variants.h"

namespace spola::avx512vnni {
namespace {

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
SPOLA_INLINE void dot16(__m512i (&sum)[MR], const uint8_t* half, const RowsA8<MR>& rows, long b) {
  const uint8_t* low = half + (Q % 2 * 8 + H * 4) * kGroupBytes;
  const uint8_t* high = half + u6k::kHigh + H * 4 * kGroupBytes;
  const __m512i zero = H == 0 ? pair_of(-32, 0) : pair_of(0, -32);
  clear(sum);
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) dot2(sum[r], zero, rows.halves(r, b));
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i w = codes<Q>(low + j * kGroupBytes, high + j * kGroupBytes);
    dot4_rows(sum, w, rows, b * kBlock + H * 16 + 4 * j);
  }
}

// 32 columns, quarter Q of the half record at `half`; `scales` are the two int8 of each row.
template <int Q, int MR>
SPOLA_INLINE void quarter(float* out, const uint8_t* half, const uint8_t* d, const uint8_t* scales,
                          const RowsA8<MR>& rows, long b) {
  const __m512i pair = _mm512_cvtepi8_epi16(load256(scales));
  const __m512 first = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(pair, 16), 16));
  const __m512 second = _mm512_cvtepi32_ps(_mm512_srai_epi32(pair, 16));
  __m512i sum[MR];
  __m512 i[MR];
  dot16<Q, 0>(sum, half, rows, b);
// Adding +0 keeps a zero positive, as that of an integer is.
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) i[r] = _mm512_fmadd_ps(first, _mm512_cvtepi32_ps(sum[r]), _mm512_setzero_ps());
  dot16<Q, 1>(sum, half, rows, b);
  const __m512 dw = load_half16(d);
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) {
    float* acc = out + r * kTileRows;
    i[r] = _mm512_fmadd_ps(second, _mm512_cvtepi32_ps(sum[r]), i[r]);
    _mm512_storeu_ps(acc, _mm512_fmadd_ps(_mm512_mul_ps(dw, rows.scale(r, b)), i[r], load_float16(acc)));
    // Without this GCC remembers what it stored and keeps a second copy on the stack.
    __asm__("" : "+m"(*reinterpret_cast<__m512_u*>(acc)));
  }
}

template <class N>
void u6k(N, const uint8_t* p, const Activations& a, int row0, float* out) {
  constexpr int MR = N::value;
  const Ahead ahead(a, p);
  const RowsA8<MR> rows(a, row0);
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) _mm512_storeu_ps(out + r * kTileRows, _mm512_setzero_ps());
  for (long b = 0; b < rows.blocks; b += 8, p += u6k::kBytes) {
    ahead.fetch<u6k::kHalves>(p);
    for (long i = 0; i < 2; ++i) {
      const uint8_t* half = p + u6k::kHalves + i * u6k::kHalfBytes;
      const uint8_t* scales = p + u6k::kScales + i * 4 * 32;
      ahead.fetch<u6k::kHalfBytes>(half);
      quarter<0>(out, half, p + u6k::kD, scales, rows, b + i * 4);
      quarter<1>(out, half, p + u6k::kD, scales + 32, rows, b + i * 4 + 1);
      quarter<2>(out, half, p + u6k::kD, scales + 64, rows, b + i * 4 + 2);
      quarter<3>(out, half, p + u6k::kD, scales + 96, rows, b + i * 4 + 3);
    }
  }
}

}  // namespace

SPOLA_TILE_KERNEL(tile_u6k_a8, u6k)

}  // namespace spola::avx512vnni
