// Linear ops: tiles of 16 output rows, shared out over the workers, with what follows the product.

#include <algorithm>
#include <cmath>

#include "base/align.h"
#include "decoder/ops.h"

namespace spola {
namespace {

// Activation rows that one pass over a worker's tiles covers: they should stay in the second-level cache.
int rows_per_pass(int k, int rows_per_call) {
  constexpr int kBytes = 256 << 10;
  return std::max(16 / rows_per_call + 1, kBytes / std::max(k, 1) / rows_per_call) * rows_per_call;
}

// One tile for `rows` rows, with delta (rows of `width` floats) and bias: out[r * 16 + j].
void product(const OpContext& c, const LinearPart& part, int width, int tile, int row, int rows, float* out) {
  const Matrix& m = c.model->matrix(part.matrix);
  const TileKernel kernel = c.kernels->tile[static_cast<int>(m.scheme)][static_cast<int>(m.format)];
  kernel(m.data + static_cast<size_t>(tile) * m.tile_bytes, c.activations, row, rows, out);
  const int column = tile * kTileRows;
  const int n = std::min(kTileRows, m.rows - column);
  if (part.delta != Buffer::kNone) {
    for (int r = 0; r < rows; ++r) {
      const float* delta =
          c.work->buffer(part.delta) + static_cast<size_t>(row + r) * width + part.column + column;
      for (int j = 0; j < n; ++j) out[r * kTileRows + j] += delta[j];
    }
  }
  if (part.bias == kNoId) return;
  const float* bias = c.model->vector(part.bias).data + column;
  for (int r = 0; r < rows; ++r) {
    for (int j = 0; j < n; ++j) out[r * kTileRows + j] += bias[j];
  }
}

void store(const LinearOp& op, const float* values, int n, float* y) {
  if (op.epilogue == Epilogue::kStore) {
    for (int j = 0; j < n; ++j) y[j] = values[j];
  } else if (op.multiplier == 1.0f) {
    for (int j = 0; j < n; ++j) y[j] += values[j];
  } else {
    for (int j = 0; j < n; ++j) y[j] += op.multiplier * values[j];
  }
}

void plain_tile(const LinearOp& op, const OpContext& c, int index, int row, int rows) {
  int tile = index;
  const LinearPart* part = op.part;
  while (tile >= c.model->matrix(part->matrix).tiles) tile -= c.model->matrix((part++)->matrix).tiles;
  const Matrix& m = c.model->matrix(part->matrix);
  alignas(kCacheLine) float out[kMaxRows * kTileRows];
  product(c, *part, op.width, tile, row, rows, out);
  const int column = tile * kTileRows;
  float* y = c.work->buffer(op.output) + static_cast<size_t>(row) * op.width + part->column + column;
  for (int r = 0; r < rows; ++r) {
    store(op, out + r * kTileRows, std::min(kTileRows, m.rows - column),
          y + static_cast<size_t>(r) * op.width);
  }
}

void activate(Epilogue epilogue, const Kernels& kernels, float* gate, const float* up, int n) {
  if (epilogue == Epilogue::kSilu) return kernels.silu_mul(gate, up, n, gate);
  if (epilogue == Epilogue::kGeluTanh) return kernels.gelu_tanh_mul(gate, up, n, gate);
  if (epilogue == Epilogue::kGelu) return kernels.gelu_mul(gate, up, n, gate);
  for (int i = 0; i < n; ++i) {
    const float x = gate[i] <= 0.0f ? 0.0f : gate[i];  // a NaN stays one
    gate[i] = (epilogue == Epilogue::kRelu2 ? x * x : x) * up[i];
  }
}

void activated_tile(const LinearOp& op, const OpContext& c, int tile, int row, int rows) {
  alignas(kCacheLine) float gate[kMaxRows * kTileRows];
  alignas(kCacheLine) float up[kMaxRows * kTileRows];
  const Matrix& m = c.model->matrix(op.part[0].matrix);
  product(c, op.part[0], op.width, tile, row, rows, gate);
  if (op.parts == 2) {
    product(c, op.part[1], op.width, tile, row, rows, up);
  } else {
    std::fill(up, up + rows * kTileRows, 1.0f);
  }
  activate(op.epilogue, *c.kernels, gate, up, rows * kTileRows);
  const int column = tile * kTileRows;
  const int n = std::min(kTileRows, m.rows - column);
  for (int r = 0; r < rows; ++r) {
    float* y = c.work->buffer(op.output) + static_cast<size_t>(row + r) * op.width + column;
    for (int j = 0; j < n; ++j) y[j] = gate[r * kTileRows + j];
  }
}

// softcap(scale * (W x + b)) of one row; remembers whether all values are finite.
bool finish_logits(const HeadOp& head, const Kernels& kernels, int n, float* y) {
  bool finite = true;
  for (int j = 0; j < n; ++j) {
    if (head.scale != 1.0f) y[j] *= head.scale;
    if (head.softcap != 0.0f) {
      const float u = y[j] / head.softcap;
      float e = std::min(2.0f * std::fabs(u), 40.0f);
      kernels.exp_many(&e, 1, &e);
      y[j] = head.softcap * std::copysign(1.0f - 2.0f / (e + 1.0f), u);
    }
    finite &= std::isfinite(y[j]);
  }
  return finite;
}

}  // namespace

void linear_tile(const LinearOp& op, const OpContext& c, int tile, int begin, int end) {
  const bool activation = is_activation(op.epilogue);
  for (int row = begin, rows = 0; row < end; row += rows) {
    rows = rows_of_call(end - row, c.kernels->rows);
    activation ? activated_tile(op, c, tile, row, rows) : plain_tile(op, c, tile, row, rows);
  }
}

void run_linear(const LinearOp& op, const OpContext& c, int worker) {
  const bool activation = is_activation(op.epilogue);
  int tiles = 0;
  for (int p = 0; p < (activation ? 1 : op.parts); ++p) tiles += c.model->matrix(op.part[p].matrix).tiles;
  const Range range = share(tiles, worker, c.pool->size());
  const int pass = rows_per_pass(c.activations.k, c.kernels->rows);
  for (int begin = 0; begin < c.rows->count; begin += pass) {
    const int end = std::min(c.rows->count, begin + pass);
    for (int t = range.begin; t < range.end; ++t) linear_tile(op, c, t, begin, end);
  }
  c.pool->counters(worker).tiles += static_cast<uint64_t>(range.end - range.begin);
}

void head_logits(const HeadOp& head, const OpContext& c, int count, const int32_t* of_row, int worker) {
  const Matrix& m = c.model->matrix(head.matrix);
  const LinearPart part{head.matrix, head.bias, 0, Buffer::kNone};
  const size_t width = static_cast<size_t>(c.work->width(Buffer::kLogits));
  const Range range = share(m.tiles, worker, c.pool->size());
  alignas(kCacheLine) float out[kMaxRows * kTileRows];
  for (int t = range.begin; t < range.end; ++t) {
    const int column = t * kTileRows;
    const int n = std::min(kTileRows, m.rows - column);
    for (int row = 0, rows = 0; row < count; row += rows) {
      rows = rows_of_call(count - row, c.kernels->rows);
      product(c, part, m.rows, t, row, rows, out);
      for (int r = 0; r < rows; ++r) {
        float* y = out + r * kTileRows;
        if (!finish_logits(head, *c.kernels, n, y)) {
          c.rows->bad[of_row[row + r]].store(true, std::memory_order_relaxed);
        }
        std::copy(y, y + n, c.work->buffer(Buffer::kLogits) + (row + r) * width + column);
      }
    }
  }
  c.pool->counters(worker).tiles += static_cast<uint64_t>(range.end - range.begin);
}

}  // namespace spola
