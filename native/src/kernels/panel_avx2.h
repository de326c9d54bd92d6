// Tile kernels for many activation rows (panel_a8.h) with AVX2. For those sources only.
#pragma once

#include "kernels/panel_a8.h"
#include "kernels/simd_avx2.h"

namespace spola::avx2 {
namespace {

SPOLA_INLINE __m256 bcast_float(const void* p) { return _mm256_castsi256_ps(bcast4(p)); }

// Where the integer sums of row r start: in plane Start or, where there is none, at kMagicBits.
template <RowPlane Start, int MR>
SPOLA_INLINE __m256i start_of(const RecordOfGroup<MR>& rows, int r) {
  if constexpr (Start == RowPlane::kCount) return _mm256_set1_epi32(kMagicBits);
  return bcast4(rows.plane(Start, r));
}

// acc = fma(da, scale * i, acc) and, with Min, fma(min, s, acc) after it, for 8 output rows; i is the sum from its
// start on.
template <RowPlane Start, bool Min, int MR>
SPOLA_INLINE void add_scaled(float* out, const __m256i (&sum)[MR], const float* scale, const float* origin,
                             const float* min, const RecordOfGroup<MR>& rows) {
  const __m256 w = _mm256_load_ps(scale), from = _mm256_load_ps(origin);
  const __m256 m = Min ? _mm256_load_ps(min) : from;
#pragma GCC unroll 4
  for (int r = 0; r < MR; ++r) {
    const __m256i i = _mm256_add_epi32(sum[r], start_of<Start>(rows, r));
    const __m256 product = _mm256_fmadd_ps(w, _mm256_castsi256_ps(i), from);
    float* const p = out + r * kTileRows;
    __m256 acc = _mm256_fmadd_ps(product, bcast_float(rows.plane(RowPlane::kScale, r)), _mm256_loadu_ps(p));
    if constexpr (Min) acc = _mm256_fmadd_ps(m, bcast_float(rows.plane(RowPlane::kScaledSum, r)), acc);
    _mm256_storeu_ps(p, acc);
    // Without this GCC remembers what it stored and keeps a second copy on the stack.
    __asm__("" : "+m"(*reinterpret_cast<__m256_u*>(p)));
  }
}

// The same for half h of block b.
template <RowPlane Start, bool Min, int MR>
SPOLA_INLINE void add_scaled(float* out, const __m256i (&sum)[MR], const PanelOf<1>& panel, long b, int h,
                             const RecordOfGroup<MR>& rows) {
  const int lane = h * 8;
  add_scaled<Start, Min>(out + lane, sum, panel.scale[b] + lane, panel.origin[b] + lane, panel.min[b] + lane, rows);
}

// Dot of 4 * Groups columns for 8 output rows, in int16 chains of Chain groups each.
template <int Groups, int Chain, int MR>
SPOLA_INLINE void dot_bytes(__m256i (&sum)[MR], const uint8_t* codes, const int8_t* const (&q)[MR], long at) {
#pragma GCC unroll 4
  for (int from = 0; from < Groups; from += Chain) {
    __m256i chain[MR];
    chain_add<true>(chain, load256(codes + from * kGroupBytes), q, at + 4 * from);
#pragma GCC unroll 8
    for (int j = from + 1; j < from + Chain; ++j) {
      chain_add<false>(chain, load256(codes + j * kGroupBytes), q, at + 4 * j);
    }
#pragma GCC unroll 4
    for (int r = 0; r < MR; ++r) {
      sum[r] = from == 0 ? pair_sum(chain[r]) : _mm256_add_epi32(sum[r], pair_sum(chain[r]));
      SPOLA_PIN(sum[r]);
    }
  }
}

template <int MR>
struct CodesOfRows {
  const int8_t* q[MR];

  SPOLA_INLINE explicit CodesOfRows(const RecordOfGroup<MR>& rows) {
#pragma GCC unroll 4
    for (int r = 0; r < MR; ++r) q[r] = rows.codes(r, 0);
  }
};

// 4 bits: one chain for a block, for both halves of a tile at once, which share the broadcasts.
template <RowPlane Start, bool Min>
struct Nibbles {
  using Panel = PanelOf<1>;
  static constexpr int kFew = 6;

