// The matrices of all layers times one activation row: as the decoder does it, and in a free order. Nothing
// between the matrices but the meeting of the workers.
#pragma once

#include <memory>
#include <vector>

#include "base/arena.h"
#include "base/thread_pool.h"
#include "free/free.h"
#include "inputs.h"

namespace spola::free_order {

struct Shape {
  int rows, cols;
};

class LinearPair {
 public:
  // `type`: Q4_0 or Q4_1; `shapes`: the matrices of a layer.
  LinearPair(const spola::Kernels& kernels, const Kernels& free, ThreadPool& pool, GgmlType type,
             const std::vector<Shape>& shapes, int layers);

  void ours() { run(kernel_); }
  void free() { run(free_); }
  // Every worker takes one half of K, of all rows; the next stage adds the halves, each worker for itself.
  void split();
  // What the last call made of the last matrix.
  const std::vector<float>& result() const { return result_; }
  // Bytes of all weights.
  size_t bytes() const { return weights_.size(); }

 private:
  struct Matrix {
    const uint8_t* data;
    int tiles;
    size_t tile_bytes;
    const bench::Inputs* in;
  };

  void run(TileKernel kernel);
  const uint8_t* next_of(size_t stage, int worker) const;
  float* halves(size_t stage);
  void add_halves(size_t stage, float* to);

  TileKernel kernel_, free_;
  ThreadPool& pool_;
  std::vector<std::unique_ptr<bench::Inputs>> inputs_;
  std::vector<Matrix> matrices_;
  Mapping weights_;
  std::vector<float> result_, halves_;
  std::vector<std::vector<float>> sums_;  // of each worker
};

// A matrix times `rows` activation rows on one thread, weights in the second-level cache, activations in groups.
class ManyPair {
 public:
  // `rows`: a multiple of kManyRows, more than one call's.
  ManyPair(const spola::Kernels& kernels, const Kernels& free, GgmlType type, const Shape& shape, int rows);

  void ours();
  void free();
  // [tile][row][16]
  const std::vector<float>& result() const { return result_; }

 private:
  template <class RowsOf>
  void run(TileKernel kernel, Activations a, const RowsOf& rows_of);

  const spola::Kernels& kernels_;
  TileKernel kernel_, free_;
  bench::Inputs in_;
  Activations ours_, free_rows_;  // of in_, in groups
  int rows_;
  size_t tile_bytes_;
  std::vector<uint8_t> groups_, free_groups_;
  Mapping weights_;
  std::vector<float> result_;
};

}  // namespace spola::free_order
