// Random GGUF rows, and their decoding written a second time: walking pointers in file order, as the format
// is usually described, where the library goes by column. For tests only.
#pragma once

#include <vector>

#include "base/blocks.h"
#include "check.h"

namespace blocks {

using spola::GgmlType;

struct NamedType {
  GgmlType type;
  const char* name;
};
extern const NamedType kAll[20];

// How to fill a row.
enum class Fill { kRandom, kTypical, kLowest, kHighest };

// `cols` values of random blocks with finite scales of either sign, a few of them subnormal (kTypical: none,
// for measuring). kLowest: all code bits 0 (-128 where codes are int8); kHighest: all code bits 1 (127).
std::vector<uint8_t> make_row(GgmlType type, int cols, Fill fill, check::Random& random);

// Decodes a row. f32 products and sums rounded one by one.
std::vector<float> decode(GgmlType type, const std::vector<uint8_t>& row, int cols);

}  // namespace blocks
