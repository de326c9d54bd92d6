// Values to GGUF blocks, rounded to nearest; and any stored type back to f32.
//
// Plain types follow ggml's reference rounding, so that their bytes are those that other writers give. Q4_K and
// Q6_K fit scales and mins by weighted least squares over a small grid of steps. Portable code, compiled for
// several instruction sets with equal results; for files and loading, not for the loops of a step.
#pragma once

#include <cstdint>

#include "base/blocks.h"

namespace spola {

// Whether values can be encoded as `type`: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q6_K.
bool can_encode(GgmlType type);

// Row-major f32 of `n` stored values (whole blocks) at `row`, which lies at any address.
void decode_values(GgmlType type, const uint8_t* row, int64_t n, float* out);

// `n` finite values (whole blocks) as blocks at `out`. The type must be one that can be encoded.
void encode_values(GgmlType type, const float* x, int64_t n, uint8_t* out);

}  // namespace spola
