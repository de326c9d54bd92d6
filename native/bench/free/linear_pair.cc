#include "free/linear_pair.h"

#include <algorithm>
#include "kernels/row_groups.h"

namespace spola::free_order {

LinearPair::LinearPair(const spola::Kernels& kernels, const Kernels& free, ThreadPool& pool, GgmlType type,
                       const std::vector<Shape>& shapes, int layers)
    : pool_(pool) {
  const Scheme scheme = scheme_of(type, false);
  kernel_ = kernels.tile[static_cast<int>(scheme)][static_cast<int>(ActFormat::kA8)];
  free_ = scheme == Scheme::kU4S ? free.one_u4s : free.one_u4sm;
  size_t bytes = 0;
  int most = 0;
  for (const Shape& s : shapes) {
    bytes += packed_bytes(scheme, s.rows, s.cols) * static_cast<size_t>(layers);
    most = std::max(most, s.rows);
    inputs_.push_back(std::make_unique<bench::Inputs>(1, s.cols));
  }
  weights_ = Mapping(bytes, true);
  uint8_t* at = weights_.data();
  for (int layer = 0; layer < layers; ++layer) {
    for (size_t i = 0; i < shapes.size(); ++i) {
      const int tiles = shapes[i].rows / kTileRows;
      matrices_.push_back({at, tiles, tile_bytes(scheme, shapes[i].cols), inputs_[i].get()});
      bench::fill_tiles(type, scheme, shapes[i].cols, tiles, at);
      at += packed_bytes(scheme, shapes[i].rows, shapes[i].cols);
    }
  }
  result_.resize(static_cast<size_t>(most));
  halves_.resize(static_cast<size_t>(most) * 4);
  sums_.resize(static_cast<size_t>(pool.size()), std::vector<float>(static_cast<size_t>(most)));
}

// Where the worker reads on after matrix `stage`.
const uint8_t* LinearPair::next_of(size_t stage, int worker) const {
  if (stage + 1 >= matrices_.size()) return nullptr;
  const Matrix& m = matrices_[stage + 1];
  return m.data + static_cast<size_t>(share(m.tiles, worker, pool_.size()).begin) * m.tile_bytes;
}

void LinearPair::run(TileKernel kernel) {
  pool_.run(static_cast<int>(matrices_.size()), [&](int worker, int stage) {
    const Matrix& m = matrices_[static_cast<size_t>(stage)];
    Activations a = m.in->act;
    for (Range range; range = pool_.claim(worker, stage, 0, m.tiles), range.begin < range.end;) {
      const int last = pool_.end_of_range(range.begin, m.tiles);
      for (int t = range.begin; t < range.end; ++t) {
        const uint8_t* tile = m.data + static_cast<size_t>(t) * m.tile_bytes;
        a.next = t + 1 < last ? tile + m.tile_bytes : next_of(static_cast<size_t>(stage), worker);
        kernel(tile, a, 0, 1, &result_[static_cast<size_t>(t) * kTileRows]);
      }
    }
  });
}

// Sums of two matrices lie side by side: while one is added, the next is written.
float* LinearPair::halves(size_t stage) { return halves_.data() + stage % 2 * halves_.size() / 2; }

void LinearPair::add_halves(size_t stage, float* to) {
  const Matrix& m = matrices_[stage];
  const float *first = halves(stage), *second = first + m.tiles * kTileRows;
  for (int i = 0; i < m.tiles * kTileRows; ++i) to[i] = first[i] + second[i];
}

void LinearPair::split() {
  pool_.run(static_cast<int>(matrices_.size()), [&](int worker, int stage) {
    const size_t s = static_cast<size_t>(stage);
    const Matrix& m = matrices_[s];
    if (stage > 0) add_halves(s - 1, sums_[static_cast<size_t>(worker)].data());
    const int count = 2 * m.tiles, k = m.in->act.k / 2;
    for (Range range; range = pool_.claim(worker, stage, 0, count), range.begin < range.end;) {
      const int last = pool_.end_of_range(range.begin, count);
      for (int i = range.begin; i < range.end; ++i) {
        const int half = i / m.tiles, t = i % m.tiles;
        Activations a = m.in->act;
        a.k = k;
        a.q8 += half * k;
        a.d8 += half * k / 32;
        a.s8 += half * k / 32;
        a.h8 += half * k / 16;
        const size_t begin = static_cast<size_t>(half) * (m.tile_bytes / 2);
        const uint8_t* tile = m.data + static_cast<size_t>(t) * m.tile_bytes + begin;
        a.next = i + 1 < last && t + 1 < m.tiles ? tile + m.tile_bytes : nullptr;
        kernel_(tile, a, 0, 1, halves(s) + static_cast<size_t>(i) * kTileRows);
      }
    }
  });
  add_halves(matrices_.size() - 1, result_.data());
}

ManyPair::ManyPair(const spola::Kernels& kernels, const Kernels& free, GgmlType type, const Shape& shape,
                   int rows)
    : kernels_(kernels), in_(rows, shape.cols), ours_(in_.act), free_rows_(in_.act), rows_(rows) {
  const Scheme scheme = scheme_of(type, false);
  kernel_ = kernels.tile[static_cast<int>(scheme)][static_cast<int>(ActFormat::kA8)];
  free_ = scheme == Scheme::kU4S ? free.many_u4s : free.many_u4sm;
  tile_bytes_ = tile_bytes(scheme, shape.cols);
  const int tiles = shape.rows / kTileRows;
  weights_ = Mapping(tile_bytes_ * static_cast<size_t>(tiles), true);
  bench::fill_tiles(type, scheme, shape.cols, tiles, weights_.data());
  groups_.resize(grouped_bytes(static_cast<size_t>(rows), static_cast<size_t>(shape.cols)));
  free_groups_.resize(groups_.size());
  put_into_groups(ours_, rows, kernels.rows, groups_.data());
  put_into_groups(free_rows_, rows, kManyRows, free_groups_.data());
  result_.resize(static_cast<size_t>(tiles * rows * kTileRows));
}

void ManyPair::ours() {
  run(kernel_, ours_, [&](int row) { return rows_of_call(ours_, kernels_, ActFormat::kA8, row, rows_); });
}

void ManyPair::free() {
  run(free_, free_rows_, [&](int row) { return std::min(rows_ - row, kMaxCallRows); });
}

template <class RowsOf>
void ManyPair::run(TileKernel kernel, Activations a, const RowsOf& rows_of) {
  float* out = result_.data();
  for (size_t at = 0; at < weights_.size(); at += tile_bytes_) {
    a.next = at + 2 * tile_bytes_ <= weights_.size() ? weights_.data() + at + tile_bytes_ : nullptr;
    for (int row = 0, n = 0; row < rows_; row += n, a.next = nullptr, out += n * kTileRows) {
      n = rows_of(row);
      kernel(weights_.data() + at, a, row, n, out);
    }
  }
}

}  // namespace spola::free_order
