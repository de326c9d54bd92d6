// Small pieces that the AVX-512 VNNI sources share. For those sources only; see simd_avx2.h for the rules.
//
// A group of a packed tile is exactly one register: 16 output rows, four codes of consecutive k each.
#pragma once

#include <immintrin.h>

#include "kernels/ahead.h"
#include "kernels/inline.h"
#include "kernels/magic.h"
#include "kernels/records.h"

namespace spola::avx512vnni {
namespace {

constexpr int kRows = 12;  // activation rows of one call: as many as the 32 registers hold

struct __attribute__((packed, may_alias)) Dword {
  uint32_t value;
};

// acc += sum over the four bytes of a lane of u8 (w) times s8 (the same four bytes at p for all lanes).
// In assembly because GCC 12 does not fold the broadcast into the instruction. Address sanitizers do not see
// into it, hence their plain version.
SPOLA_INLINE void dot4(__m512i& acc, __m512i w, const int8_t* p) {
#if defined(__SANITIZE_ADDRESS__)
  const uint32_t bytes = reinterpret_cast<const Dword*>(p)->value;
  acc = _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(static_cast<int>(bytes)));
#else
  __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*reinterpret_cast<const Dword*>(p)));
#endif
}

// acc += sum over the two int16 of a lane of w times the same two int16 at p for all lanes.
SPOLA_INLINE void dot2(__m512i& acc, __m512i w, const int16_t* p) {
#if defined(__SANITIZE_ADDRESS__)
  const uint32_t words = reinterpret_cast<const Dword*>(p)->value;
  acc = _mm512_dpwssd_epi32(acc, w, _mm512_set1_epi32(static_cast<int>(words)));
#else
  __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*reinterpret_cast<const Dword*>(p)));
#endif
}

// (first, second) as int16 in every lane: what dot2 multiplies the sums of the two halves of a block by.
SPOLA_INLINE __m512i pair_of(int first, int second) {
  return _mm512_set1_epi32(
      static_cast<int>((static_cast<uint32_t>(second) << 16) | (static_cast<uint32_t>(first) & 0xffff)));
}

SPOLA_INLINE __m512i load512(const void* p) { return _mm512_loadu_si512(p); }
SPOLA_INLINE __m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i_u*>(p)); }

// Sixteen f16 as f32.
SPOLA_INLINE __m512 load_half16(const uint8_t* p) { return _mm512_cvtph_ps(load256(p)); }
SPOLA_INLINE __m512 load_float16(const void* p) { return _mm512_loadu_ps(p); }

// A8 activations of MR rows, as bases and strides: a pointer per row would not fit into the registers.
template <int MR>
struct RowsA8 {
  const int8_t* q;
  const float* d;
  const float* s;
  const int16_t* h;
  long k, blocks;

  SPOLA_INLINE RowsA8(const Activations& a, int row0) : k(a.k), blocks(a.k / kBlock) {
    q = a.q8 + row0 * k;
    d = a.d8 + row0 * blocks;
    s = a.s8 + row0 * blocks;
    h = a.h8 + row0 * blocks * 2;
  }
  SPOLA_INLINE const int8_t* codes(int r, long at) const { return q + r * k + at; }
  SPOLA_INLINE __m512 scale(int r, long b) const { return _mm512_set1_ps(d[r * blocks + b]); }
  SPOLA_INLINE __m512 scaled_sum(int r, long b) const { return _mm512_set1_ps(s[r * blocks + b]); }
  SPOLA_INLINE const int16_t* halves(int r, long b) const { return h + (r * blocks + b) * 2; }
};

// sum[r] += dot of the four columns at `at`.
template <int MR>
SPOLA_INLINE void dot4_rows(__m512i (&sum)[MR], __m512i w, const RowsA8<MR>& rows, long at) {
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) dot4(sum[r], w, rows.codes(r, at));
}

template <int MR>
SPOLA_INLINE void clear(__m512i (&sum)[MR]) {
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) sum[r] = _mm512_setzero_si512();
}

template <int MR>
SPOLA_INLINE void clear(__m512 (&acc)[MR]) {
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) acc[r] = _mm512_setzero_ps();
}

template <int MR>
SPOLA_INLINE void store(const __m512 (&acc)[MR], float* out) {
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) _mm512_storeu_ps(out + r * kTileRows, acc[r]);
}

// Where sums of integers start that become f32 by their bits: magic.h.
template <int MR>
SPOLA_INLINE void start(__m512i (&sum)[MR]) {
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) sum[r] = _mm512_set1_epi32(kMagicBits);
}

// The same, less zero * (sum of the block's activations), which takes a zero point off unsigned codes.
template <int MR>
SPOLA_INLINE void start_at_zero_point(__m512i (&sum)[MR], int zero, const RowsA8<MR>& rows, long b) {
  start(sum);
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) dot2(sum[r], pair_of(-zero, -zero), rows.halves(r, b));
}

// What goes with a scale to make scaled(..) of sums that began at kMagicBits.
SPOLA_INLINE __m512 origin_of(__m512 scale) { return _mm512_mul_ps(scale, _mm512_set1_ps(-kMagic)); }

