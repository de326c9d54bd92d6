// Small pieces that the AVX2 sources share. For those sources only.
//
// Everything has internal linkage, and AVX2 sources use no inline functions or containers of the standard
// library: the linker could otherwise keep the AVX2 copy of such a function for code that runs anywhere.
#pragma once

#include <immintrin.h>

#include "kernels/inline.h"
#include "kernels/records.h"

// Makes the value opaque to the optimizer, in a register. Without it GCC reassociates chains of sums into
// trees of spilled temporaries.
#define SPOLA_PIN(v) __asm__("" : "+x"(v))

namespace spola::avx2 {
namespace {

struct __attribute__((packed, may_alias)) Dword {
  uint32_t value;
};

// Four bytes in all lanes. Volatile, so that GCC neither shares nor spills it: a broadcast load is as cheap
// as a reload from the stack. Address sanitizers do not see into it, hence their plain version.
SPOLA_INLINE __m256i bcast4(const void* p) {
#if defined(__SANITIZE_ADDRESS__)
  return _mm256_set1_epi32(static_cast<int>(static_cast<const Dword*>(p)->value));
#else
  __m256i v;
  __asm__ volatile("vpbroadcastd %1, %0" : "=x"(v) : "m"(*static_cast<const Dword*>(p)));
  return v;
#endif
}

SPOLA_INLINE __m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i_u*>(p)); }
SPOLA_INLINE __m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i_u*>(p)); }

// Eight f16 as f32.
SPOLA_INLINE __m256 load_half8(const uint8_t* p) { return _mm256_cvtph_ps(load128(p)); }

SPOLA_INLINE __m256 load_float8(const void* p) { return _mm256_loadu_ps(static_cast<const float*>(p)); }

// Rows are prefetched only when one activation row makes the kernel wait for memory: about 1 KB ahead is
// far enough to hide DRAM and near enough to stay in L1.
constexpr int kPrefetchAhead = 1024;

template <int MR, int Bytes>
SPOLA_INLINE void prefetch(const uint8_t* p) {
  if constexpr (MR == 1) {
#pragma GCC unroll 64
    for (int i = 0; i < Bytes; i += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(p + kPrefetchAhead + i), _MM_HINT_T0);
    }
  }
}

// The f32 accumulators of a 16 x MR tile: in registers for one row, in `out` (that is, L1) for more, which
// leaves the sixteen registers to the integer part.
template <int MR, bool InRegisters = MR == 1>
struct Accumulators {
  static constexpr bool kInRegisters = InRegisters;
  __m256 v[MR][2];
  float* out;

  SPOLA_INLINE explicit Accumulators(float* o) : out(o) {
#pragma GCC unroll 4
    for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) set(r, h, _mm256_setzero_ps());
    }
  }
  SPOLA_INLINE __m256 get(int r, int h) const {
    if constexpr (kInRegisters) return v[r][h];
    return _mm256_loadu_ps(out + r * kTileRows + h * 8);
  }
  SPOLA_INLINE void set(int r, int h, __m256 x) {
    if constexpr (kInRegisters) {
      v[r][h] = x;
    } else {
      float* p = out + r * kTileRows + h * 8;
      _mm256_storeu_ps(p, x);
      // Without this GCC remembers what it stored and keeps a second copy on the stack.
      __asm__("" : "+m"(*reinterpret_cast<__m256_u*>(p)));
    }
  }
  // acc = fma(a, b, acc)
  SPOLA_INLINE void fma(int r, int h, __m256 a, __m256 b) { set(r, h, _mm256_fmadd_ps(a, b, get(r, h))); }

  // Stores the result, scaled where `scale` gives a factor per row.
  SPOLA_INLINE void store() {
    if constexpr (kInRegisters) {
#pragma GCC unroll 4
      for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) _mm256_storeu_ps(out + r * kTileRows + h * 8, v[r][h]);
      }
    }
  }
  SPOLA_INLINE void store_scaled(const float* scale) {
#pragma GCC unroll 4
    for (int r = 0; r < MR; ++r) {
      const __m256 s = _mm256_broadcast_ss(scale + r);
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) _mm256_storeu_ps(out + r * kTileRows + h * 8, _mm256_mul_ps(get(r, h), s));
    }
  }
};

// A8 activations of MR rows.
template <int MR>
struct RowsA8 {
  const int8_t* q[MR];
  const float* d[MR];
  const float* s[MR];
  const int16_t* h[MR];

  SPOLA_INLINE RowsA8(const Activations& a, int row0) {
    const long k = a.k;
#pragma GCC unroll 4
    for (int r = 0; r < MR; ++r) {
      q[r] = a.q8 + (row0 + r) * k;
      d[r] = a.d8 + (row0 + r) * (k / 32);
      s[r] = a.s8 + (row0 + r) * (k / 32);
      h[r] = a.h8 + (row0 + r) * (k / 16);
    }
  }
};

// chain[r] (+)= pairs of u8 * s8 as int16, for 8 rows of 4 columns at q[r] + at.
template <bool First, int MR>
SPOLA_INLINE void chain_add(__m256i (&chain)[MR], __m256i w, const int8_t* const (&q)[MR], long at) {
#pragma GCC unroll 4
  for (int r = 0; r < MR; ++r) {
    const __m256i product = _mm256_maddubs_epi16(w, bcast4(q[r] + at));
    chain[r] = First ? product : _mm256_add_epi16(chain[r], product);
    SPOLA_PIN(chain[r]);
  }
}

