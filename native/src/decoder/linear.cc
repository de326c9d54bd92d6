// Linear ops: tiles of 16 output rows, shared out over the workers, with what follows the product.

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/align.h"
#include "decoder/tile.h"
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
  const int left = groups.count - groups.of(begin), passes = ceil_div(left, ceil_div(pass, c.kernels->rows));
  return groups.begin(groups.of(begin) + ceil_div(left, passes));
}

// The part of the op that holds a tile, counted over all parts, and the tile's place in it.
const LinearPart& part_of(const LinearOp& op, const Model& model, int* tile) {
  const LinearPart* part = op.part;
  if (is_activation(op.epilogue)) return *part;  // its parts go side by side
  while (*tile >= model.matrix(part->matrix).tiles) *tile -= model.matrix((part++)->matrix).tiles;
  return *part;
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

// with(call) for each call that the rows take; the op's tile says of which kernel.
template <class With>
void each_call(const LinearOp& op, const OpContext& c, int tile, Range rows, const uint8_t* next, const With& with) {
  const ActFormat format = c.model->matrix(part_of(op, *c.model, &tile).matrix).format;
  Call call{rows.begin, 0, next};
  for (; call.row < rows.end; call.row += call.rows, call.next = nullptr) {
    call.rows = rows_of_call(c.activations, *c.kernels, format, call.row, rows.end);
    with(call);
  }
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
  each_call(op, c, tile, {begin, end}, next, [&](const Call& call) {
    activation ? activated_tile(op, c, tile, call) : plain_tile(op, c, tile, call);
  });
}

bool leaves_groups(bool may, const OpContext& c) {
  return may && c.rows->count > c.kernels->rows && !c.rows->adapted;
}

namespace {

// Items begin .. end of the op for the rows of a pass; an item is `tiles` tiles, which begin at begin * tiles.
void run_items(const LinearOp& op, const OpContext& c, Range items, int tiles, Range rows, int last) {
  for (int i = items.begin; i < items.end; ++i) {
    const uint8_t* next = i + 1 < last ? tile_data(op, *c.model, (i + 1) * tiles) : c.next;
    if (tiles == 1) {
      linear_tile(op, c, i, rows.begin, rows.end, next);
    } else {
      each_call(op, c, i * tiles, rows, next, [&](const Call& call) { activated_pair(op, c, i, call); });
    }
  }
}

}  // namespace

void run_linear(const LinearOp& op, const OpContext& c, int worker) {
  const int tiles = leaves_groups(op.leaves, c) ? 2 : 1;
  const int items = tiles_of(op, *c.model) / tiles;
  for (int begin = 0, end = 0, part = 0; begin < c.rows->count; begin = end, ++part) {
    end = end_of_pass(c, begin);
    claim_all(c, worker, part, items, [&](Range range) {
      run_items(op, c, range, tiles, {begin, end}, c.pool->end_of_range(range.begin, items));
      if (begin == 0) c.counters[worker].tiles += static_cast<uint64_t>((range.end - range.begin) * tiles);
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
  alignas(kCacheLine) float out[kMaxCallRows * kTileRows];
  const auto tile = [&](int t, const uint8_t* next) {
    const int column = t * kTileRows;
    const int n = std::min(kTileRows, m.rows - column);
    Call call{0, 0, next};
    for (; call.row < count; call.row += call.rows, call.next = nullptr) {
      call.rows = rows_of_call(c.activations, *c.kernels, m.format, call.row, count);
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
    c.counters[worker].tiles += static_cast<uint64_t>(range.end - range.begin);
  });
}

}  // namespace spola
