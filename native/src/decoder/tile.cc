#include "decoder/tile.h"

#include <algorithm>
#include <type_traits>

namespace spola {
namespace {

// `n` is a constant in full tiles, so that the loops unroll.
template <class Count>
void store_rows(const LinearOp& op, const float* values, int rows, Count n, float* y) {
  const size_t width = static_cast<size_t>(op.width);
  for (int r = 0; r < rows; ++r, y += width, values += kTileRows) {
    if (op.epilogue != Epilogue::kAdd) {
      for (int j = 0; j < n; ++j) y[j] = values[j];
    } else if (op.multiplier == 1.0f) {
      for (int j = 0; j < n; ++j) y[j] += values[j];
    } else {
      for (int j = 0; j < n; ++j) y[j] += op.multiplier * values[j];
    }
  }
}

}  // namespace

void product(const OpContext& c, const LinearPart& part, int tile, const Call& call, float* out) {
  const int row = call.row, rows = call.rows;
  const Matrix& m = c.model->matrix(part.matrix);
  const TileKernel kernel = c.kernels->tile[static_cast<int>(m.scheme)][static_cast<int>(m.format)];
  Activations a = c.activations;
  a.next = call.next;
  kernel(tile_data(m, tile), a, row, rows, out);
  const int column = tile * kTileRows;
  const int n = std::min(kTileRows, m.rows - column);
  if (part.site != kNoId && c.rows->adapted) add_deltas(c, part, tile, row, rows, out);
  if (part.bias == kNoId) return;
  const float* bias = c.model->vector(part.bias).data + column;
  for (int r = 0; r < rows; ++r) {
    for (int j = 0; j < n; ++j) out[r * kTileRows + j] += bias[j];
  }
}

void store(const LinearOp& op, const float* values, int rows, int n, float* y) {
  if (n == kTileRows) return store_rows(op, values, rows, std::integral_constant<int, kTileRows>(), y);
  store_rows(op, values, rows, n, y);
}

void prefetch_output(const LinearOp& op, int rows, const float* y) {
  for (int r = 0; r < rows; ++r) __builtin_prefetch(y + static_cast<size_t>(r) * op.width, 1);
}

}  // namespace spola
