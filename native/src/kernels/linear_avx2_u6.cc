// Q6_K weights times A8 activations.
//
// Codes stay unsigned (0..63): two products fit in int16 (2 * 2 * 63 * 127 = 32004), and the widening madd
// multiplies by the int8 scale of the 16 columns at once. The zero point of 32 is taken off in int32.
#include "kernels/simd_avx2.h"
#include "kernels/variants.h"

namespace spola::avx2 {
namespace {

// Codes of 8 rows of one group: low nibbles of quarter Q, high bit pairs of quarter Q.
template <int Q>
SPOLA_INLINE __m256i codes(const uint8_t* low, const uint8_t* high) {
  __m256i l = load256(low), h = load256(high);
  if constexpr (Q >= 2) l = _mm256_srli_epi16(l, 4);
  if constexpr (Q == 0) h = _mm256_slli_epi16(h, 4);
  if constexpr (Q == 1) h = _mm256_slli_epi16(h, 2);
  if constexpr (Q == 3) h = _mm256_srli_epi16(h, 2);
  return _mm256_or_si256(_mm256_and_si256(l, _mm256_set1_epi8(0x0f)),
                         _mm256_and_si256(h, _mm256_set1_epi8(0x30)));
}

// sum[r] (+)= scale * (dot of 8 columns at `at`)
template <int Q, bool First, int MR>
SPOLA_INLINE void dot8(__m256i (&sum)[MR], const uint8_t* low, const uint8_t* high, __m256i scale,
                       const int8_t* const (&q)[MR], long at) {
  __m256i chain[MR];
  chain_add<true>(chain, codes<Q>(low, high), q, at);
  chain_add<false>(chain, codes<Q>(low + kGroupBytes, high + kGroupBytes), q, at + 4);
#pragma GCC unroll 4
  for (int r = 0; r < MR; ++r) {
    const __m256i part = _mm256_madd_epi16(chain[r], scale);
    sum[r] = First ? part : _mm256_add_epi32(sum[r], part);
    SPOLA_PIN(sum[r]);
  }
}

// 32 columns, quarter Q of the half record at `half`; `scales` are the two int8 of each row.
template <int Q, int MR>
SPOLA_INLINE void quarter(Accumulators<MR, false>& acc, const uint8_t* half, const uint8_t* d,
                          const uint8_t* scales, const RowsA8<MR>& rows, long b) {
  const __m256i even = _mm256_set1_epi32(0x01000100), odd = _mm256_set1_epi32(0x03020302);
  // The same for each dword of a 128-bit half: bytes 4i, 4i + 1 (or 4i + 2, 4i + 3), twice.
  const __m256i lane =
      _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c, 0, 0x04040404, 0x08080808, 0x0c0c0c0c);
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    const __m256i pair = _mm256_cvtepi8_epi16(load128(scales + h * 16));
    const __m256i first = _mm256_shuffle_epi8(pair, _mm256_add_epi8(lane, even));
    const __m256i second = _mm256_shuffle_epi8(pair, _mm256_add_epi8(lane, odd));
    const uint8_t* low = half + Q % 2 * 8 * kGroupBytes + h * 32;
    const uint8_t* high = half + u6k::kHigh + h * 32;
    __m256i sum[MR];
    dot8<Q, true>(sum, low, high, first, rows.q, b * kBlock);
    dot8<Q, false>(sum, low + 2 * kGroupBytes, high + 2 * kGroupBytes, first, rows.q, b * kBlock + 8);
    dot8<Q, false>(sum, low + 4 * kGroupBytes, high + 4 * kGroupBytes, second, rows.q, b * kBlock + 16);
    dot8<Q, false>(sum, low + 6 * kGroupBytes, high + 6 * kGroupBytes, second, rows.q, b * kBlock + 24);
    const __m256 dw = load_half8(d + h * 16);
#pragma GCC unroll 4
    for (int r = 0; r < MR; ++r) {
      const __m256i zero = _mm256_slli_epi32(_mm256_madd_epi16(pair, bcast4(rows.h[r] + b * 2)), 5);
      const __m256 i = _mm256_cvtepi32_ps(_mm256_sub_epi32(sum[r], zero));
      acc.fma(r, h, _mm256_mul_ps(dw, _mm256_broadcast_ss(rows.d[r] + b)), i);
    }
  }
}

template <class N>
void u6k(N, const uint8_t* p, const Activations& a, int row0, float* out) {
  constexpr int MR = N::value;
  const RowsA8<MR> rows(a, row0);
  Accumulators<MR, false> acc(out);
  for (long b = 0; b < a.k / kBlock; b += 8, p += u6k::kBytes) {
    prefetch<MR, u6k::kHalves>(p);
    for (long i = 0; i < 2; ++i) {
      const uint8_t* half = p + u6k::kHalves + i * u6k::kHalfBytes;
      const uint8_t* scales = p + u6k::kScales + i * 4 * 32;
      prefetch<MR, u6k::kHalfBytes>(half);
      quarter<0>(acc, half, p + u6k::kD, scales, rows, b + i * 4);
      quarter<1>(acc, half, p + u6k::kD, scales + 32, rows, b + i * 4 + 1);
      quarter<2>(acc, half, p + u6k::kD, scales + 64, rows, b + i * 4 + 2);
      quarter<3>(acc, half, p + u6k::kD, scales + 96, rows, b + i * 4 + 3);
    }
  }
  acc.store();
}

}  // namespace

SPOLA_TILE_KERNEL(tile_u6k_a8, u6k)

}  // namespace spola::avx2
