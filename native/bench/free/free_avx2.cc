// Kernels in a free order with AVX2. See free.h.
#include "free/attention_free.h"
#include "kernels/vector_avx2.h"

namespace spola::free_order {
namespace {

using namespace avx2;

// Dot of half h of a tile with the 32 columns of one block, in two int16 chains.
SPOLA_INLINE __m256i dot_block(const uint8_t* qs, const int8_t* q) {
  const __m256i low = _mm256_set1_epi8(15);
  __m256i even = _mm256_setzero_si256(), odd = _mm256_setzero_si256();
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m256i raw = load256(qs + j * kGroupBytes);
    even = _mm256_add_epi16(even, _mm256_maddubs_epi16(_mm256_and_si256(raw, low), bcast4(q + 4 * j)));
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(raw, 4), low);
    odd = _mm256_add_epi16(odd, _mm256_maddubs_epi16(high, bcast4(q + 16 + 4 * j)));
  }
  return pair_sum(_mm256_add_epi16(even, odd));
}

// One block of 32 columns into the sums of both halves of the tile.
template <bool Min>
SPOLA_INLINE void add_block(__m256 (&acc)[2], const uint8_t* p, const RowsA8<1>& rows, long b) {
  constexpr int kQs = Min ? u4sm::kQs : u4s::kQs;
  const __m256 da = _mm256_broadcast_ss(rows.d[0] + b);
  const __m256i zero = _mm256_madd_epi16(bcast4(rows.h[0] + b * 2), _mm256_set1_epi16(-8));
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    __m256i i = dot_block(p + kQs + h * 32, rows.q[0] + b * kBlock);
    if constexpr (!Min) i = _mm256_add_epi32(i, zero);
    acc[h] = _mm256_fmadd_ps(scaled(i, load_half8(p + h * 16)), da, acc[h]);
    if constexpr (Min) {
      acc[h] = _mm256_fmadd_ps(load_half8(p + u4sm::kM + h * 16), _mm256_broadcast_ss(rows.s[0] + b), acc[h]);
    }
  }
}

// Blocks of even and odd numbers have sums of their own.
template <bool Min>
void one(const uint8_t* p, const Activations& a, int row0, int, float* out) {
  constexpr int kBytes = Min ? u4sm::kBytes : u4s::kBytes;
  const RowsA8<1> rows(a, row0);
  __m256 even[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()}, odd[2] = {even[0], even[1]};
  const long blocks = a.k / kBlock;
  long b = 0;
  for (; b + 2 <= blocks; b += 2, p += 2 * kBytes) {
    prefetch<1, 2 * kBytes>(p);
    add_block<Min>(even, p, rows, b);
    add_block<Min>(odd, p + kBytes, rows, b + 1);
  }
  if (b < blocks) add_block<Min>(even, p, rows, b);
  _mm256_storeu_ps(out, _mm256_add_ps(even[0], odd[0]));
  _mm256_storeu_ps(out + 8, _mm256_add_ps(even[1], odd[1]));
}

}  // namespace

const Kernels kAvx2{"avx2",    FreeAttention<Vector>::run, rms_norm_free<Vector>, one<false>, one<true>,
                    nullptr, nullptr};

}  // namespace spola::free_order
