// Activation rows side by side, for kernels that take many rows at a time. Memory and threads are the
// caller's.
//
// A row of A8 activations is four arrays; twelve rows are 48 addresses that jump by powers of two, too many
// for the registers and all in the same few sets of the first-level cache. In a group all that a block of 32
// columns needs of its n rows lies in one record, blocks ascending, so that a kernel has one address:
//
//   int8 codes[n][32], then planes of n values of four bytes each, in the order of RowPlane
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/inline.h"
#include "kernels/magic.h"
#include "kernels/table.h"

namespace spola {

// f32 d and s of docs/numerics.md; then, as int32, where a kernel's sums of integers start, so that a zero point
// costs a load instead of a product: kMagicBits (magic.h) - z * (the sum of the activations), with z = 8 and 16
// over the block, with z = 32 over each half of it.
enum class RowPlane { kScale, kScaledSum, kZero8, kZero16, kHalf0, kHalf1, kCount };

constexpr int kRowBlockBytes = kBlock + 4 * static_cast<int>(RowPlane::kCount);  // of one row in one record

namespace {

// The rows of a step, cut into groups of at most `most` rows, as even as can be.
struct RowGroups {
  int rows, count;

  SPOLA_INLINE RowGroups(int all, int most) : rows(all), count((all + most - 1) / most) {}
  SPOLA_INLINE int begin(int group) const {
    return static_cast<int>(static_cast<int64_t>(rows) * group / count);
  }
  // The group that begins at `row`.
  SPOLA_INLINE int of(int row) const {
    return static_cast<int>((static_cast<int64_t>(row) * count + rows - 1) / rows);
  }
};

}  // namespace

// Rows of the call that begins at `row`, of those up to `end`, for a kernel of `format`: whole groups, or as even as
// can be.
int rows_of_call(const Activations& a, const Kernels& kernels, ActFormat format, int row, int end);

// Bytes of the groups of `rows` rows of k columns.
SPOLA_INLINE size_t grouped_bytes(size_t rows, size_t k) { return rows * (k / kBlock) * kRowBlockBytes; }

// Where the record of block b lies among the groups, of the group of `rows` rows that begins at row `first`.
SPOLA_INLINE size_t record_at(int first, int rows, int k, int b) {
  return grouped_bytes(static_cast<size_t>(first), static_cast<size_t>(k)) +
         static_cast<size_t>(b) * static_cast<size_t>(rows) * kRowBlockBytes;
}

// One block of a row as quantize_a8 gives it: 32 codes, scale, scaled sum, sums of its halves.
struct RowBlock {
  const int8_t* q;
  const float* d;
  const float* s;
  const int16_t* h;
};

// Puts it into the record of a group of `rows` rows, as the group's row `row`.
void put_block(const RowBlock& block, int row, int rows, uint8_t* record);

// Puts row `row` of `a`, whose row-major A8 arrays are set, into its group: `to` is where the groups of all
// `rows` rows begin, of at most `most` rows each.
void put_into_group(const Activations& a, int row, int rows, int most, uint8_t* to);

// The first `rows` rows of `a` in groups at `to`, and `a` with them.
void put_into_groups(Activations& a, int rows, int most, uint8_t* to);

}  // namespace spola
