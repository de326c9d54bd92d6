#include "kernels/pack.h"

#include <cstring>

#include "base/half.h"
#include "kernels/expand.h"
#include "kernels/tile_blocks.h"

namespace spola {
namespace {

// The type whose bytes a lossless scheme holds.
GgmlType type_of(Scheme scheme) {
  switch (scheme) {
    case Scheme::kF16: return GgmlType::kF16;
    case Scheme::kBF16: return GgmlType::kBF16;
    case Scheme::kU4S: return GgmlType::kQ4_0;
    case Scheme::kU4SM: return GgmlType::kQ4_1;
    case Scheme::kU5S: return GgmlType::kQ5_0;
    case Scheme::kU5SM: return GgmlType::kQ5_1;
    case Scheme::kI8S: return GgmlType::kQ8_0;
    case Scheme::kU4K: return GgmlType::kQ4_K;
    case Scheme::kU5K: return GgmlType::kQ5_K;
    case Scheme::kU6K: return GgmlType::kQ6_K;
    case Scheme::kU4Z64: return GgmlType::kU4Z64;
    case Scheme::kU4Z128: return GgmlType::kU4Z128;
    case Scheme::kE4M3: return GgmlType::kE4M3;
    default: return GgmlType::kF32;
  }
}

struct GenericShape {
  int group;  // values of k per record
  bool min;
  int bytes, codes;  // of a record; offset of its groups
};

GenericShape generic_shape(Scheme scheme) {
  switch (scheme) {
    case Scheme::kI8G16: return {16, false, i8g16::kBytes, i8g16::kQs};
    case Scheme::kI8G16M: return {16, true, i8g16m::kBytes, i8g16m::kQs};
    case Scheme::kI8G32: return {32, false, i8g32::kBytes, i8g32::kQs};
    case Scheme::kI8G64: return {64, false, i8g64::kBytes, i8g64::kQs};
    default: return {32, true, i8g32m::kBytes, i8g32m::kQs};
  }
}

void pack_generic_row(GgmlType type, Scheme scheme, const uint8_t* row, int cols, int lane, uint8_t* tile) {
  const GenericShape g = generic_shape(scheme);
  const TypeShape block = type_shape(type);
  for (int b = 0; b < cols / block.values; ++b) {
    Expanded e;
    expand_block(type, row + static_cast<size_t>(b) * static_cast<size_t>(block.bytes), &e);
    for (int i = 0; i < block.values / g.group; ++i) {
      std::memcpy(tile + lane * 4, &e.scale[i], 4);
      if (g.min) std::memcpy(tile + kFloatPlane + lane * 4, &e.min[i], 4);
      const int8_t* code = e.code + i * g.group;
      for (int j = 0; j < g.group / 4; ++j) std::memcpy(group_dword(tile + g.codes, j, lane), code + j * 4, 4);
      tile += g.bytes;
    }
  }
}

void decode_generic_row(Scheme scheme, const uint8_t* tile, int lane, int cols, float* out) {
  const GenericShape g = generic_shape(scheme);
  for (int i = 0; i < cols / g.group; ++i, tile += g.bytes, out += g.group) {
    float scale, min = 0;
    std::memcpy(&scale, tile + lane * 4, 4);
    if (g.min) std::memcpy(&min, tile + kFloatPlane + lane * 4, 4);
    for (int k = 0; k < g.group; ++k) {
      const auto code = static_cast<int8_t>(tile[g.codes + k / 4 * kGroupBytes + lane * 4 + k % 4]);
      const float product = scale * static_cast<float>(code);
      out[k] = g.min ? product + min : product;
    }
  }
}

void decode_float_row(Scheme scheme, const uint8_t* tile, int lane, int cols, float* out) {
  for (int k = 0; k < cols; ++k) {
    const size_t at = static_cast<size_t>(k) * kTileRows + static_cast<size_t>(lane);
    if (scheme == Scheme::kF32) {
      std::memcpy(out + k, tile + at * 4, 4);
    } else {
      uint16_t h;
      std::memcpy(&h, tile + at * 2, 2);
      out[k] = scheme == Scheme::kF16 ? f16_to_f32(h) : bf16_to_f32(h);
    }
  }
}

void decode_e4m3_row(const uint8_t* tile, int lane, int cols, float* out) {
  for (int k = 0; k < cols; ++k) {
    const uint8_t* record = tile + static_cast<size_t>(k / e4m3::kCols) * e4m3::kBytes;
    float scale;
    std::memcpy(&scale, record + e4m3::kScale + lane * 4, 4);
    out[k] = e4m3_to_f32(record[e4m3::kQs + k % e4m3::kCols * kTileRows + lane]) * scale;
  }
}

// Largest block.
constexpr int kMaxBlockBytes = sizeof(BlockQ6_K);

void decode_block_row(Scheme scheme, const uint8_t* tile, int lane, int cols, float* out) {
  const GgmlType type = type_of(scheme);
  const RecordShape shape = record_shape(scheme);
  const int group = group_of(type);
  const bool min = has_min(type);
  for (int i = 0; i < cols / shape.cols; ++i, out += shape.cols) {
    uint8_t block[kMaxBlockBytes];
    const uint8_t* record = tile + static_cast<size_t>(i) * static_cast<size_t>(shape.bytes);
    take_blocks(scheme, record, lane, shape.cols, block);
    Expanded e;
    expand_block(type, block, &e);
    for (int k = 0; k < shape.cols; ++k) {
      const float product = e.scale[k / group] * static_cast<float>(e.code[k]);
      out[k] = min ? product + e.min[k / group] : product;
    }
  }
}

const uint8_t* tile_of(Scheme scheme, const uint8_t* packed, int64_t row, int cols) {
  return packed + static_cast<size_t>(row / kTileRows) * tile_bytes(scheme, cols);
}

Scheme generic_scheme(GgmlType type) {
  if (group_of(type) == 64) return Scheme::kI8G64;
  if (group_of(type) == 16) return has_min(type) ? Scheme::kI8G16M : Scheme::kI8G16;
  return has_min(type) ? Scheme::kI8G32M : Scheme::kI8G32;
}

}  // namespace

Scheme scheme_of(GgmlType type, bool precise) {
  switch (type) {
    case GgmlType::kF32: return Scheme::kF32;
    case GgmlType::kF16: return Scheme::kF16;
    case GgmlType::kBF16: return Scheme::kBF16;
    case GgmlType::kQ8_0: return Scheme::kI8S;
    case GgmlType::kQ4_0: return precise ? generic_scheme(type) : Scheme::kU4S;
    case GgmlType::kQ4_1: return precise ? generic_scheme(type) : Scheme::kU4SM;
    case GgmlType::kQ5_0: return precise ? generic_scheme(type) : Scheme::kU5S;
    case GgmlType::kQ5_1: return precise ? generic_scheme(type) : Scheme::kU5SM;
    case GgmlType::kQ4_K: return precise ? generic_scheme(type) : Scheme::kU4K;
    case GgmlType::kQ5_K: return precise ? generic_scheme(type) : Scheme::kU5K;
    case GgmlType::kQ6_K: return precise ? generic_scheme(type) : Scheme::kU6K;
    case GgmlType::kE4M3: return Scheme::kE4M3;
    case GgmlType::kU4Z64: return precise ? generic_scheme(type) : Scheme::kU4Z64;
    case GgmlType::kU4Z128: return precise ? generic_scheme(type) : Scheme::kU4Z128;
    case GgmlType::kI8C:
    case GgmlType::kQ2_K:
    case GgmlType::kQ3_K:
    case GgmlType::kIQ4_NL:
    case GgmlType::kIQ4_XS:
    case GgmlType::kMXFP4: return generic_scheme(type);
  }
  return Scheme::kCount;
}

bool is_lossless(Scheme scheme) { return scheme < Scheme::kI8G16; }

ActFormat act_format(Scheme scheme, bool precise) {
  if (scheme <= Scheme::kE4M3) return ActFormat::kF32;
  if (scheme == Scheme::kI8S || scheme == Scheme::kI8G64) return ActFormat::kA16;
  return precise && !is_lossless(scheme) ? ActFormat::kA16 : ActFormat::kA8;
}

size_t tile_bytes(Scheme scheme, int cols) {
  const RecordShape shape = record_shape(scheme);
  return static_cast<size_t>(cols / shape.cols) * static_cast<size_t>(shape.bytes);
}

size_t packed_bytes(Scheme scheme, int64_t rows, int cols) {
  return static_cast<size_t>((rows + kTileRows - 1) / kTileRows) * tile_bytes(scheme, cols);
}

bool pack_tile(GgmlType type, Scheme scheme, const uint8_t* const rows[kTileRows], int cols, uint8_t* tile) {
  for (int lane = 0; lane < kTileRows; ++lane) {
    if (rows[lane] != nullptr && !row_finite(type, rows[lane], cols)) return false;
  }
  std::memset(tile, 0, tile_bytes(scheme, cols));
  // In pieces that stay in cache while the lanes are filled one after the other.
  const RecordShape record = record_shape(scheme);
  const int piece = 256;
  for (int k = 0; k < cols; k += piece) {
    const int n = cols - k < piece ? cols - k : piece;
    for (int lane = 0; lane < kTileRows; ++lane) {
      if (rows[lane] == nullptr) continue;
      const uint8_t* from = rows[lane] + row_bytes(type, k);
      uint8_t* to = tile + static_cast<size_t>(k / record.cols) * static_cast<size_t>(record.bytes);
      if (is_lossless(scheme)) {
        put_blocks(scheme, from, n, lane, to);
      } else {
        pack_generic_row(type, scheme, from, n, lane, to);
      }
    }
  }
  return true;
}

bool unpack_row(Scheme scheme, const uint8_t* packed, int64_t row, int cols, uint8_t* out) {
  return take_blocks(scheme, tile_of(scheme, packed, row, cols), static_cast<int>(row % kTileRows), cols, out);
}

void decode_row(Scheme scheme, const uint8_t* packed, int64_t row, int cols, float* out) {
  const uint8_t* tile = tile_of(scheme, packed, row, cols);
  const int lane = static_cast<int>(row % kTileRows);
  if (scheme == Scheme::kE4M3) return decode_e4m3_row(tile, lane, cols, out);
  if (scheme <= Scheme::kBF16) return decode_float_row(scheme, tile, lane, cols, out);
  if (!is_lossless(scheme)) return decode_generic_row(scheme, tile, lane, cols, out);
  decode_block_row(scheme, tile, lane, cols, out);
}

}  // namespace spola
