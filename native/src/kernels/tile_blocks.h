// GGUF blocks in a lane of a packed tile, and out of it again, bit by bit: for schemes that keep every bit of their
// type. Which scheme a type has, whole tiles and decoding are pack.h's; where things lie, records.h's.
#pragma once

#include <cstdint>

#include "base/blocks.h"
#include "kernels/records.h"
#include "kernels/table.h"

namespace spola {

// Place of the dword of `lane` in group j of the groups at p.
inline uint8_t* group_dword(uint8_t* p, int j, int lane) { return p + j * kGroupBytes + lane * 4; }

// `cols` values of the blocks (or floats) at `row` into lane `lane` of the records at `tile`; lanes are zero before.
// False, and nothing done, for a scheme that is not lossless.
bool put_blocks(Scheme scheme, const uint8_t* row, int cols, int lane, uint8_t* tile);

// The same from the tile to `row`.
bool take_blocks(Scheme scheme, const uint8_t* tile, int lane, int cols, uint8_t* row);

}  // namespace spola
