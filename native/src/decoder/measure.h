// What this processor and these kernels can do, in seconds: the figures behind `spola bench`.
#pragma once

#include <vector>

#include "base/blocks.h"
#include "kernels/table.h"

namespace spola {

// Multiply-adds per second of all `threads` together, one figure per pass of some milliseconds, of the
// instructions that kernels for `format` are made of. Throws std::invalid_argument on impossible numbers.
std::vector<double> measure_peak(const Kernels& kernels, ActFormat format, int threads, int passes);

// The same of one thread for the kernel of `type`: its own ceiling, with all that it does for each activation
// row (Kernels::mix).
std::vector<double> measure_mix(const Kernels& kernels, GgmlType type, bool precise, int passes);

struct LinearTime {
  ActFormat format;
  size_t bytes;                 // of the packed weights
  std::vector<double> seconds;  // of each pass
};

// One thread's time for a matrix of rows x cols of `type` times m activation rows, as the decoder calls the
// kernels. Throws std::invalid_argument on impossible numbers.
LinearTime measure_linear(const Kernels& kernels, GgmlType type, bool precise, int rows, int cols, int m,
                          int passes);

}  // namespace spola
