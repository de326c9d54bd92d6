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

void put_into_group(const Activations& a, int row, int rows, int most, uint8_t* to) {
  const RowGroups groups(rows, most);
  int group = static_cast<int>(static_cast<int64_t>(row) * groups.count / rows);
  while (groups.begin(group + 1) <= row) ++group;
  const int first = groups.begin(group), blocks = a.k / kBlock;
  const size_t n = static_cast<size_t>(groups.begin(group + 1) - first), r = static_cast<size_t>(row - first);
  const size_t at = static_cast<size_t>(row) * static_cast<size_t>(blocks);
  uint8_t* record = to + grouped_bytes(static_cast<size_t>(first), static_cast<size_t>(a.k));
  for (int b = 0; b < blocks; ++b, record += n * kRowBlockBytes) {
    const size_t block = at + static_cast<size_t>(b);
    const int32_t h0 = a.h8[2 * block], h1 = a.h8[2 * block + 1];
    const int32_t starts[] = {kMagicBits - 8 * (h0 + h1), kMagicBits - 16 * (h0 + h1), kMagicBits - 32 * h0,
                              kMagicBits - 32 * h1};
    uint8_t* planes = record + n * kBlock + r * 4;
    std::memcpy(record + r * kBlock, a.q8 + block * kBlock, kBlock);
    std::memcpy(planes, a.d8 + block, 4);
    std::memcpy(planes + n * 4, a.s8 + block, 4);
    for (size_t i = 0; i < std::size(starts); ++i) std::memcpy(planes + (2 + i) * n * 4, starts + i, 4);
  }
}

void put_into_groups(Activations& a, int rows, int most, uint8_t* to) {
  for (int r = 0; r < rows; ++r) put_into_group(a, r, rows, most, to);
  a.groups = to;
  a.grouped = rows;
}

}  // namespace spola
