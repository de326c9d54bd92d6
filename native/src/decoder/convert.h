// Stored tensors from one GGUF type to another, by rows, on several threads.
#pragma once

#include <cstdint>
#include <string>

#include "base/blocks.h"

namespace spola {

// Rewrites `rows` rows of `cols` values at `in` as rows of another type at `out`. Both types divide `cols`. The
// result does not depend on the number of threads. Gives an empty string, or what is wrong with the first row
// that cannot be stored.
std::string convert_rows(GgmlType from, GgmlType to, int64_t rows, int64_t cols, const uint8_t* in,
                         uint8_t* out, int threads);

}  // namespace spola