// scale * i of such a sum; origin = origin_of(scale).
SPOLA_INLINE __m512 scaled(__m512i sum, __m512 scale, __m512 origin) {
  return _mm512_fmadd_ps(scale, _mm512_castsi512_ps(sum), origin);
}

// acc = fma(da, scale * i, acc)
template <int MR>
SPOLA_INLINE void add_scaled(__m512 (&acc)[MR], const __m512i (&sum)[MR], __m512 scale,
                             const RowsA8<MR>& rows, long b) {
  const __m512 origin = origin_of(scale);
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) {
    acc[r] = _mm512_fmadd_ps(scaled(sum[r], scale, origin), rows.scale(r, b), acc[r]);
  }
}

// The same, then acc = fma(min, s, acc).
template <int MR>
SPOLA_INLINE void add_scale_min(__m512 (&acc)[MR], const __m512i (&sum)[MR], __m512 scale, __m512 min,
                                const RowsA8<MR>& rows, long b) {
  const __m512 origin = origin_of(scale);
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) {
    const __m512 t = _mm512_fmadd_ps(scaled(sum[r], scale, origin), rows.scale(r, b), acc[r]);
    acc[r] = _mm512_fmadd_ps(min, rows.scaled_sum(r, b), t);
  }
}

// to[i] = factor * byte i of every lane
SPOLA_INLINE void spread(float (*to)[kTileRows], __m512 factor, __m512i bytes) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i one = _mm512_and_si512(_mm512_srli_epi32(bytes, 8 * i), _mm512_set1_epi32(0xff));
    _mm512_store_ps(to[i], _mm512_mul_ps(factor, _mm512_cvtepi32_ps(one)));
  }
}

// Scale and min of every sub-block of one K-quant record, as f32. The three planes of dwords hold the 12
// scale bytes of each row.
SPOLA_INLINE void load_kscales(const uint8_t* record, float (*scale)[kTileRows], float (*min)[kTileRows]) {
  const __m512 d = load_half16(record + u4k::kD);
  const __m512 dmin = _mm512_xor_ps(load_half16(record + u4k::kDmin), _mm512_set1_ps(-0.0f));
  const uint8_t* planes = record + u4k::kScales;
  const __m512i d0 = load512(planes), d1 = load512(planes + kGroupBytes),
                d2 = load512(planes + 2 * kGroupBytes);
  const __m512i low6 = _mm512_set1_epi8(0x3f), low4 = _mm512_set1_epi8(0x0f);
  const __m512i high2 = _mm512_set1_epi8(0x30);
  const __m512i s1 = _mm512_and_si512(_mm512_srli_epi32(d0, 2), high2);
  const __m512i m1 = _mm512_and_si512(_mm512_srli_epi32(d1, 2), high2);
  spread(scale, d, _mm512_and_si512(d0, low6));
  spread(min, dmin, _mm512_and_si512(d1, low6));
  spread(scale + 4, d, _mm512_or_si512(_mm512_and_si512(d2, low4), s1));
  spread(min + 4, dmin, _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi32(d2, 4), low4), m1));
}

struct KScales {
  alignas(64) float scale[8][kTileRows];
  alignas(64) float min[8][kTileRows];

  SPOLA_INLINE void load(const uint8_t* record) { load_kscales(record, scale, min); }
};
static_assert(u4k::kD == u5k::kD && u4k::kDmin == u5k::kDmin && u4k::kScales == u5k::kScales);

template <int N>
struct Rows {
  static constexpr int value = N;
};

// with(Rows<n>{}) for the n of 1 to kRows that `rows` is.
template <class With>
SPOLA_INLINE void with_rows(int rows, const With& with) {
  static_assert(kRows == 12);
  switch (rows) {
    case 1: return with(Rows<1>{});
    case 2: return with(Rows<2>{});
    case 3: return with(Rows<3>{});
    case 4: return with(Rows<4>{});
    case 5: return with(Rows<5>{});
    case 6: return with(Rows<6>{});
    case 7: return with(Rows<7>{});
    case 8: return with(Rows<8>{});
    case 9: return with(Rows<9>{});
    case 10: return with(Rows<10>{});
    case 11: return with(Rows<11>{});
    default: return with(Rows<12>{});
  }
}

// with(Rows<n>{}, row, activations) for the rows of a call, which are more than kRows where they are groups.
template <class With>
SPOLA_INLINE void for_rows(const Activations& a, int rows, const With& with) {
  Activations in = a;
  for (int r = 0, n = 0; r < rows; r += n, in.next = nullptr) {
    const int calls = (rows - r + kRows - 1) / kRows;
    n = (rows - r + calls - 1) / calls;
    with_rows(n, [&](auto count) { with(count, r, in); });
  }
}

}  // namespace
}  // namespace spola::avx512vnni

// Defines the TileKernel `name` as the instances of `impl` for 1 to kRows activation rows.
#define SPOLA_TILE_KERNEL(name, ...)                                                     \
  void name(const uint8_t* tile, const Activations& a, int row0, int rows, float* out) { \
    for_rows(a, rows, [&](auto count, int r, const Activations& in) {                    \
      __VA_ARGS__(count, tile, in, row0 + r, out + r * kTileRows);                       \
    });                                                                                  \
  }
