// The weights of a decoder: packed matrices in execution order, vectors, rope tables.
//
// Filled once at load, then read-only. Knows nothing of layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/blocks.h"
#include "base/thread_pool.h"
#include "kernels/table.h"

namespace spola {

struct Matrix {
  Scheme scheme = Scheme::kF32;
  ActFormat format = ActFormat::kF32;
  int rows = 0;
  int cols = 0;
  int tiles = 0;
  size_t tile_bytes = 0;
  const uint8_t* data = nullptr;
};

struct Vector {
  const float* data = nullptr;
  int size = 0;
};

// Cosines and sines of every position: [positions][half].
struct RopeTable {
  int half = 0;
  bool interleaved = false;
  const float* cosine = nullptr;
  const float* sine = nullptr;
};

class Model {
 public:
  // `limit`: bytes that weights may take in all.
  Model(size_t limit, bool huge_pages, bool precise, const Kernels* kernels);

  // Packs a tensor of GGUF blocks, tiles shared out over the pool; returns its index. Throws
  // std::invalid_argument naming the tensor on a wrong type or size, or a scale that is not finite.
  int add_matrix(ThreadPool& pool, const std::string& name, int type, int64_t rows, int64_t cols,
                 const uint8_t* data, size_t bytes);

  // Takes F32, F16 or BF16 values, adds `offset` to each; returns its index. Throws as add_matrix.
  int add_vector(const std::string& name, int type, int64_t n, const uint8_t* data, size_t bytes,
                 float offset);

  // cos and sin of position * frequency times `factor`, in f64, rounded to f32; returns its index.
  int add_rope(ThreadPool& pool, const std::vector<double>& frequencies, double factor, bool interleaved,
               int positions);

  const Matrix& matrix(int index) const { return matrices_.at(index); }
  const Vector& vector(int index) const { return vectors_.at(index); }
  const RopeTable& rope(int index) const { return ropes_.at(index); }
  size_t bytes() const { return arena_.used(); }

 private:
  Arena arena_;
  bool precise_;
  const Kernels* kernels_;
  std::vector<Matrix> matrices_;
  std::vector<Vector> vectors_;
  std::vector<RopeTable> ropes_;
};

}  // namespace spola
