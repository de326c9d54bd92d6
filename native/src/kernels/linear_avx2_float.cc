// F32, F16, BF16 and E4M3 weights times f32 activations: one FMA per product, k ascending.
#include "kernels/simd_avx2.h"
#include "kernels/variants.h"

namespace spola::avx2 {
namespace {

struct F32 {
  static constexpr int kBytes = 64;
  static SPOLA_INLINE __m256 load(const uint8_t* p, int h) { return load_float8(p + h * 32); }
};
struct F16 {
  static constexpr int kBytes = 32;
  static SPOLA_INLINE __m256 load(const uint8_t* p, int h) { return load_half8(p + h * 16); }
};
struct BF16 {
  static constexpr int kBytes = 32;
  static SPOLA_INLINE __m256 load(const uint8_t* p, int h) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p + h * 16)), 16));
  }
};

template <class W, int MR>
SPOLA_INLINE void column(__m256 (&acc)[MR][2], const uint8_t* p, const float* const (&x)[MR], long k) {
  const __m256 w0 = W::load(p, 0), w1 = W::load(p, 1);
#pragma GCC unroll 4
  for (int r = 0; r < MR; ++r) {
    const __m256 b = _mm256_broadcast_ss(x[r] + k);
    acc[r][0] = _mm256_fmadd_ps(w0, b, acc[r][0]);
    acc[r][1] = _mm256_fmadd_ps(w1, b, acc[r][1]);
  }
}

template <class W>
struct Float {
  template <class N>
  static void tile(N, const uint8_t* p, const Activations& a, int row0, float* out) {
    constexpr int MR = N::value;
    const float* x[MR];
    __m256 acc[MR][2];
#pragma GCC unroll 4
    for (int r = 0; r < MR; ++r) {
      x[r] = a.f32 + (row0 + r) * static_cast<long>(a.k);
      acc[r][0] = acc[r][1] = _mm256_setzero_ps();
    }
    long k = 0;
    for (; k + 4 <= a.k; k += 4, p += 4 * W::kBytes) {
      prefetch<MR, 4 * W::kBytes>(p);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) column<W>(acc, p + i * W::kBytes, x, k + i);
    }
    for (; k < a.k; ++k, p += W::kBytes) column<W>(acc, p, x, k);
#pragma GCC unroll 4
    for (int r = 0; r < MR; ++r) {
      _mm256_storeu_ps(out + r * kTileRows, acc[r][0]);
      _mm256_storeu_ps(out + r * kTileRows + 8, acc[r][1]);
    }
  }
};

// Eight E4M3 codes as f32, divided by 256: their bits, moved, are an f16.
SPOLA_INLINE __m256 load_e4m3(const uint8_t* p) {
  const __m128i x = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m128i sign = _mm_slli_epi16(_mm_and_si128(x, _mm_set1_epi16(0x80)), 8);
  const __m128i rest = _mm_slli_epi16(_mm_and_si128(x, _mm_set1_epi16(0x7f)), 7);
  return _mm256_cvtph_ps(_mm_or_si128(sign, rest));
}

// A power of two in the scale instead of the code changes no bit of their product.
template <class N>
void e4m3(N, const uint8_t* p, const Activations& a, int row0, float* out) {
  constexpr int MR = N::value;
  const float* x[MR];
  __m256 acc[MR][2];
#pragma GCC unroll 4
  for (int r = 0; r < MR; ++r) {
    x[r] = a.f32 + (row0 + r) * static_cast<long>(a.k);
    acc[r][0] = acc[r][1] = _mm256_setzero_ps();
  }
  for (long k = 0; k < a.k; k += e4m3::kCols, p += e4m3::kBytes) {
    const __m256 most = _mm256_set1_ps(256.0f);
    const __m256 s0 = _mm256_mul_ps(load_float8(p), most), s1 = _mm256_mul_ps(load_float8(p + 32), most);
    for (long i = 0; i < e4m3::kCols; i += 4) {
      const uint8_t* qs = p + e4m3::kQs + i * kTileRows;
      prefetch<MR, 4 * kTileRows>(qs);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const __m256 w0 = _mm256_mul_ps(load_e4m3(qs + j * kTileRows), s0);
        const __m256 w1 = _mm256_mul_ps(load_e4m3(qs + j * kTileRows + 8), s1);
#pragma GCC unroll 4
        for (int r = 0; r < MR; ++r) {
          const __m256 b = _mm256_broadcast_ss(x[r] + k + i + j);
          acc[r][0] = _mm256_fmadd_ps(w0, b, acc[r][0]);
          acc[r][1] = _mm256_fmadd_ps(w1, b, acc[r][1]);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < MR; ++r) {
    _mm256_storeu_ps(out + r * kTileRows, acc[r][0]);
    _mm256_storeu_ps(out + r * kTileRows + 8, acc[r][1]);
  }
}

}  // namespace

SPOLA_TILE_KERNEL(tile_e4m3, e4m3)
SPOLA_TILE_KERNEL(tile_f32, Float<F32>::tile)
SPOLA_TILE_KERNEL(tile_f16, Float<F16>::tile)
SPOLA_TILE_KERNEL(tile_bf16, Float<BF16>::tile)

}  // namespace spola::avx2
