// Low-rank adapters: what a row's request adds to the products of linear ops, y = W x + B (A x).
//
// A site is a matrix of the program that adapters may change. Each row computes with its own request's adapter, in
// an order that depends on nothing else, so that it gets the same bits in any batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/thread_pool.h"

namespace spola {

struct Activations;
struct OpContext;
struct AdapterOp;
struct LinearPart;

constexpr int kMaxRank = 1024;

// The pair for one site; rank 0: the adapter leaves the site alone.
struct LowRank {
  int rank = 0;
  int cols = 0;
  float scale = 1.0f;    // of A x
  std::vector<float> a;  // [rank][cols]
  std::vector<float> b;  // [tile of 16 outputs][rank][16], zeros behind the last output
};

struct Adapter {
  std::vector<LowRank> site;

  size_t bytes() const;
};

// B row-major [rows][rank] in tiles. Throws std::invalid_argument for sizes that do not fit or values that are not
// finite.
LowRank make_low_rank(int rank, float scale, int rows, int cols, const float* a, size_t a_count, const float* b, size_t b_count);

// t = A x for those of the rows that have an adapter, x being their prepared activations, and every part of the op.
void run_adapter(const AdapterOp& op, const Activations& x, const OpContext& c, Range rows);

// out[r * 16 + j] += (B t)[j] of tile `tile` for rows row .. row + rows.
void add_deltas(const OpContext& c, const LinearPart& part, int tile, int row, int rows, float* out);

}  // namespace spola