// The same for 16 rows at once: one broadcast serves both halves.
template <bool First, int MR>
SPOLA_INLINE void chain_add(__m256i (&chain)[MR][2], __m256i w0, __m256i w1, const int8_t* const (&q)[MR],
                            long at) {
#pragma GCC unroll 4
  for (int r = 0; r < MR; ++r) {
    const __m256i b = bcast4(q[r] + at);
    const __m256i p0 = _mm256_maddubs_epi16(w0, b), p1 = _mm256_maddubs_epi16(w1, b);
    chain[r][0] = First ? p0 : _mm256_add_epi16(chain[r][0], p0);
    SPOLA_PIN(chain[r][0]);
    chain[r][1] = First ? p1 : _mm256_add_epi16(chain[r][1], p1);
    SPOLA_PIN(chain[r][1]);
  }
}

// int16 pairs summed to int32.
SPOLA_INLINE __m256i pair_sum(__m256i x) { return _mm256_madd_epi16(x, _mm256_set1_epi16(1)); }

// scale * float(i), and +0 where that is zero.
SPOLA_INLINE __m256 scaled(__m256i i, __m256 scale) {
  return _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(i), _mm256_setzero_ps());
}

// 6-bit scales and mins of K-quants, of 8 rows. The three planes of dwords hold the 12 bytes of each row;
// byte s % 4 of scale[s / 4] is the scale of sub-block s.
struct SixBitScales {
  __m256i scale[2], min[2];

  SPOLA_INLINE explicit SixBitScales(const uint8_t* planes) {
    const __m256i d0 = load256(planes), d1 = load256(planes + kGroupBytes),
                  d2 = load256(planes + 2 * kGroupBytes);
    const __m256i low6 = _mm256_set1_epi8(0x3f), low4 = _mm256_set1_epi8(0x0f),
                  high2 = _mm256_set1_epi8(0x30);
    scale[0] = _mm256_and_si256(d0, low6);
    min[0] = _mm256_and_si256(d1, low6);
    scale[1] = _mm256_or_si256(_mm256_and_si256(d2, low4), _mm256_and_si256(_mm256_srli_epi32(d0, 2), high2));
    min[1] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(d2, 4), low4),
                             _mm256_and_si256(_mm256_srli_epi32(d1, 2), high2));
  }
};

// Scale and min of every sub-block of one K-quant record, as f32. d, dmin and the scale bytes lie at the start of
// the record, as records.h says for u4k and u5k.
SPOLA_INLINE void load_kscales(const uint8_t* record, float (*scale)[kTileRows], float (*min)[kTileRows]) {
  const __m256i byte = _mm256_set1_epi32(0xff);
  const __m256 sign = _mm256_set1_ps(-0.0f);
  for (int h = 0; h < 2; ++h) {
    const __m256 d = load_half8(record + u4k::kD + h * 16), dmin = load_half8(record + u4k::kDmin + h * 16);
    const SixBitScales six(record + u4k::kScales + h * 32);
#pragma GCC unroll 2
    for (int p = 0; p < 2; ++p) {
      __m256i sc = six.scale[p], mn = six.min[p];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const __m256 fs = _mm256_cvtepi32_ps(_mm256_and_si256(sc, byte));
        const __m256 fm = _mm256_cvtepi32_ps(_mm256_and_si256(mn, byte));
        _mm256_store_ps(scale[p * 4 + i] + h * 8, _mm256_mul_ps(d, fs));
        _mm256_store_ps(min[p * 4 + i] + h * 8, _mm256_xor_ps(_mm256_mul_ps(dmin, fm), sign));
        sc = _mm256_srli_epi32(sc, 8);
        mn = _mm256_srli_epi32(mn, 8);
      }
    }
  }
}

struct KScales {
  alignas(32) float scale[8][kTileRows];
  alignas(32) float min[8][kTileRows];

  SPOLA_INLINE void load(const uint8_t* record) { load_kscales(record, scale, min); }
};
static_assert(u4k::kD == u5k::kD && u4k::kDmin == u5k::kDmin && u4k::kScales == u5k::kScales);

}  // namespace
}  // namespace spola::avx2

// Defines the TileKernel `name` as the instances of `impl` for 1 to 4 activation rows, call by call where rows are
// those of groups.
#define SPOLA_TILE_KERNEL(name, ...)                                                     \
  static SPOLA_NOINLINE void name##_few(const uint8_t* tile, const Activations& a,       \
                                        int row0, int rows, float* out) {                \
    switch (rows) {                                                                      \
      case 1: return __VA_ARGS__(One{}, tile, a, row0, out);                             \
      case 2: return __VA_ARGS__(Two{}, tile, a, row0, out);                             \
      case 3: return __VA_ARGS__(Three{}, tile, a, row0, out);                           \
      default: return __VA_ARGS__(Four{}, tile, a, row0, out);                           \
    }                                                                                    \
  }                                                                                      \
  void name(const uint8_t* tile, const Activations& a, int row0, int rows, float* out) { \
    for (int r = 0, n = 0; r < rows; r += n) {                                           \
      n = rows_of_call(rows - r, 4);                                                     \
      name##_few(tile, a, row0 + r, n, out + r * kTileRows);                             \
    }                                                                                    \
  }

namespace spola::avx2 {
namespace {
template <int N>
struct Rows {
  static constexpr int value = N;
};
using One = Rows<1>;
using Two = Rows<2>;
using Three = Rows<3>;
using Four = Rows<4>;
}  // namespace
}  // namespace spola::avx2
