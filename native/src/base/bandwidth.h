// How fast this machine reads memory: the bound that decoding is compared with.
#pragma once

#include <cstddef>
#include <vector>

namespace spola {

// Reads a fresh buffer of `bytes` with `threads` workers, `passes` times, and returns the bytes per second
// of each pass. Throws std::invalid_argument on impossible numbers, std::bad_alloc without memory.
std::vector<double> measure_read_bandwidth(size_t bytes, int threads, int passes, bool huge_pages);

}  // namespace spola
