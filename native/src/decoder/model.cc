#include "decoder/model.h"

#include <atomic>
#include <climits>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "base/align.h"
#include "base/half.h"
#include "kernels/pack.h"

namespace spola {
namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& why) {
  throw std::invalid_argument("tensor " + name + ": " + why);
}

GgmlType checked_type(const std::string& name, int type, int64_t elements, size_t bytes) {
  const GgmlType t = static_cast<GgmlType>(type);
  const TypeShape shape = type_shape(t);
  if (shape.values == 0) refuse(name, "type " + std::to_string(type) + " is not known to the kernels");
  if (elements <= 0 || elements % shape.values != 0) refuse(name, "is no whole number of blocks");
  const uint64_t wanted = static_cast<uint64_t>(elements / shape.values) * static_cast<uint64_t>(shape.bytes);
  if (wanted != bytes) {
    refuse(name, "has " + std::to_string(bytes) + " bytes, its shape needs " + std::to_string(wanted));
  }
  return t;
}

// One stage of `count` items on all workers.
template <class Do>
void run_shared(ThreadPool& pool, int count, Do work) {
  pool.run(1, [&](int worker, int stage) {
    for (Range range; range = pool.claim(worker, stage, 0, count), range.begin < range.end;) work(range);
  });
}

float read_float(GgmlType type, const uint8_t* data, int64_t i) {
  if (type == GgmlType::kF32) {
    float f;
    std::memcpy(&f, data + i * 4, sizeof f);
    return f;
  }
  uint16_t h;
  std::memcpy(&h, data + i * 2, sizeof h);
  return type == GgmlType::kF16 ? f16_to_f32(h) : bf16_to_f32(h);
}

}  // namespace

Model::Model(size_t limit, bool huge_pages, bool precise, const Kernels* kernels)
    : arena_(limit, huge_pages), precise_(precise), kernels_(kernels) {}

int Model::add_matrix(ThreadPool& pool, const std::string& name, int type_id, int64_t rows, int64_t cols,
                      const uint8_t* data, size_t bytes) {
  if (rows <= 0 || cols <= 0 || rows > INT_MAX - kTileRows || cols > (1 << 24))
    refuse(name, "has an impossible shape");
  const GgmlType type = checked_type(name, type_id, rows * cols, bytes);
  if (cols % type_shape(type).values != 0) refuse(name, "rows are no whole number of blocks");

  Matrix m;
  m.scheme = scheme_of(type, precise_);
  if (m.scheme == Scheme::kCount)
    refuse(name, "type " + std::to_string(type_id) + " is not known to the kernels");
  m.format = act_format(m.scheme, precise_);
  if (!kernels_->tile[static_cast<int>(m.scheme)][static_cast<int>(m.format)]) {
    refuse(name, std::string("no ") + kernels_->isa + " kernel for type " + std::to_string(type_id));
  }
  m.rows = static_cast<int>(rows);
  m.cols = static_cast<int>(cols);
  m.tiles = ceil_div(m.rows, kTileRows);
  m.tile_bytes = tile_bytes(m.scheme, m.cols);
  uint8_t* packed = arena_.allocate(m.tile_bytes * static_cast<size_t>(m.tiles));
  m.data = packed;

  const size_t stride = row_bytes(type, m.cols);
  std::atomic<bool> finite{true};
  run_shared(pool, m.tiles, [&](Range range) {
    for (int t = range.begin; t < range.end; ++t) {
      const uint8_t* row[kTileRows];
      for (int j = 0; j < kTileRows; ++j) {
        const int64_t n = int64_t{t} * kTileRows + j;
        row[j] = n < rows ? data + static_cast<size_t>(n) * stride : nullptr;
      }
      if (!pack_tile(type, m.scheme, row, m.cols, packed + static_cast<size_t>(t) * m.tile_bytes))
        finite = false;
    }
  });
  if (!finite) refuse(name, "holds a value or scale that is not finite; the file is damaged");
  matrices_.push_back(m);
  return static_cast<int>(matrices_.size()) - 1;
}

int Model::add_vector(const std::string& name, int type_id, int64_t n, const uint8_t* data, size_t bytes,
                      float offset) {
  if (n <= 0 || n > INT_MAX) refuse(name, "has an impossible shape");
  const GgmlType type = checked_type(name, type_id, n, bytes);
  if (type_shape(type).values != 1) refuse(name, "must be F32, F16 or BF16, like every norm and bias");
  float* values = reinterpret_cast<float*>(arena_.allocate(static_cast<size_t>(n) * sizeof(float)));
  for (int64_t i = 0; i < n; ++i) {
    values[i] = read_float(type, data, i);
    if (!std::isfinite(values[i])) refuse(name, "holds a value that is not finite; the file is damaged");
    if (offset != 0.0f) values[i] += offset;
  }
  vectors_.push_back({values, static_cast<int>(n)});
  return static_cast<int>(vectors_.size()) - 1;
}

int Model::add_rope(ThreadPool& pool, const std::vector<double>& frequencies, double factor, bool interleaved,
                    int positions) {
  RopeTable table;
  table.half = static_cast<int>(frequencies.size());
  table.interleaved = interleaved;
  const size_t n = static_cast<size_t>(positions) * frequencies.size();
  float* cosine = reinterpret_cast<float*>(arena_.allocate(n * sizeof(float)));
  float* sine = reinterpret_cast<float*>(arena_.allocate(n * sizeof(float)));
  run_shared(pool, positions, [&](Range range) {
    for (int p = range.begin; p < range.end; ++p) {
      for (int i = 0; i < table.half; ++i) {
        const double angle = static_cast<double>(p) * frequencies[i];
        const size_t at = static_cast<size_t>(p) * table.half + i;
        cosine[at] = static_cast<float>(std::cos(angle) * factor);
        sine[at] = static_cast<float>(std::sin(angle) * factor);
      }
    }
  });
  table.cosine = cosine;
  table.sine = sine;
  ropes_.push_back(table);
  return static_cast<int>(ropes_.size()) - 1;
}

}  // namespace spola
