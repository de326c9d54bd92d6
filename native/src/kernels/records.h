// Where things lie in a packed tile ("T16"): the one place that pack and kernels agree on.
//
// A tile holds 16 output rows over all of K, as records in ascending k. A SIMD lane is an output row; a
// "group" is 16 dwords (one per row) of 4 codes of consecutive k, 64 bytes. Offsets are in bytes from the
// start of a record. Every record is a multiple of 32 bytes.
#pragma once

#include "kernels/table.h"

namespace spola {

constexpr int kGroupBytes = kTileRows * 4;  // 4 values of k for all rows
constexpr int kHalfPlane = kTileRows * 2;   // one f16 per row
constexpr int kFloatPlane = kTileRows * 4;  // one f32 per row

struct RecordShape {
  int cols;  // values of k per record
  int bytes;
};

// 4 bits, 32 columns. Byte b of group j: column 4j + b (low nibble), 16 + 4j + b (high nibble).
namespace u4s {
constexpr int kD = 0, kQs = 32, kBytes = 288;
}
namespace u4sm {
constexpr int kD = 0, kM = 32, kQs = 64, kBytes = 320;
}

// 5 bits, 32 columns: as above, and a plane of one dword per row: bit j of byte b is the fifth bit of
// column 4j + b.
namespace u5s {
constexpr int kD = 0, kPlane = 32, kQs = 96, kBytes = 352;
}
namespace u5sm {
constexpr int kD = 0, kM = 32, kPlane = 64, kQs = 128, kBytes = 384;
}

// 8 bits, 32 columns, 8 groups. The bytes of a dword are columns 4j + {0, 2, 1, 3}: the even and the odd
// bytes, sign-extended to 16 bits, then pair up with (a0, a1) and (a2, a3).
namespace i8s {
constexpr int kD = 0, kQs = 32, kBytes = 544;
}

// K-quants, 256 columns. kScales: the 12 scale bytes as three planes of dwords. 4 pairs of sub-blocks of
// 32: eight groups, low nibble the even sub-block, high nibble the odd one. With 5 bits each pair starts
// with its two planes of fifth bits.
namespace u4k {
constexpr int kD = 0, kDmin = 32, kScales = 64, kPairs = 256, kPairBytes = 512, kPlanes = 0, kBytes = 2304;
}
namespace u5k {
constexpr int kD = 0, kDmin = 32, kScales = 64, kPairs = 256, kPairBytes = 640, kPlanes = 128, kBytes = 2816;
}

// 6 bits, 256 columns. kScales: for each 32 columns, two int8 per row. Then two halves of 128 columns:
// 16 groups of low nibbles (quarter q: groups 8 (q % 2) + j, nibble q / 2) and 8 groups of high bit pairs
// (bits 2q of group j).
namespace u6k {
constexpr int kD = 0, kScales = 32, kHalves = 288, kHalfBytes = 1536, kHigh = 1024, kBytes = 3360;
}

// 4 bits with zero points: for every 32 columns of the group the codes as in u4s.
namespace u4z {
constexpr int kD = 0, kZ = 32, kQs = 64, kBlockBytes = 256;
constexpr int bytes(int blocks) { return kQs + blocks * kBlockBytes; }
}  // namespace u4z

// 8-bit floats, 64 columns: f32 scales, then a byte per row and column.
namespace e4m3 {
constexpr int kScale = 0, kQs = 64, kCols = 64, kBytes = kQs + kCols * kTileRows;
}

// Generic int8 codes: f32 scales, f32 mins (M), then the groups in natural order.
namespace i8g16 {
constexpr int kScale = 0, kQs = 64, kBytes = 320;
}
namespace i8g16m {
constexpr int kScale = 0, kMin = 64, kQs = 128, kBytes = 384;
}
namespace i8g32 {
constexpr int kScale = 0, kQs = 64, kBytes = 576;
}
namespace i8g32m {
constexpr int kScale = 0, kMin = 64, kQs = 128, kBytes = 640;
}

namespace i8g64 {
constexpr int kScale = 0, kQs = 64, kBytes = 1088;
}

constexpr RecordShape record_shape(Scheme scheme) {
  switch (scheme) {
    case Scheme::kF32: return {1, kTileRows * 4};
    case Scheme::kF16: return {1, kTileRows * 2};
    case Scheme::kBF16: return {1, kTileRows * 2};
    case Scheme::kE4M3: return {e4m3::kCols, e4m3::kBytes};
    case Scheme::kU4S: return {32, u4s::kBytes};
    case Scheme::kU4SM: return {32, u4sm::kBytes};
    case Scheme::kU5S: return {32, u5s::kBytes};
    case Scheme::kU5SM: return {32, u5sm::kBytes};
    case Scheme::kI8S: return {32, i8s::kBytes};
    case Scheme::kU4K: return {256, u4k::kBytes};
    case Scheme::kU5K: return {256, u5k::kBytes};
    case Scheme::kU6K: return {256, u6k::kBytes};
    case Scheme::kU4Z64: return {64, u4z::bytes(2)};
    case Scheme::kU4Z128: return {128, u4z::bytes(4)};
    case Scheme::kI8G16: return {16, i8g16::kBytes};
    case Scheme::kI8G16M: return {16, i8g16m::kBytes};
    case Scheme::kI8G32: return {32, i8g32::kBytes};
    case Scheme::kI8G32M: return {32, i8g32m::kBytes};
    case Scheme::kI8G64: return {64, i8g64::kBytes};
    case Scheme::kCount: break;
  }
  return {0, 0};
}

}  // namespace spola
