// F32, F16, BF16 and E4M3 weights times f32 activations: one FMA per product, k ascending.
#include "kernels/simd_avx512vnni.h"
#include "kernels/variants.h"

namespace spola::avx512vnni {
namespace {

struct F32 {
  static constexpr int kBytes = 64;
  static SPOLA_INLINE __m512 load(const uint8_t* p) { return load_float16(p); }
};
struct F16 {
  static constexpr int kBytes = 32;
  static SPOLA_INLINE __m512 load(const uint8_t* p) { return load_half16(p); }
};
struct BF16 {
  static constexpr int kBytes = 32;
  static SPOLA_INLINE __m512 load(const uint8_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load256(p)), 16));
  }
};

template <class W, int MR>
SPOLA_INLINE void column(__m512 (&acc)[MR], const uint8_t* p, const float* x, long stride) {
  const __m512 w = W::load(p);
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) acc[r] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[r * stride]), acc[r]);
}

template <class W>
struct Float {
  template <class N>
  static void tile(N, const uint8_t* p, const Activations& a, int row0, float* out) {
    constexpr int MR = N::value;
    const Ahead ahead(a, p);
    const long stride = a.k;
    const float* x = a.f32 + row0 * stride;
    __m512 acc[MR];
    clear(acc);
    long k = 0;
    for (; k + 4 <= stride; k += 4, p += 4 * W::kBytes) {
      ahead.fetch<4 * W::kBytes>(p);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) column<W>(acc, p + i * W::kBytes, x + k + i, stride);
    }
    for (; k < stride; ++k, p += W::kBytes) column<W>(acc, p, x + k, stride);
    store(acc, out);
  }
};

// Sixteen E4M3 codes as f32, divided by 256: their bits, moved, are an f16.
SPOLA_INLINE __m512 load_e4m3(const uint8_t* p) {
  const __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(x, _mm256_set1_epi16(0x80)), 8);
  const __m256i rest = _mm256_slli_epi16(_mm256_and_si256(x, _mm256_set1_epi16(0x7f)), 7);
  return _mm512_cvtph_ps(_mm256_or_si256(sign, rest));
}

// A power of two in the scale instead of the code changes no bit of their product.
template <class N>
void e4m3(N, const uint8_t* p, const Activations& a, int row0, float* out) {
  constexpr int MR = N::value;
  const Ahead ahead(a, p);
  const long stride = a.k;
  const float* x = a.f32 + row0 * stride;
  __m512 acc[MR];
  clear(acc);
  for (long k = 0; k < stride; k += e4m3::kCols, p += e4m3::kBytes) {
    ahead.fetch<e4m3::kQs>(p);
    const __m512 scale = _mm512_mul_ps(load_float16(p), _mm512_set1_ps(256.0f));
    for (long i = 0; i < e4m3::kCols; i += 4) {
      const uint8_t* qs = p + e4m3::kQs + i * kTileRows;
      ahead.fetch<4 * kTileRows>(qs);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const __m512 w = _mm512_mul_ps(load_e4m3(qs + j * kTileRows), scale);
#pragma GCC unroll 16
        for (int r = 0; r < MR; ++r) {
          acc[r] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[r * stride + k + i + j]), acc[r]);
        }
      }
    }
  }
  store(acc, out);
}

}  // namespace

SPOLA_TILE_KERNEL(tile_e4m3, e4m3)
SPOLA_TILE_KERNEL(tile_f32, Float<F32>::tile)
SPOLA_TILE_KERNEL(tile_f16, Float<F16>::tile)
SPOLA_TILE_KERNEL(tile_bf16, Float<BF16>::tile)

}  // namespace spola::avx512vnni
