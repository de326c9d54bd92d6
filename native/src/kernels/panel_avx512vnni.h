// Tile kernels for many activation rows (panel_a8.h) with AVX-512 VNNI. For those sources only.
#pragma once

#include "kernels/panel_a8.h"
#include "kernels/simd_avx512vnni.h"

namespace spola::avx512vnni {
namespace {

using Panel = PanelOf<1>;

// One record of a group of MR rows.
template <int MR>
struct GroupRecord : RecordOfGroup<MR> {
  SPOLA_INLINE explicit GroupRecord(const uint8_t* record) : RecordOfGroup<MR>{record} {}
  template <class T>
  SPOLA_INLINE T value(RowPlane i, int r) const {
    return *reinterpret_cast<const T*>(this->plane(i, r));
  }
  SPOLA_INLINE __m512 scale(int r) const { return _mm512_set1_ps(value<float>(RowPlane::kScale, r)); }
  SPOLA_INLINE __m512 scaled_sum(int r) const { return _mm512_set1_ps(value<float>(RowPlane::kScaledSum, r)); }
  SPOLA_INLINE __m512i start(RowPlane i, int r) const { return _mm512_set1_epi32(value<int32_t>(i, r)); }
};

// sum[r] += dot of 4 * Groups columns from `at` on.
template <int Groups, int MR>
SPOLA_INLINE void dot_bytes(__m512i (&sum)[MR], const uint8_t* codes, const GroupRecord<MR>& rows, int at) {
#pragma GCC unroll 8
  for (int j = 0; j < Groups; ++j) {
    const __m512i w = load512(codes + j * kGroupBytes);
#pragma GCC unroll 16
    for (int r = 0; r < MR; ++r) dot4(sum[r], w, rows.codes(r, at + 4 * j));
  }
}

template <int MR>
SPOLA_INLINE void load_sums(__m512 (&acc)[MR], const float* out) {
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) acc[r] = load_float16(out + r * kTileRows);
}

// acc = fma(da, scale * i, acc)
template <int MR>
SPOLA_INLINE void add_scaled(__m512 (&acc)[MR], const __m512i (&sum)[MR], const float* scale,
                             const float* origin, const GroupRecord<MR>& rows) {
  const __m512 w = _mm512_load_ps(scale), from = _mm512_load_ps(origin);
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) acc[r] = _mm512_fmadd_ps(scaled(sum[r], w, from), rows.scale(r), acc[r]);
}

SPOLA_INLINE void store_scale(Panel& to, int b, __m512 scale) {
  _mm512_store_ps(to.scale[b], scale);
  _mm512_store_ps(to.origin[b], origin_of(scale));
}

SPOLA_INLINE void store_origins(Panel& to) {
#pragma GCC unroll 8
  for (int b = 0; b < kPanelBlocks; ++b) {
    _mm512_store_ps(to.origin[b], origin_of(_mm512_load_ps(to.scale[b])));
  }
}

// Scale only: codes less a zero point, which is taken off where sums start, in plane `Start`.
template <RowPlane Start>
struct Scaled {
  template <int MR>
  static SPOLA_INLINE void block(__m512 (&acc)[MR], const Panel& panel, long b,
                                 const GroupRecord<MR>& rows) {
    __m512i sum[MR];
#pragma GCC unroll 16
    for (int r = 0; r < MR; ++r) sum[r] = rows.start(Start, r);
    dot_bytes<8>(sum, panel.codes[b], rows, 0);
    add_scaled(acc, sum, panel.scale[b], panel.origin[b], rows);
  }
};

struct ScaledMin {
  template <int MR>
  static SPOLA_INLINE void block(__m512 (&acc)[MR], const Panel& panel, long b,
                                 const GroupRecord<MR>& rows) {
    __m512i sum[MR];
    start(sum);
    dot_bytes<8>(sum, panel.codes[b], rows, 0);
    add_scaled(acc, sum, panel.scale[b], panel.origin[b], rows);
    const __m512 min = _mm512_load_ps(panel.min[b]);
#pragma GCC unroll 16
    for (int r = 0; r < MR; ++r) acc[r] = _mm512_fmadd_ps(min, rows.scaled_sum(r), acc[r]);
  }
};

// Format::block(sums, panel, block, rows) adds one block of 32 columns to the sums.
struct Groups {
  static constexpr int kRows = avx512vnni::kRows;

  template <class Format, int MR>
  static SPOLA_NOINLINE void multiply(const typename Format::Panel& panel, int blocks, const uint8_t* records,
                                      float* out) {
    GroupRecord<MR> rows(records);
    __m512 acc[MR];
    load_sums(acc, out);
    for (long b = 0; b < blocks; ++b, rows.p += rows.kBytes) Format::block(acc, panel, b, rows);
    store(acc, out);
  }
};

}  // namespace
}  // namespace spola::avx512vnni

// Defines the TileKernel `name`: groups by way of panels of `Format`, other rows by the instances of `impl`. A
// plain switch: inlined through a lambda, GCC stores the sums of two rows to the stack.
#define SPOLA_PANEL_KERNEL(name, impl, Format)                                                 \
  void name(const uint8_t* tile, const Activations& a, int row0, int rows, float* out) {       \
    if (a.groups) return groups_of_rows<Groups, Format>(tile, a, row0, rows, out);             \
    switch (rows) {                                                                            \
      case 1: return impl(Rows<1>{}, tile, a, row0, out);                                      \
      case 2: return impl(Rows<2>{}, tile, a, row0, out);                                      \
      case 3: return impl(Rows<3>{}, tile, a, row0, out);                                      \
      case 4: return impl(Rows<4>{}, tile, a, row0, out);                                      \
      case 5: return impl(Rows<5>{}, tile, a, row0, out);                                      \
      case 6: return impl(Rows<6>{}, tile, a, row0, out);                                      \
      case 7: return impl(Rows<7>{}, tile, a, row0, out);                                      \
      case 8: return impl(Rows<8>{}, tile, a, row0, out);                                      \
      case 9: return impl(Rows<9>{}, tile, a, row0, out);                                      \
      case 10: return impl(Rows<10>{}, tile, a, row0, out);                                    \
      case 11: return impl(Rows<11>{}, tile, a, row0, out);                                    \
      default: return impl(Rows<12>{}, tile, a, row0, out);                                    \
    }                                                                                          \
  }
