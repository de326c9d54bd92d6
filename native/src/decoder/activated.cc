// Linear ops whose outputs go through an activation: gate and up, or one matrix.

#include <algorithm>

#include "base/align.h"
#include "decoder/tile.h"
#include "kernels/row_groups.h"

namespace spola {
namespace {

constexpr int kCallValues = kMaxCallRows * kTileRows;

// Bounds as gpt-oss has them; NaN stays NaN.
void bound(const LinearOp& op, float* gate, float* up, int n) {
  if (op.clamp != 0.0f) {
    for (int i = 0; i < n; ++i) gate[i] = gate[i] > op.clamp ? op.clamp : gate[i];
    for (int i = 0; i < n; ++i) up[i] = up[i] > op.clamp ? op.clamp : up[i] < -op.clamp ? -op.clamp : up[i];
  }
  if (op.up_offset == 0.0f) return;
  for (int i = 0; i < n; ++i) up[i] += op.up_offset;
}

void silu_1702_mul(const Kernels& kernels, float* gate, const float* up, int n) {
  alignas(kCacheLine) float e[kCallValues];
  if (n < 1) return;
  for (int i = 0; i < n; ++i) e[i] = -(1.702f * gate[i]);
  kernels.exp_many(e, n, e);
  for (int i = 0; i < n; ++i) gate[i] = gate[i] / (1.0f + e[i]) * up[i];
}

void activate(Epilogue epilogue, const Kernels& kernels, float* gate, const float* up, int n) {
  if (epilogue == Epilogue::kSilu) return kernels.silu_mul(gate, up, n, gate);
  if (epilogue == Epilogue::kGeluTanh) return kernels.gelu_tanh_mul(gate, up, n, gate);
  if (epilogue == Epilogue::kGelu) return kernels.gelu_mul(gate, up, n, gate);
  if (epilogue == Epilogue::kSilu1702) return silu_1702_mul(kernels, gate, up, n);
  for (int i = 0; i < n; ++i) {
    const float x = gate[i] <= 0.0f ? 0.0f : gate[i];  // a NaN stays one
    gate[i] = (epilogue == Epilogue::kRelu2 ? x * x : x) * up[i];
  }
}

// What the op makes of one tile: out[r * 16 + j]. Rows that will be stored to y, or null, are asked for before the last
// product.
void activated(const LinearOp& op, const OpContext& c, int tile, const Call& call, float* out, const float* y) {
  alignas(kCacheLine) float up[kCallValues];
  if (op.parts == 2) {
    const uint8_t* second = tile_data(c.model->matrix(op.part[1].matrix), tile);
    product(c, op.part[0], tile, {call.row, call.rows, call.next ? second : nullptr}, out);
    if (y) prefetch_output(op, call.rows, y);
    product(c, op.part[1], tile, call, up);
  } else {
    if (y) prefetch_output(op, call.rows, y);
    product(c, op.part[0], tile, call, out);
    std::fill(up, up + call.rows * kTileRows, 1.0f);
  }
  bound(op, out, up, call.rows * kTileRows);
  activate(op.epilogue, *c.kernels, out, up, call.rows * kTileRows);
}

}  // namespace

void activated_tile(const LinearOp& op, const OpContext& c, int tile, const Call& call) {
  alignas(kCacheLine) float values[kCallValues];
  const int column = tile * kTileRows;
  float* y = c.work->buffer(op.output) + static_cast<size_t>(call.row) * op.width + column;
  activated(op, c, tile, call, values, y);
  store(op, values, call.rows, std::min(kTileRows, c.model->matrix(op.part[0].matrix).rows - column), y);
}

void activated_pair(const LinearOp& op, const OpContext& c, int pair, const Call& call) {
  static_assert(kBlock == 2 * kTileRows);
  alignas(kCacheLine) float half[2][kCallValues];
  const int tile = 2 * pair;
  const uint8_t* second = tile_data(c.model->matrix(op.part[0].matrix), tile + 1);
  activated(op, c, tile, {call.row, call.rows, call.next ? second : nullptr}, half[0], nullptr);
  activated(op, c, tile + 1, call, half[1], nullptr);
  const RowGroups groups(c.rows->count, c.kernels->rows);
  for (int g = groups.of(call.row), row = call.row; row < call.row + call.rows; row = groups.begin(++g)) {
    const int at = (row - call.row) * kTileRows, rows = groups.begin(g + 1) - row;
    uint8_t* record = c.work->groups(op.output) + record_at(row, rows, op.width, pair);
    c.rows->spoil(row, c.kernels->quantize_group(half[0] + at, half[1] + at, kTileRows, rows, record));
  }
}

}  // namespace spola
