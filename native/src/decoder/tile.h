// Products of one tile, and what linear ops share of where their values go.
#pragma once

#include "decoder/ops.h"

namespace spola {

// Rows row .. row + rows of the step; `next` is the tile that will be read after theirs, or null.
struct Call {
  int row;
  int rows;
  const uint8_t* next;
};

inline const uint8_t* tile_data(const Matrix& m, int tile) {
  return m.data + static_cast<size_t>(tile) * m.tile_bytes;
}

// One tile for the rows of a call, with what adapters add and the bias: out[r * 16 + j].
void product(const OpContext& c, const LinearPart& part, int tile, const Call& call, float* out);

// Values of `rows` rows, n of sixteen each, to y, whose rows are op.width apart.
void store(const LinearOp& op, const float* values, int rows, int n, float* y);

// Asks for the lines of an output that will be written, so that stores do not wait for them: a row of a prompt's
// buffers lies far from the next, and all of them are more than the caches near a core hold.
void prefetch_output(const LinearOp& op, int rows, const float* y);

// A tile of an op whose epilogue is an activation.
void activated_tile(const LinearOp& op, const OpContext& c, int tile, const Call& call);

// Tiles 2 * pair and 2 * pair + 1 of such an op, which leaves_groups(): a block of 32 columns, quantized.
void activated_pair(const LinearOp& op, const OpContext& c, int pair, const Call& call);

}  // namespace spola
