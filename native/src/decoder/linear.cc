// Linear ops: tiles of 16 output rows, shared out over the workers, with what follows the product.

#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>

#include "base/align.h"
#include "decoder/ops.h"
#include "kernels/row_groups.h"

namespace spola {
namespace {

// Activation rows that one pass over a worker's tiles covers: they should stay in the second-level cache.
int rows_per_pass(int k, int rows_per_call) {
  constexpr int kBytes = 256 << 10;
  return std::max(16 / rows_per_call + 1, kBytes / std::max(k, 1) / rows_per_call) * rows_per_call;
}

// Where the pass that begins at row `begin` of the step ends. No more passes than a stage may have.
int end_of_pass(const OpContext& c, int begin) {
  const int rows = c.rows->count, least = ceil_div(rows, ThreadPool::kParts);
  const Activations& a = c.activations;
  if (!a.groups) return std::min(rows, begin + std::max(rows_per_pass(a.k, c.kernels->rows), least));
  const RowGroups groups(a.grouped, c.kernels->rows);
  const int pass = std::max(rows_per_pass(a.k, c.kernels->rows * c.kernels->groups), least);
  return groups.begin(std::min(groups.count, groups.of(begin) + ceil_div(pass, c.kernels->rows)));
}

// Rows row .. row + rows of the step; `next` is the tile that will be read after theirs, or null.
struct Call {
  int row;
  int rows;
  const uint8_t* next;
};

const uint8_t* tile_data(const Matrix& m, int tile) {
  return m.data + static_cast<size_t>(tile) * m.tile_bytes;
}

// The part of the op that holds a tile, counted over all parts, and the tile's place in it.
const LinearPart& part_of(const LinearOp& op, const Model& model, int* tile) {
  const LinearPart* part = op.part;
  if (is_activation(op.epilogue)) return *part;  // its parts go side by side
  while (*tile >= model.matrix(part->matrix).tiles) *tile -= model.matrix((part++)->matrix).tiles;
  return *part;
}

// One tile for the rows of a call, with what adapters add and the bias: out[r * 16 + j].
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

void store(const LinearOp& op, const float* values, int rows, int n, float* y) {
  if (n == kTileRows) return store_rows(op, values, rows, std::integral_constant<int, kTileRows>(), y);
  store_rows(op, values, rows, n, y);
}

// Asks for the lines of an output that will be written, so that stores do not wait for them: a row of a prompt's
// buffers lies far from the next, and all of them are more than the caches near a core hold.
void prefetch_output(const LinearOp& op, int rows, const float* y) {
  for (int r = 0; r < rows; ++r) __builtin_prefetch(y + static_cast<size_t>(r) * op.width, 1);
}

void plain_tile(const LinearOp& op, const OpContext& c, int tile, const Call& call) {
  const LinearPart& part = part_of(op, *c.model, &tile);
  const Matrix& m = c.model->matrix(part.matrix);
  const int column = tile * kTileRows;
  float* y = c.work->buffer(op.output) + static_cast<size_t>(call.row - op.first) * op.width + part.column + column;
  prefetch_output(op, call.rows, y);
  alignas(kCacheLine) float out[kMaxCallRows * kTileRows];
  product(c, part, tile, call, out);
  store(op, out, call.rows, std::min(kTileRows, m.rows - column), y);
}

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
  alignas(kCacheLine) float e[kMaxCallRows * kTileRows];
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

void activated_tile(const LinearOp& op, const OpContext& c, int tile, const Call& call) {
  const int rows = call.rows;
  alignas(kCacheLine) float gate[kMaxCallRows * kTileRows];
  alignas(kCacheLine) float up[kMaxCallRows * kTileRows];
  const Matrix& m = c.model->matrix(op.part[0].matrix);
  const int column = tile * kTileRows;
  float* y = c.work->buffer(op.output) + static_cast<size_t>(call.row) * op.width + column;
  if (op.parts == 2) {
    const uint8_t* second = tile_data(c.model->matrix(op.part[1].matrix), tile);
    product(c, op.part[0], tile, {call.row, rows, call.next ? second : nullptr}, gate);
    prefetch_output(op, rows, y);
    product(c, op.part[1], tile, call, up);
  } else {
    prefetch_output(op, rows, y);
    product(c, op.part[0], tile, call, gate);
    std::fill(up, up + rows * kTileRows, 1.0f);
  }
  bound(op, gate, up, rows * kTileRows);
  activate(op.epilogue, *c.kernels, gate, up, rows * kTileRows);
  store(op, gate, rows, std::min(kTileRows, m.rows - column), y);
}

// softcap(scale * (W x + b)) of one row; remembers whether all values are finite.
bool finish_logits(const HeadOp& head, const Kernels& kernels, int n, float* y) {
  if (head.scale == 1.0f && head.softcap == 0.0f) {
    uint32_t largest = 0;  // without its sign; infinity and NaN are above every number
    for (int j = 0; j < n; ++j) largest = std::max(largest, std::bit_cast<uint32_t>(y[j]) & 0x7fffffffu);
    return largest < 0x7f800000u;
  }
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

const uint8_t* tile_data(const LinearOp& op, const Model& model, int tile) {
  const LinearPart& part = part_of(op, model, &tile);
  return tile_data(model.matrix(part.matrix), tile);
}

// Brings the first lines of the next op's weights into the first-level cache, when waiting for them would
// show.
void prefetch_next(const OpContext& c) {
  if (c.rows->count > c.kernels->rows || !c.next) return;
  constexpr size_t kBytes = 1024;  // far less than any tile of a real model
  for (size_t i = 0; i < kBytes; i += kCacheLine) __builtin_prefetch(c.next + i);
}

}  // namespace

int tiles_of(const LinearOp& op, const Model& model) {
  int tiles = 0;
  for (int p = 0; p < (is_activation(op.epilogue) ? 1 : op.parts); ++p) {
    tiles += model.matrix(op.part[p].matrix).tiles;
  }
  return tiles;
}

void linear_tile(const LinearOp& op, const OpContext& c, int tile, int begin, int end, const uint8_t* next) {
  const bool activation = is_activation(op.epilogue);
  int place = tile;
  const ActFormat format = c.model->matrix(part_of(op, *c.model, &place).matrix).format;
  Call call{begin, 0, next};
  for (; call.row < end; call.row += call.rows, call.next = nullptr) {
    call.rows = rows_of_call(c.activations, *c.kernels, format, call.row, end);
    activation ? activated_tile(op, c, tile, call) : plain_tile(op, c, tile, call);
  }
}

void run_linear(const LinearOp& op, const OpContext& c, int worker) {
  const int tiles = tiles_of(op, *c.model);
  for (int begin = 0, end = 0, part = 0; begin < c.rows->count; begin = end, ++part) {
    end = end_of_pass(c, begin);
    claim_all(c, worker, part, tiles, [&](Range range) {
      const int last = c.pool->end_of_range(range.begin, tiles);
      for (int t = range.begin; t < range.end; ++t) {
        linear_tile(op, c, t, begin, end, t + 1 < last ? tile_data(op, *c.model, t + 1) : c.next);
      }
      if (begin == 0) c.pool->counters(worker).tiles += static_cast<uint64_t>(range.end - range.begin);
    });
  }
  prefetch_next(c);
}

const uint8_t* first_tile(const LinearOp& op, const OpContext& c, int worker) {
  const Range range = share(tiles_of(op, *c.model), worker, c.pool->size());
  return range.begin < range.end ? tile_data(op, *c.model, range.begin) : nullptr;
}

const uint8_t* first_tile(const HeadOp& head, const OpContext& c, int worker) {
  const Matrix& m = c.model->matrix(head.matrix);
  const Range range = share(m.tiles, worker, c.pool->size());
  return range.begin < range.end ? tile_data(m, range.begin) : nullptr;
}

void head_logits(const HeadOp& head, const OpContext& c, int count, const int32_t* of_row, int worker) {
  const Matrix& m = c.model->matrix(head.matrix);
  const LinearPart part{head.matrix, head.bias, 0, kNoId, 0};
  const size_t width = static_cast<size_t>(c.work->width(Buffer::kLogits));
  const int most = m.format == ActFormat::kF32 ? c.kernels->float_rows : c.kernels->rows;
  alignas(kCacheLine) float out[kMaxCallRows * kTileRows];
  const auto tile = [&](int t, const uint8_t* next) {
    const int column = t * kTileRows;
    const int n = std::min(kTileRows, m.rows - column);
    Call call{0, 0, next};
    for (; call.row < count; call.row += call.rows, call.next = nullptr) {
      call.rows = rows_of_call(count - call.row, most);
      product(c, part, t, call, out);
      for (int r = 0; r < call.rows; ++r) {
        float* y = out + r * kTileRows;
        if (!finish_logits(head, *c.kernels, n, y)) c.rows->spoil(of_row[call.row + r]);
        std::copy(y, y + n, c.work->buffer(Buffer::kLogits) + (call.row + r) * width + column);
      }
    }
  };
  claim_all(c, worker, 0, m.tiles, [&](Range range) {
    const int last = c.pool->end_of_range(range.begin, m.tiles);
    for (int t = range.begin; t < range.end; ++t) tile(t, t + 1 < last ? tile_data(m, t + 1) : nullptr);
    c.pool->counters(worker).tiles += static_cast<uint64_t>(range.end - range.begin);
  });
}

}  // namespace spola
