// Sums of integers that are f32 numbers without a conversion.
//
// A sum i that starts at kMagicBits, the bits of kMagic = 1.5 * 2^23, is kMagic + i when its bits are read as f32,
// as long as |i| < 2^22; those of docs/numerics.md are at most 32 * 31 * 127. With the addend -w * kMagic one FMA
// makes w * i of it, rounded once: the addend is exact, since w, an f16 times a scale of 6 or 8 bits, has at most
// 18 significant bits and kMagic two. Where w * i is zero it comes out as +0, as the page asks.
#pragma once

#include <cstdint>

namespace spola {

constexpr int32_t kMagicBits = 0x4b400000;
constexpr float kMagic = 12582912.0f;

}  // namespace spola
