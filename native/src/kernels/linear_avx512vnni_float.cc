// F32, F16, BF16 and E4M3 weights times f32 activations with AVX-512. See linear_float.h.
#include "kernels/linear_float.h"
#include "kernels/simd_avx512vnni.h"
#include "kernels/variants.h"

namespace spola::avx512vnni {
namespace {

template <int Bytes>
struct Plain {
  // No panel: broadcasts keep the two ports for loads as busy as products do theirs, so a conversion more or less shows
  // little.
  static constexpr int kRows = avx512vnni::kRows, kFew = kMaxCallRows, kColumn = Bytes, kRun = 4, kHead = 0;
  const uint8_t* p;
};

struct Simd {
  using F = __m512;
  static constexpr int kParts = 1, kRows = avx512vnni::kRows;

  template <int MR>
  using Fetch = Ahead;

  static SPOLA_INLINE F zero() { return _mm512_setzero_ps(); }
  static SPOLA_INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
  static SPOLA_INLINE void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static SPOLA_INLINE void add_product(F (&acc)[1], const F (&w)[1], const float* x) {
    acc[0] = _mm512_fmadd_ps(w[0], _mm512_set1_ps(*x), acc[0]);
  }

  struct F32 : Plain<64> {
    SPOLA_INLINE explicit F32(const uint8_t* run) : Plain{run} {}
    SPOLA_INLINE F column(int i, int) const { return load_float16(p + i * kColumn); }
  };
};

struct F16 : Plain<32> {
  SPOLA_INLINE explicit F16(const uint8_t* run) : Plain{run} {}
  SPOLA_INLINE __m512 column(int i, int) const { return load_half16(p + i * kColumn); }
};

struct BF16 : Plain<32> {
  SPOLA_INLINE explicit BF16(const uint8_t* run) : Plain{run} {}
  SPOLA_INLINE __m512 column(int i, int) const {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load256(p + i * kColumn)), 16));
  }
};

// A power of two in the scale instead of the code changes no bit of their product.
struct E4M3 {
  static constexpr int kRows = avx512vnni::kRows, kFew = kRows;
  static constexpr int kColumn = kTileRows, kRun = e4m3::kCols, kHead = e4m3::kQs;
  __m512 scale;
  const uint8_t* codes;

  SPOLA_INLINE explicit E4M3(const uint8_t* run)
      : scale(_mm512_mul_ps(load_float16(run), _mm512_set1_ps(256.0f))), codes(run + e4m3::kQs) {}
  // Sixteen codes as f32, divided by 256: their bits, moved, are an f16.
  SPOLA_INLINE __m512 column(int i, int) const {
    const void* p = codes + i * kTileRows;
    const __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(x, _mm256_set1_epi16(0x80)), 8);
    const __m256i rest = _mm256_slli_epi16(_mm256_and_si256(x, _mm256_set1_epi16(0x7f)), 7);
    return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(sign, rest)), scale);
  }
};

}  // namespace

SPOLA_FLOAT_KERNEL(tile_e4m3, Simd, E4M3)
SPOLA_FLOAT_KERNEL(tile_f32, Simd, Simd::F32)
SPOLA_FLOAT_KERNEL(tile_f16, Simd, F16)
SPOLA_FLOAT_KERNEL(tile_bf16, Simd, BF16)

}  // namespace spola::avx512vnni
