// Many A8 rows: groups of them (row_groups.h) times columns that are unpacked once. For SIMD sources only
// (linear_dot.h says why).
//
// 256 columns of a tile (fewer at its end) become a panel of bytes and f32 scales (panel.h). What an element is made
// of, and in which order, is as with few rows; between panels the sums rest in `out`.
#pragma once

#include "kernels/panel.h"
#include "kernels/records.h"
#include "kernels/row_groups.h"

namespace spola {
namespace {

constexpr int kPanelBlocks = 8;
constexpr int kBlockBytes = 8 * kGroupBytes;  // the codes of one block, as bytes

// What stands in a panel for each block of 32 columns: codes in natural order, and what goes with them, for each of
// Parts equal parts of the block.
template <int Parts>
struct PanelOf {
  static constexpr int kScales = kPanelBlocks * Parts;
  alignas(64) uint8_t codes[kPanelBlocks][kBlockBytes];
  alignas(64) float scale[kScales][kTileRows];
  alignas(64) float origin[kScales][kTileRows];  // -scale * kMagic
  alignas(64) float min[Parts == 1 ? kScales : 1][kTileRows];
};

// One record of a group of MR rows.
template <int MR>
struct RecordOfGroup {
  static constexpr int kBytes = MR * kRowBlockBytes;
  const uint8_t* p;

  SPOLA_INLINE const int8_t* codes(int r, int at) const {
    return reinterpret_cast<const int8_t*>(p) + r * kBlock + at;
  }
  SPOLA_INLINE const uint8_t* plane(RowPlane i, int r) const {
    return p + MR * kBlock + (static_cast<int>(i) * MR + r) * 4;
  }
};

// Format: Panel; unpack(panel, record, blocks), which returns the record after. Isa: kRows rows of a group at most, and
// multiply<Format, MR>(panel, blocks, records, out), by which the sums of one group go on with `blocks` records.
template <class Isa, class Format>
SPOLA_NOINLINE void groups_of_rows(const uint8_t* tile, const Activations& a, int row0, int rows, float* out) {
  typename Format::Panel panel;
  const RowGroups groups(a.grouped, Isa::kRows);
  const int first = groups.of(row0), count = groups.of(row0 + rows) - first;
  for (int i = 0; i < rows * kTileRows; ++i) out[i] = 0;
  const auto unpack = [&](const uint8_t* p, int n) { return Format::unpack(panel, p, n / kBlock); };
  const auto group = [&](int g, int k, int n) {
    const int row = groups.begin(first + g), size = groups.begin(first + g + 1) - row;
    const uint8_t* records = a.groups + grouped_bytes(row, a.k) + grouped_bytes(size, k);
    with_rows_up_to<Isa::kRows>(size, [&](auto c) __attribute__((always_inline)) {
      constexpr int MR = decltype(c)::value;
      Isa::template multiply<Format, MR>(panel, n / kBlock, records, out + (row - row0) * kTileRows);
    });
  };
  by_pieces(a, tile, kPanelBlocks * kBlock, count, unpack, group);
}

}  // namespace
}  // namespace spola
