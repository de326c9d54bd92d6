// From GGUF rows to packed tiles, and back.
//
// A packed matrix of N rows is ceil(N / 16) tiles of tile_bytes() each, one after the other. Tiles are
// independent of each other: callers pack them in any order, from any rows, on any thread. No allocation,
// no I/O, no threads here. Layouts: records.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/blocks.h"
#include "kernels/records.h"
#include "kernels/table.h"

namespace spola {

// Scheme that weights of `type` are packed in. `precise` asks for int16 activations, which 4-, 5- and
// 6-bit types get through the generic int8 schemes. kCount for a type that is not known.
Scheme scheme_of(GgmlType type, bool precise);

// Activations that kernels of the scheme take.
ActFormat act_format(Scheme scheme, bool precise);

// Bytes of one tile, and of a matrix of `rows` rows. `cols` must be a multiple of the type's block.
size_t tile_bytes(Scheme scheme, int cols);
size_t packed_bytes(Scheme scheme, int64_t rows, int cols);

// Packs 16 rows of `cols` values each into `tile`. rows[i] points at the GGUF bytes of row i; null gives
// an output row of zeros. Returns false when a scale or a float is not finite (the tile is then unusable).
bool pack_tile(GgmlType type, Scheme scheme, const uint8_t* const rows[kTileRows], int cols, uint8_t* tile);

// Whether the scheme keeps every bit of its GGUF type.
bool is_lossless(Scheme scheme);

// Writes row `row` of a packed matrix as GGUF bytes. Only for lossless schemes: false otherwise.
bool unpack_row(Scheme scheme, const uint8_t* packed, int64_t row, int cols, uint8_t* out);

// Decodes row `row` of a packed matrix to `cols` floats, bit-equal to ggml's reference decoding.
void decode_row(Scheme scheme, const uint8_t* packed, int64_t row, int cols, float* out);

}  // namespace spola
