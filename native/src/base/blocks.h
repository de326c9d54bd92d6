// The quantized blocks of GGUF tensors, as they lie in a file (little-endian, no padding), and those that
// groups of other formats are put together as before they are packed.
//
// Only the structs and the table of their sizes; decoding is in kernels/expand.h, packing in
// kernels/pack.h. Source: ggml's block definitions, GGUF v2 and v3.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spola {

enum class GgmlType : int32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kIQ4_XS = 23,
  kBF16 = 30,
  kMXFP4 = 39,
  // Not of GGUF: formats whose codes, scales and zero points are tensors of their own.
  kE4M3 = 1000,    // FP8 with a scale per tensor, row or block of 64k columns
  kU4Z64 = 1001,   // 4 bits, group 64, scale and zero point
  kU4Z128 = 1002,  // the same, group 128
  kI8C = 1003,     // int8, scale per row
};

using half_bits = uint16_t;

// Legacy types: 32 values. Byte i of qs holds value i (low nibble) and value i + 16 (high nibble).
struct BlockQ4_0 {
  half_bits d;
  uint8_t qs[16];
};
struct BlockQ4_1 {
  half_bits d, m;
  uint8_t qs[16];
};
struct BlockQ5_0 {
  half_bits d;
  uint8_t qh[4];  // bit i: fifth bit of value i
  uint8_t qs[16];
};
struct BlockQ5_1 {
  half_bits d, m;
  uint8_t qh[4];
  uint8_t qs[16];
};
struct BlockQ8_0 {
  half_bits d;
  int8_t qs[32];
};
struct BlockIQ4_NL {
  half_bits d;
  uint8_t qs[16];  // indices into kIQ4Values
};
struct BlockMXFP4 {
  uint8_t e;       // E8M0 exponent
  uint8_t qs[16];  // indices into kMXFP4Values (twice the E2M1 values)
};

// K-quants: 256 values in sub-blocks of 16 or 32.
struct BlockQ2_K {
  uint8_t scales[16];  // low nibble scale, high nibble min, of 16 values each
  uint8_t qs[64];
  half_bits d, dmin;
};
struct BlockQ3_K {
  uint8_t hmask[32];
  uint8_t qs[64];
  uint8_t scales[12];  // sixteen 6-bit scales
  half_bits d;
};
struct BlockQ4_K {
  half_bits d, dmin;
  uint8_t scales[12];  // eight 6-bit scales and mins
  uint8_t qs[128];
};
struct BlockQ5_K {
  half_bits d, dmin;
  uint8_t scales[12];
  uint8_t qh[32];  // bit s of byte l: fifth bit of value l of sub-block s
  uint8_t qs[128];
};
struct BlockQ6_K {
  uint8_t ql[128];
  uint8_t qh[64];
  int8_t scales[16];
  half_bits d;
};
struct BlockIQ4_XS {
  half_bits d;
  uint16_t scales_h;
  uint8_t scales_l[4];
  uint8_t qs[128];
};

// value = d * (code - z); 4-bit codes lie as in Q4_0 for every 32 columns.
struct BlockU4Z64 {
  half_bits d, z;
  uint8_t qs[32];
};
struct BlockU4Z128 {
  half_bits d, z;
  uint8_t qs[64];
};
// A scale per row comes again in every block of it.
struct BlockI8C {
  float d;
  int8_t qs[64];
};
// Codes: 1 bit sign, 4 bits exponent with bias 7, 3 bits mantissa; OCP 8-bit floating point, E4M3.
struct BlockE4M3 {
  float d;
  uint8_t qs[64];
};

static_assert(sizeof(BlockU4Z64) == 36 && sizeof(BlockU4Z128) == 68);
static_assert(sizeof(BlockI8C) == 68 && sizeof(BlockE4M3) == 68);
static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20);
static_assert(sizeof(BlockQ5_0) == 22 && sizeof(BlockQ5_1) == 24);
static_assert(sizeof(BlockQ8_0) == 34 && sizeof(BlockIQ4_NL) == 18 && sizeof(BlockMXFP4) == 17);
static_assert(sizeof(BlockQ2_K) == 84 && sizeof(BlockQ3_K) == 110 && sizeof(BlockQ4_K) == 144);
static_assert(sizeof(BlockQ5_K) == 176 && sizeof(BlockQ6_K) == 210 && sizeof(BlockIQ4_XS) == 136);

struct TypeShape {
  int values;  // per block; 0 for a type that is not known
  int bytes;   // per block
};

constexpr TypeShape type_shape(GgmlType type) {
  switch (type) {
    case GgmlType::kF32: return {1, 4};
    case GgmlType::kF16: return {1, 2};
    case GgmlType::kBF16: return {1, 2};
    case GgmlType::kQ4_0: return {32, sizeof(BlockQ4_0)};
    case GgmlType::kQ4_1: return {32, sizeof(BlockQ4_1)};
    case GgmlType::kQ5_0: return {32, sizeof(BlockQ5_0)};
    case GgmlType::kQ5_1: return {32, sizeof(BlockQ5_1)};
    case GgmlType::kQ8_0: return {32, sizeof(BlockQ8_0)};
    case GgmlType::kQ2_K: return {256, sizeof(BlockQ2_K)};
    case GgmlType::kQ3_K: return {256, sizeof(BlockQ3_K)};
    case GgmlType::kQ4_K: return {256, sizeof(BlockQ4_K)};
    case GgmlType::kQ5_K: return {256, sizeof(BlockQ5_K)};
    case GgmlType::kQ6_K: return {256, sizeof(BlockQ6_K)};
    case GgmlType::kIQ4_NL: return {32, sizeof(BlockIQ4_NL)};
    case GgmlType::kIQ4_XS: return {256, sizeof(BlockIQ4_XS)};
    case GgmlType::kMXFP4: return {32, sizeof(BlockMXFP4)};
    case GgmlType::kE4M3: return {64, sizeof(BlockE4M3)};
    case GgmlType::kU4Z64: return {64, sizeof(BlockU4Z64)};
    case GgmlType::kU4Z128: return {128, sizeof(BlockU4Z128)};
    case GgmlType::kI8C: return {64, sizeof(BlockI8C)};
  }
  return {0, 0};
}

// Bytes of one row of `cols` values (a multiple of the type's block).
constexpr size_t row_bytes(GgmlType type, int cols) {
  return static_cast<size_t>(cols / type_shape(type).values) * static_cast<size_t>(type_shape(type).bytes);
}

}  // namespace spola
