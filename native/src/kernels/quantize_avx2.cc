// f32 activations to int8 blocks (A8) and int16 rows (A16). See quantize_scalar.cc.
#include "kernels/math_tile.h"
#include "kernels/variants.h"
#include "kernels/vector_avx2.h"

namespace spola::avx2 {
namespace {

constexpr long kAhead = 16 * kBlock;

SPOLA_INLINE __m256i abs_bits(__m256 x) {
  return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}

SPOLA_INLINE int max_lane(__m256i x) {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
  return _mm_cvtsi128_si32(m);
}

// max |x| from its bits: 0 when tiny, or not finite (then *ok becomes false).
SPOLA_INLINE float amax_of(int bits, bool* ok) {
  if (bits >= 0x7f800000) {
    *ok = false;
    return 0;
  }
  const float amax = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(bits)));
  return amax < 0x1p-100f ? 0 : amax;
}

// Rounded codes; zeros for a block without scale, whatever is in it.
SPOLA_INLINE __m256i codes(__m256 x, float inverse) {
  if (inverse == 0) return _mm256_setzero_si256();
  return _mm256_cvtps_epi32(_mm256_mul_ps(x, _mm256_set1_ps(inverse)));
}

SPOLA_INLINE int sum_lanes(__m256i x) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
  return _mm_cvtsi128_si32(s);
}

}  // namespace

bool quantize_a8(const float* x, int k, int8_t* q, float* d, float* s, int16_t* h) {
  bool ok = true;
  for (long b = 0; b < k / kBlock; ++b, x += kBlock, q += kBlock) {
    // The hardware's own prefetch begins anew with each page, and a row of a prompt has few blocks in one.
    __builtin_prefetch(x + kAhead);
    __builtin_prefetch(x + kAhead + kBlock / 2);
    const __m256 v0 = _mm256_loadu_ps(x), v1 = _mm256_loadu_ps(x + 8);
    const __m256 v2 = _mm256_loadu_ps(x + 16), v3 = _mm256_loadu_ps(x + 24);
    const __m256i m = _mm256_max_epi32(_mm256_max_epi32(abs_bits(v0), abs_bits(v1)),
                                       _mm256_max_epi32(abs_bits(v2), abs_bits(v3)));
    const float amax = amax_of(max_lane(m), &ok);
    const float inverse = amax == 0 ? 0 : 127.0f / amax;
    const __m256i q0 = codes(v0, inverse), q1 = codes(v1, inverse);
    const __m256i q2 = codes(v2, inverse), q3 = codes(v3, inverse);
    const int first = sum_lanes(_mm256_add_epi32(q0, q1)), second = sum_lanes(_mm256_add_epi32(q2, q3));
    // Packing works within 128-bit halves; the permutation puts the dwords back in order.
    const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(q0, q1), _mm256_packs_epi32(q2, q3));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(q), _mm256_permutevar8x32_epi32(bytes, order));
    d[b] = amax / 127.0f;
    s[b] = d[b] * static_cast<float>(first + second);
    h[b * 2] = static_cast<int16_t>(first);
    h[b * 2 + 1] = static_cast<int16_t>(second);
  }
  return ok;
}

bool quantize_a16(const float* x, int k, int16_t* q, float* d) {
  bool ok = true;
  __m256i m = _mm256_setzero_si256();
  Maths<Vector>::each(k, [&](auto step, long i) { m = _mm256_max_epi32(m, abs_bits(step.load(x + i))); });
  const float amax = amax_of(max_lane(m), &ok);
  const float inverse = amax == 0 ? 0 : 32767.0f / amax;
  Maths<Vector>::each(k, [&](auto step, long i) {
    const __m256i v = codes(step.load(x + i), inverse);
    const __m128i packed = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    if constexpr (step.kWhole) {
      _mm_storeu_si128(reinterpret_cast<__m128i_u*>(q + i), packed);
    } else {
      alignas(16) int16_t last[8];
      _mm_store_si128(reinterpret_cast<__m128i*>(last), packed);
      for (long j = i; j < k; ++j) q[j] = last[j - i];
    }
  });
  *d = amax / 32767.0f;
  return ok;
}

}  // namespace spola::avx2
