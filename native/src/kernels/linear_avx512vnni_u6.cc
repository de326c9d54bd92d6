// Q6_K weights times A8 activations with vpdpbusd.
//
// The dots of both halves of 32 columns, zero point taken off, are exact in int32 and at most 16 * 32 * 127 =
// 65024, so that they and their products with int8 scales (at most 2 * 128 * 65024 < 2^24 in all) are exact
// in f32 too: the integer i of docs/numerics.md is formed by two FMAs, which are cheaper than vpmulld. The
// f32 accumulators live in `out` (L1), which leaves the registers to the two stages of i.
#include "kernels/panel_avx512vnni.h"
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

// The 16 values at `sum` += x * y.
SPOLA_INLINE void add_to_memory(float* sum, __m512 x, __m512 y) {
  _mm512_storeu_ps(sum, _mm512_fmadd_ps(x, y, load_float16(sum)));
  // Without this GCC remembers what it stored and keeps a second copy on the stack.
  __asm__("" : "+m"(*reinterpret_cast<__m512_u*>(sum)));
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
    i[r] = _mm512_fmadd_ps(second, _mm512_cvtepi32_ps(sum[r]), i[r]);
    add_to_memory(out + r * kTileRows, _mm512_mul_ps(dw, rows.scale(r, b)), i[r]);
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

// Many rows. First halves are summed up from kMagic's bits, so that they are, read as f32, kMagic + i0. With
// the exact product -scale * kMagic as its addend one FMA makes scale * i0 of that exactly, and +0 of a zero,
// which spares the conversion.
struct ManyU6K {
  struct Panel {
    alignas(64) uint8_t codes[kPanelBlocks][kBlockBytes];
    alignas(64) float first[kPanelBlocks][kTileRows];   // scales of the two halves of a block
    alignas(64) float second[kPanelBlocks][kTileRows];
    alignas(64) float origin[kPanelBlocks][kTileRows];  // -first * kMagic
    alignas(64) float d[kTileRows];
  };

  template <int Q>
  static SPOLA_INLINE void quarter(Panel& to, int b, const uint8_t* half, const uint8_t* scales) {
    const __m512i pair = _mm512_cvtepi8_epi16(load256(scales));
    const __m512 first = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(pair, 16), 16));
    _mm512_store_ps(to.first[b], first);
    _mm512_store_ps(to.second[b], _mm512_cvtepi32_ps(_mm512_srai_epi32(pair, 16)));
    _mm512_store_ps(to.origin[b], _mm512_mul_ps(first, _mm512_set1_ps(-kMagic)));
    const uint8_t* low = half + Q % 2 * 8 * kGroupBytes;
    const uint8_t* high = half + u6k::kHigh;
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const long at = j * kGroupBytes;
      _mm512_store_si512(to.codes[b] + at, codes<Q>(low + at, high + at));
    }
  }

  static SPOLA_NOINLINE const uint8_t* unpack(Panel& to, const uint8_t* p, int) {
    _mm512_store_ps(to.d, load_half16(p + u6k::kD));
    for (int i = 0; i < 2; ++i) {
      const uint8_t* half = p + u6k::kHalves + i * u6k::kHalfBytes;
      const uint8_t* scales = p + u6k::kScales + i * 4 * 32;
      quarter<0>(to, i * 4, half, scales);
      quarter<1>(to, i * 4 + 1, half, scales + 32);
      quarter<2>(to, i * 4 + 2, half, scales + 64);
      quarter<3>(to, i * 4 + 3, half, scales + 96);
    }
    return p + u6k::kBytes;
  }

  static constexpr bool kSumsInMemory = true;  // the registers hold the two stages of i

  template <int MR>
  static SPOLA_INLINE void block(float* out, const Panel& panel, long b, const GroupRecord<MR>& rows) {
    __m512i sum[MR];
    __m512 i[MR];
#pragma GCC unroll 16
    for (int r = 0; r < MR; ++r) sum[r] = rows.first(r);
    dot_bytes<4>(sum, panel.codes[b], rows, 0);
    const __m512 first = _mm512_load_ps(panel.first[b]), origin = _mm512_load_ps(panel.origin[b]);
#pragma GCC unroll 16
    for (int r = 0; r < MR; ++r) i[r] = _mm512_fmadd_ps(first, _mm512_castsi512_ps(sum[r]), origin);
#pragma GCC unroll 16
    for (int r = 0; r < MR; ++r) sum[r] = rows.second(r);
    dot_bytes<4>(sum, panel.codes[b] + 4 * kGroupBytes, rows, 16);
    const __m512 second = _mm512_load_ps(panel.second[b]), d = _mm512_load_ps(panel.d);
#pragma GCC unroll 16
    for (int r = 0; r < MR; ++r) {
      i[r] = _mm512_fmadd_ps(second, _mm512_cvtepi32_ps(sum[r]), i[r]);
      add_to_memory(out + r * kTileRows, _mm512_mul_ps(d, rows.scale(r)), i[r]);
    }
  }
};

}  // namespace

SPOLA_PANEL_KERNEL(tile_u6k_a8, u6k, ManyU6K)

}  // namespace spola::avx512vnni
