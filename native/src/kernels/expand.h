// One GGUF block as int8 codes with a scale and a min per group: value = scale * code + min.
//
// The plain decoding that the generic packed schemes and the embedding lookup are made of. Products and
// sums of the caller round separately, which makes the values equal to ggml's reference decoding.
#pragma once

#include <cstdint>

#include "base/blocks.h"

namespace spola {

// Values of the non-linear 4-bit types, by code.
extern const int8_t kIQ4Values[16];
extern const int8_t kMXFP4Values[16];

struct Expanded {
  int8_t code[256];
  float scale[16];
  float min[16];
};

// Values per scale of a quantized type: 16, 32 or 64; 0 for F32, F16, BF16.
int group_of(GgmlType type);
// Whether the type has mins.
bool has_min(GgmlType type);

// Decodes the block at `block`, which holds integer codes (E4M3 does not). `min` is set only where the type
// has mins.
void expand_block(GgmlType type, const uint8_t* block, Expanded* out);

// Whether all scales, mins and floats of a row of `cols` values are finite, and so is what they give.
bool row_finite(GgmlType type, const uint8_t* row, int cols);

}  // namespace spola
