// Q6_K weights times A8 activations.
//
// Codes stay unsigned (0..63): two products fit in int16 (2 * 2 * 63 * 127 = 32004). Sums of 16 columns start
// where the zero point of 32 is off and their bits become f32 (magic.h).
#include "kernels/magic.h"
#include "kernels/panel_avx2.h"
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

// sum[r] (+)= dot of 8 columns at `at`
template <int Q, bool First, int MR>
SPOLA_INLINE void dot8(__m256i (&sum)[MR], const uint8_t* low, const uint8_t* high,
                       const int8_t* const (&q)[MR], long at) {
  __m256i chain[MR];
  chain_add<true>(chain, codes<Q>(low, high), q, at);
  chain_add<false>(chain, codes<Q>(low + kGroupBytes, high + kGroupBytes), q, at + 4);
#pragma GCC unroll 4
  for (int r = 0; r < MR; ++r) {
    const __m256i part = pair_sum(chain[r]);
    sum[r] = First ? part : _mm256_add_epi32(sum[r], part);
    SPOLA_PIN(sum[r]);
  }
}

// d times the int8 scale of half H of 32 columns, of which each row has a pair; exact.
template <int H>
SPOLA_INLINE __m256 half_scale(const uint8_t* d, const uint8_t* scales) {
  __m256i pairs = _mm256_cvtepi8_epi16(load128(scales));
  if constexpr (H == 0) pairs = _mm256_slli_epi32(pairs, 16);
  return _mm256_mul_ps(load_half8(d), _mm256_cvtepi32_ps(_mm256_srai_epi32(pairs, 16)));
}

// Half H of 32 columns, quarter Q of the half record whose codes are at low and high.
template <int Q, int H, int MR>
SPOLA_INLINE void columns16(Accumulators<MR, false>& acc, int h, const uint8_t* low, const uint8_t* high,
                            const uint8_t* d, const uint8_t* scales, const int32_t (&start)[MR][16],
                            const RowsA8<MR>& rows, long b) {
  const long at = b * kBlock + H * 16;
  low += H * 4 * kGroupBytes;
  high += H * 4 * kGroupBytes;
  __m256i sum[MR];
  dot8<Q, true>(sum, low, high, rows.q, at);
  dot8<Q, false>(sum, low + 2 * kGroupBytes, high + 2 * kGroupBytes, rows.q, at + 8);
  __asm__("" : "+r"(d), "+r"(scales), "+x"(sum[MR - 1]));  // there are no registers for scales before
  const __m256 scale = half_scale<H>(d + h * 16, scales + h * 16);
  const __m256 origin = _mm256_mul_ps(scale, _mm256_set1_ps(-kMagic));
#pragma GCC unroll 4
  for (int r = 0; r < MR; ++r) {
    const __m256i i = _mm256_add_epi32(sum[r], bcast4(&start[r][b % 8 * 2 + H]));
    const __m256 product = _mm256_fmadd_ps(scale, _mm256_castsi256_ps(i), origin);
    acc.fma(r, h, product, _mm256_castsi256_ps(bcast4(rows.d[r] + b)));
  }
}

// Where the sums of the 16 halves of a record's blocks start.
template <int MR>
SPOLA_INLINE void starts_of(int32_t (&start)[MR][16], const RowsA8<MR>& rows, long b) {
  const __m256i magic = _mm256_set1_epi32(kMagicBits);
#pragma GCC unroll 4
  for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const __m256i h = _mm256_cvtepi16_epi32(load128(rows.h[r] + 2 * b + 8 * i));
      const __m256i from = _mm256_sub_epi32(magic, _mm256_slli_epi32(h, 5));
      _mm256_store_si256(reinterpret_cast<__m256i*>(start[r] + 8 * i), from);
    }
  }
}

// 32 columns, quarter Q of the half record at `half`; `scales` are the two int8 of each row.
template <int Q, int MR>
SPOLA_INLINE void quarter(Accumulators<MR, false>& acc, const uint8_t* half, const uint8_t* d,
                          const uint8_t* scales, const int32_t (&start)[MR][16], const RowsA8<MR>& rows,
                          long b) {
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    const uint8_t* low = half + Q % 2 * 8 * kGroupBytes + h * 32;
    const uint8_t* high = half + u6k::kHigh + h * 32;
    columns16<Q, 0>(acc, h, low, high, d, scales, start, rows, b);
    columns16<Q, 1>(acc, h, low, high, d, scales, start, rows, b);
  }
}

template <class N>
void u6k(N, const uint8_t* p, const Activations& a, int row0, float* out) {
  constexpr int MR = N::value;
  const RowsA8<MR> rows(a, row0);
  Accumulators<MR, false> acc(out);
  for (long b = 0; b < a.k / kBlock; b += 8, p += u6k::kBytes) {
    prefetch<MR, u6k::kHalves>(p);
    alignas(32) int32_t start[MR][16];
    starts_of(start, rows, b);
    for (long i = 0; i < 2; ++i) {
      const uint8_t* half = p + u6k::kHalves + i * u6k::kHalfBytes;
      const uint8_t* scales = p + u6k::kScales + i * 4 * 32;
      prefetch<MR, u6k::kHalfBytes>(half);
      quarter<0>(acc, half, p + u6k::kD, scales, start, rows, b + i * 4);
      quarter<1>(acc, half, p + u6k::kD, scales + 32, start, rows, b + i * 4 + 1);
      quarter<2>(acc, half, p + u6k::kD, scales + 64, start, rows, b + i * 4 + 2);
      quarter<3>(acc, half, p + u6k::kD, scales + 96, start, rows, b + i * 4 + 3);
    }
  }
  acc.store();
}

struct ManyU6K : SixBits {
  static SPOLA_NOINLINE const uint8_t* unpack(Panel& to, const uint8_t* p, int) {
    for (int i = 0; i < 2; ++i) {
      const uint8_t* half = p + u6k::kHalves + i * u6k::kHalfBytes;
      const uint8_t* scales = p + u6k::kScales + i * 4 * 32;
      unrolled<4>([&](auto q) __attribute__((always_inline)) {
        unpack_quarter<q.value>(to, i * 4 + q.value, half, p + u6k::kD, scales + q.value * 32);
      });
    }
    return p + u6k::kBytes;
  }

 private:
  template <int Q>
  static SPOLA_INLINE void unpack_quarter(Panel& to, int b, const uint8_t* half, const uint8_t* d,
                                          const uint8_t* scales) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const int lane = h * 8;
      store_scale(to.scale[2 * b] + lane, to.origin[2 * b] + lane, half_scale<0>(d + h * 16, scales + h * 16));
      store_scale(to.scale[2 * b + 1] + lane, to.origin[2 * b + 1] + lane,
                  half_scale<1>(d + h * 16, scales + h * 16));
    }
    const uint8_t* low = half + Q % 2 * 8 * kGroupBytes;
    const uint8_t* high = half + u6k::kHigh;
#pragma GCC unroll 16
    for (int i = 0; i < kBlockBytes; i += 32) {
      _mm256_store_si256(reinterpret_cast<__m256i*>(to.codes[b] + i), codes<Q>(low + i, high + i));
    }
  }
};

}  // namespace

SPOLA_PANEL_KERNEL(tile_u6k_a8, u6k, ManyU6K)

}  // namespace spola::avx2