  template <int MR>
  static SPOLA_INLINE void block(float* out, const Panel& panel, long b, const RecordOfGroup<MR>& rows) {
    const CodesOfRows<MR> codes(rows);
    __m256i chain[MR][2];
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const uint8_t* w = panel.codes[b] + j * kGroupBytes;
      if (j == 0) {
        chain_add<true>(chain, load256(w), load256(w + 32), codes.q, 0);
      } else {
        chain_add<false>(chain, load256(w), load256(w + 32), codes.q, 4 * j);
      }
    }
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      __m256i sum[MR];
#pragma GCC unroll 4
      for (int r = 0; r < MR; ++r) sum[r] = pair_sum(chain[r][h]);
      add_scaled<Start, Min>(out, sum, panel, b, h, rows);
    }
  }
};

// 5 bits: two chains for a block.
template <RowPlane Start, bool Min>
struct FiveBits {
  using Panel = PanelOf<1>;
  static constexpr int kFew = 4;

  template <int MR>
  static SPOLA_INLINE void block(float* out, const Panel& panel, long b, const RecordOfGroup<MR>& rows) {
    const CodesOfRows<MR> codes(rows);
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      __m256i sum[MR];
      dot_bytes<8, 4>(sum, panel.codes[b] + h * 32, codes.q, 0);
      add_scaled<Start, Min>(out, sum, panel, b, h, rows);
    }
  }
};

// 6 bits: two chains for each half of a block, which has its own scale.
struct SixBits {
  using Panel = PanelOf<2>;
  static constexpr int kFew = 4;

  template <int MR>
  static SPOLA_INLINE void block(float* out, const Panel& panel, long b, const RecordOfGroup<MR>& rows) {
    const CodesOfRows<MR> codes(rows);
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      half<0, RowPlane::kHalf0>(out + h * 8, panel, b, h * 8, codes.q, rows);
      half<1, RowPlane::kHalf1>(out + h * 8, panel, b, h * 8, codes.q, rows);
    }
  }

 private:
  template <int H, RowPlane Start, int MR>
  static SPOLA_INLINE void half(float* out, const Panel& panel, long b, int lane, const int8_t* const (&q)[MR],
                                const RecordOfGroup<MR>& rows) {
    __m256i sum[MR];
    dot_bytes<4, 2>(sum, panel.codes[b] + H * 4 * kGroupBytes + lane * 4, q, H * 16);
    const long s = 2 * b + H;
    add_scaled<Start, false>(out, sum, panel.scale[s] + lane, panel.origin[s] + lane, nullptr, rows);
  }
};

struct Groups {
  static constexpr int kRows = 4;

  template <class Format, int MR>
  static SPOLA_NOINLINE void multiply(const typename Format::Panel& panel, int blocks, const uint8_t* records,
                                      float* out) {
    RecordOfGroup<MR> rows{records};
    for (long b = 0; b < blocks; ++b, rows.p += rows.kBytes) Format::block(out, panel, b, rows);
  }
};

// Scales of eight rows, and where sums that they multiply start.
SPOLA_INLINE void store_scale(float* scale, float* origin, __m256 value) {
  _mm256_store_ps(scale, value);
  _mm256_store_ps(origin, _mm256_mul_ps(value, _mm256_set1_ps(-kMagic)));
}

SPOLA_INLINE void store_half_planes(PanelOf<1>& to, int b, const uint8_t* scale) {
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) store_scale(to.scale[b] + h * 8, to.origin[b] + h * 8, load_half8(scale + h * 16));
}

SPOLA_INLINE void store_mins(PanelOf<1>& to, int b, const uint8_t* min) {
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) _mm256_store_ps(to.min[b] + h * 8, load_half8(min + h * 16));
}

SPOLA_INLINE void store_kscales(PanelOf<1>& to, const uint8_t* record) {
  load_kscales(record, to.scale, to.min);
  for (int b = 0; b < kPanelBlocks; ++b) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      store_scale(to.scale[b] + h * 8, to.origin[b] + h * 8, _mm256_load_ps(to.scale[b] + h * 8));
    }
  }
}

}  // namespace
}  // namespace spola::avx2

// Defines the TileKernel `name`: groups by way of panels of `Format` where they are more than Format::kFew rows, for
// which a panel does not pay, other rows by the instances of `impl`.
#define SPOLA_PANEL_KERNEL(name, impl, Format)                                                \
  namespace {                                                                                 \
  SPOLA_TILE_KERNEL(name##_by_calls, impl)                                                    \
  }                                                                                           \
  void name(const uint8_t* tile, const Activations& a, int row0, int rows, float* out) {      \
    if (a.groups && rows > Format::kFew) {                                                    \
      return groups_of_rows<Groups, Format>(tile, a, row0, rows, out);                        \
    }                                                                                         \
    name##_by_calls(tile, a, row0, rows, out);                                                \
  }
