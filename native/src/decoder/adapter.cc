#include "decoder/adapter.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "base/align.h"
#include "decoder/ops.h"

namespace spola {
namespace {

constexpr int kLanes = 16;

// Products in sixteen lanes, each in ascending order, then pairs of lanes: docs/numerics.md.
float dot16(const float* a, const float* x, int n) {
  float lane[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) lane[l] += a[i + l] * x[i + l];
  }
  for (int l = 0; i + l < n; ++l) lane[l] += a[i + l] * x[i + l];
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lane[l] += lane[l + half];
  }
  return lane[0];
}

}  // namespace

size_t Adapter::bytes() const {
  size_t floats = 0;
  for (const LowRank& pair : site) floats += pair.a.size() + pair.b.size();
  return floats * sizeof(float);
}

LowRank make_low_rank(int rank, float scale, int rows, int cols, const float* a, size_t a_count, const float* b,
                      size_t b_count) {
  if (rank < 1 || a_count != static_cast<size_t>(rank) * cols || b_count != static_cast<size_t>(rows) * rank) {
    throw std::invalid_argument("the factors of an adapter do not fit its matrix");
  }
  const auto finite = [](const float* x, size_t n) {
    return std::all_of(x, x + n, [](float value) { return std::isfinite(value); });
  };
  if (!finite(a, a_count) || !finite(b, b_count)) {
    throw std::invalid_argument("an adapter holds values that are not finite");
  }
  LowRank pair;
  pair.rank = rank;
  pair.cols = cols;
  pair.scale = scale;
  pair.a.assign(a, a + a_count);
  pair.b.assign(static_cast<size_t>(ceil_div(rows, kTileRows)) * rank * kTileRows, 0.0f);
  for (int row = 0; row < rows; ++row) {
    for (int k = 0; k < rank; ++k) {
      const size_t record = static_cast<size_t>(row / kTileRows) * rank + k;
      pair.b[record * kTileRows + row % kTileRows] = b[static_cast<size_t>(row) * rank + k];
    }
  }
  return pair;
}

void run_adapter(const AdapterOp& op, const Activations& activations, const OpContext& c, Range rows) {
  if (!c.rows->adapted) return;
  const size_t width = static_cast<size_t>(c.work->width(Buffer::kDelta));
  for (int row = rows.begin; row < rows.end; ++row) {
    const Adapter* adapter = c.rows->adapter[row];
    if (!adapter) continue;
    const float* x = activations.f32 + static_cast<size_t>(row) * activations.k;
    for (int part = 0; part < op.parts; ++part) {
      if (op.site[part] == kNoId) continue;
      const LowRank& pair = adapter->site[static_cast<size_t>(op.site[part])];
      float* t = c.work->buffer(Buffer::kDelta) + row * width + static_cast<size_t>(part) * op.max_rank;
      for (int k = 0; k < pair.rank; ++k) {
        t[k] = pair.scale * dot16(pair.a.data() + static_cast<size_t>(k) * pair.cols, x, pair.cols);
      }
    }
  }
}

void add_deltas(const OpContext& c, const LinearPart& part, int tile, int row, int rows, float* out) {
  const size_t width = static_cast<size_t>(c.work->width(Buffer::kDelta));
  for (int r = 0; r < rows; ++r) {
    const Adapter* adapter = c.rows->adapter[row + r];
    if (!adapter) continue;
    const LowRank& pair = adapter->site[static_cast<size_t>(part.site)];
    if (pair.rank == 0) continue;
    const float* t = c.work->buffer(Buffer::kDelta) + (row + r) * width + part.at;
    const float* b = pair.b.data() + static_cast<size_t>(tile) * pair.rank * kTileRows;
    float delta[kTileRows] = {};
    for (int k = 0; k < pair.rank; ++k) {
      for (int j = 0; j < kTileRows; ++j) delta[j] += t[k] * b[k * kTileRows + j];
    }
    for (int j = 0; j < kTileRows; ++j) out[r * kTileRows + j] += delta[j];
  }
}

}  // namespace spola
