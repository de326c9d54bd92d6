// F32, F16 and BF16 weights times f32 activations: one FMA per product, k ascending.
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

}  // namespace

SPOLA_TILE_KERNEL(tile_f32, Float<F32>::tile)
SPOLA_TILE_KERNEL(tile_f16, Float<F16>::tile)
SPOLA_TILE_KERNEL(tile_bf16, Float<BF16>::tile)

}  // namespace spola::avx512vnni
