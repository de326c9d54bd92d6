#include "kernels/row_groups.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace spola {
namespace {

// As even as can be, but no part of what the registers hold is left empty.
int int16_rows_of_call(int left, const Kernels& kernels) {
  const int even = rows_of_call(left, kernels.int16_rows);
  if (even <= kernels.rows) return even;
  return std::min(left, (even + kernels.rows - 1) / kernels.rows * kernels.rows);
}

}  // namespace

int rows_of_call(const Activations& a, const Kernels& kernels, ActFormat format, int row, int end) {
  if (format == ActFormat::kF32) return rows_of_call(end - row, kernels.float_rows);
  if (format == ActFormat::kA16) return int16_rows_of_call(end - row, kernels);
  if (!a.groups) return rows_of_call(end - row, kernels.rows);
  const RowGroups groups(a.grouped, kernels.rows);
  const int last = groups.of(row) + kernels.groups;
  return (last < groups.count && groups.begin(last) < end ? groups.begin(last) : end) - row;
}

void put_block(const RowBlock& block, int row, int rows, uint8_t* record) {
  const int32_t h0 = block.h[0], h1 = block.h[1];
  const int32_t starts[] = {kMagicBits - 8 * (h0 + h1), kMagicBits - 16 * (h0 + h1), kMagicBits - 32 * h0,
                            kMagicBits - 32 * h1};
  uint8_t* planes = record + rows * kBlock + row * 4;
  const size_t plane = static_cast<size_t>(rows) * 4;
  std::memcpy(record + row * kBlock, block.q, kBlock);
  std::memcpy(planes, block.d, 4);
  std::memcpy(planes + plane, block.s, 4);
  for (size_t i = 0; i < std::size(starts); ++i) std::memcpy(planes + (2 + i) * plane, starts + i, 4);
}

void put_into_group(const Activations& a, int row, int rows, int most, uint8_t* to) {
  const RowGroups groups(rows, most);
  int group = static_cast<int>(static_cast<int64_t>(row) * groups.count / rows);
  while (groups.begin(group + 1) <= row) ++group;
  const int first = groups.begin(group), n = groups.begin(group + 1) - first, blocks = a.k / kBlock;
  const size_t at = static_cast<size_t>(row) * static_cast<size_t>(blocks);
  for (int b = 0; b < blocks; ++b) {
    const size_t block = at + static_cast<size_t>(b);
    put_block({a.q8 + block * kBlock, a.d8 + block, a.s8 + block, a.h8 + 2 * block}, row - first, n,
              to + record_at(first, n, a.k, b));
  }
}

void put_into_groups(Activations& a, int rows, int most, uint8_t* to) {
  for (int r = 0; r < rows; ++r) put_into_group(a, r, rows, most, to);
  a.groups = to;
  a.grouped = rows;
}

}  // namespace spola
