// F32, F16, BF16 and E4M3 weights times f32 activations with AVX2. See linear_float.h.
#include "kernels/linear_float.h"
#include "kernels/simd_avx2.h"
#include "kernels/variants.h"

namespace spola::avx2 {
namespace {

constexpr int kRows = 6;  // and two registers for each, which leaves four for weights and a factor

template <int Bytes>
struct Plain {
  static constexpr int kRows = avx2::kRows, kFew = 2 * kRows, kColumn = Bytes, kRun = 4, kHead = 0;
  const uint8_t* p;
  SPOLA_INLINE const uint8_t* at(int i, int part) const { return p + i * Bytes + part * (Bytes / 2); }
};

struct Simd {
  using F = __m256;
  static constexpr int kParts = 2, kRows = avx2::kRows;

  template <int MR>
  struct Fetch {
    SPOLA_INLINE Fetch(const Activations&, const uint8_t*) {}
    template <int Bytes>
    SPOLA_INLINE void fetch(const uint8_t* p) const {
      prefetch<MR, Bytes>(p);
    }
  };

  static SPOLA_INLINE F zero() { return _mm256_setzero_ps(); }
  static SPOLA_INLINE F load(const float* p) { return _mm256_loadu_ps(p); }
  static SPOLA_INLINE void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  // In assembly, or GCC overwrites weights instead of sums, and moves and spills what it then lacks.
  static SPOLA_INLINE void add_product(F (&acc)[2], const F (&w)[2], const float* x) {
    const __m256 b = _mm256_castsi256_ps(bcast4(x));
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) __asm__("vfmadd231ps %2, %1, %0" : "+x"(acc[h]) : "x"(w[h]), "x"(b));
  }

  struct F32 : Plain<64> {
    SPOLA_INLINE explicit F32(const uint8_t* run) : Plain{run} {}
    SPOLA_INLINE F column(int i, int part) const { return load_float8(at(i, part)); }
  };
};

struct F16 : Plain<32> {
  SPOLA_INLINE explicit F16(const uint8_t* run) : Plain{run} {}
  SPOLA_INLINE __m256 column(int i, int part) const { return load_half8(at(i, part)); }
};

struct BF16 : Plain<32> {
  SPOLA_INLINE explicit BF16(const uint8_t* run) : Plain{run} {}
  SPOLA_INLINE __m256 column(int i, int part) const {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(at(i, part))), 16));
  }
};

// A power of two in the scale instead of the code changes no bit of their product.
struct E4M3 {
  static constexpr int kRows = 4, kFew = 4;  // the registers also hold scales and masks
  static constexpr int kColumn = kTileRows, kRun = e4m3::kCols, kHead = e4m3::kQs;
  __m256 scale[2];
  const uint8_t* codes;

  SPOLA_INLINE explicit E4M3(const uint8_t* run) : codes(run + e4m3::kQs) {
    const __m256 most = _mm256_set1_ps(256.0f);
#pragma GCC unroll 2
    for (int part = 0; part < 2; ++part) scale[part] = _mm256_mul_ps(load_float8(run + part * 32), most);
  }
  // Eight codes as f32, divided by 256: their bits, moved, are an f16.
  SPOLA_INLINE __m256 column(int i, int part) const {
    const void* p = codes + i * kTileRows + part * 8;
    const __m128i x = _mm_cvtepu8_epi16(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
    const __m128i sign = _mm_slli_epi16(_mm_and_si128(x, _mm_set1_epi16(0x80)), 8);
    const __m128i rest = _mm_slli_epi16(_mm_and_si128(x, _mm_set1_epi16(0x7f)), 7);
    return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(sign, rest)), scale[part]);
  }
};

}  // namespace

SPOLA_FLOAT_KERNEL(tile_e4m3, Simd, E4M3)
SPOLA_FLOAT_KERNEL(tile_f32, Simd, Simd::F32)
SPOLA_FLOAT_KERNEL(tile_f16, Simd, F16)
SPOLA_FLOAT_KERNEL(tile_bf16, Simd, BF16)

}  // namespace spola::avx2
