// 8-bit codes of the generic schemes times A8 activations.
//
// maddubs of |code| and the activation with the code's sign; 2 * 128 * 127 fits in int16, then widened at once.
#include "kernels/simd_avx2.h"
#include "kernels/variants.h"

namespace spola::avx2 {
namespace {

template <int Group, bool Min>
struct Generic {
  static constexpr int kCodes = kFloatPlane * (Min ? 2 : 1);
  static constexpr int kBytes = kCodes + Group / 4 * kGroupBytes;

  template <class N>
  static void a8(N, const uint8_t* p, const Activations& a, int row0, float* out) {
    constexpr int MR = N::value;
    const RowsA8<MR> rows(a, row0);
    Accumulators<MR> acc(out);
    for (long k = 0; k < a.k; k += Group, p += kBytes) {
      prefetch<MR, kBytes>(p);
      __m256i sum[MR][2];
      dot_a8(sum, p + kCodes, rows.q, k);
#pragma GCC unroll 4
      for (int r = 0; r < MR; ++r) {
        const __m256 da = _mm256_broadcast_ss(rows.d[r] + k / kBlock);
        acc.fma(r, 0, scaled(sum[r][0], load_float8(p)), da);
        acc.fma(r, 1, scaled(sum[r][1], load_float8(p + 32)), da);
        if constexpr (Min) {
          const __m256 s = min_factor(rows, r, k, da);
          acc.fma(r, 0, load_float8(p + kFloatPlane), s);
          acc.fma(r, 1, load_float8(p + kFloatPlane + 32), s);
        }
      }
    }
    acc.store();
  }

  template <int MR>
  static SPOLA_INLINE __m256 min_factor(const RowsA8<MR>& rows, int r, long k, __m256 da) {
    if constexpr (Group == 32) return _mm256_broadcast_ss(rows.s[r] + k / kBlock);
    return _mm256_mul_ps(da, _mm256_set1_ps(static_cast<float>(rows.h[r][k / 16])));
  }

  template <int MR>
  static SPOLA_INLINE void dot_a8(__m256i (&sum)[MR][2], const uint8_t* qs, const int8_t* const (&q)[MR],
                                  long at) {
#pragma GCC unroll 8
    for (int j = 0; j < Group / 4; ++j) {
      const __m256i w0 = load256(qs + j * kGroupBytes), w1 = load256(qs + j * kGroupBytes + 32);
      const __m256i m0 = _mm256_abs_epi8(w0), m1 = _mm256_abs_epi8(w1);
#pragma GCC unroll 4
      for (int r = 0; r < MR; ++r) {
        const __m256i b = bcast4(q[r] + at + 4 * j);
        const __m256i p0 = pair_sum(_mm256_maddubs_epi16(m0, _mm256_sign_epi8(b, w0)));
        const __m256i p1 = pair_sum(_mm256_maddubs_epi16(m1, _mm256_sign_epi8(b, w1)));
        sum[r][0] = j == 0 ? p0 : _mm256_add_epi32(sum[r][0], p0);
        SPOLA_PIN(sum[r][0]);
        sum[r][1] = j == 0 ? p1 : _mm256_add_epi32(sum[r][1], p1);
        SPOLA_PIN(sum[r][1]);
      }
    }
  }
};

}  // namespace

SPOLA_TILE_KERNEL(tile_i8g16_a8, Generic<16, false>::a8)
SPOLA_TILE_KERNEL(tile_i8g16m_a8, Generic<16, true>::a8)
SPOLA_TILE_KERNEL(tile_i8g32_a8, Generic<32, false>::a8)
SPOLA_TILE_KERNEL(tile_i8g32m_a8, Generic<32, true>::a8)

}  // namespace spola::avx2
