#include "kernels/pack.h"

#include <cstring>
#include <type_traits>

#include "base/half.h"
#include "kernels/expand.h"

namespace spola {

namespace {

// The two directions of one field. The layout functions below are written once and run both ways.
struct ToTile {
  static void move(uint8_t* tile, uint8_t* block, size_t n) { std::memcpy(tile, block, n); }
};
struct ToBlock {
  static void move(uint8_t* tile, uint8_t* block, size_t n) { std::memcpy(block, tile, n); }
};

// Place of the dword of `lane` in group j of the groups at p.
uint8_t* group(uint8_t* p, int j, int lane) { return p + j * kGroupBytes + lane * 4; }

template <class Way>
void move_half(uint8_t* plane, int lane, half_bits& h) {
  Way::move(plane + lane * 2, reinterpret_cast<uint8_t*>(&h), 2);
}

template <class Way>
void move_groups(uint8_t* p, int n, int lane, uint8_t* qs) {
  for (int j = 0; j < n; ++j) Way::move(group(p, j, lane), qs + j * 4, 4);
}

// Bits of even index to the lower half, odd to the upper; and back (the perfect shuffle).
uint32_t unshuffle(uint32_t x) {
  uint32_t t = (x ^ (x >> 1)) & 0x22222222u;
  x ^= t ^ (t << 1);
  t = (x ^ (x >> 2)) & 0x0c0c0c0cu;
  x ^= t ^ (t << 2);
  t = (x ^ (x >> 4)) & 0x00f000f0u;
  x ^= t ^ (t << 4);
  t = (x ^ (x >> 8)) & 0x0000ff00u;
  return x ^ t ^ (t << 8);
}
uint32_t shuffle(uint32_t x) {
  uint32_t t = (x ^ (x >> 8)) & 0x0000ff00u;
  x ^= t ^ (t << 8);
  t = (x ^ (x >> 4)) & 0x00f000f0u;
  x ^= t ^ (t << 4);
  t = (x ^ (x >> 2)) & 0x0c0c0c0cu;
  x ^= t ^ (t << 2);
  t = (x ^ (x >> 1)) & 0x22222222u;
  return x ^ t ^ (t << 1);
}

// Fifth bits: of value k in a block bit k, in a tile bit k / 4 of byte k % 4. That rotates the five bits of
// the index by two.
void plane_to_tile(const uint8_t* qh, uint8_t* dword) {
  uint32_t bits;
  std::memcpy(&bits, qh, 4);
  bits = unshuffle(unshuffle(bits));
  std::memcpy(dword, &bits, 4);
}

void plane_to_block(const uint8_t* dword, uint8_t* qh) {
  uint32_t bits;
  std::memcpy(&bits, dword, 4);
  bits = shuffle(shuffle(bits));
  std::memcpy(qh, &bits, 4);
}

template <class Way>
void move_plane(uint8_t* dword, uint8_t* qh) {
  if constexpr (std::is_same_v<Way, ToTile>) {
    plane_to_tile(qh, dword);
  } else {
    plane_to_block(dword, qh);
  }
}

template <class Way>
void move_block(uint8_t* t, int lane, BlockQ4_0& b) {
  move_half<Way>(t + u4s::kD, lane, b.d);
  move_groups<Way>(t + u4s::kQs, 4, lane, b.qs);
}

template <class Way>
void move_block(uint8_t* t, int lane, BlockQ4_1& b) {
  move_half<Way>(t + u4sm::kD, lane, b.d);
  move_half<Way>(t + u4sm::kM, lane, b.m);
  move_groups<Way>(t + u4sm::kQs, 4, lane, b.qs);
}

template <class Way>
void move_block(uint8_t* t, int lane, BlockQ5_0& b) {
  move_half<Way>(t + u5s::kD, lane, b.d);
  move_plane<Way>(group(t + u5s::kPlane, 0, lane), b.qh);
  move_groups<Way>(t + u5s::kQs, 4, lane, b.qs);
}

template <class Way>
void move_block(uint8_t* t, int lane, BlockQ5_1& b) {
  move_half<Way>(t + u5sm::kD, lane, b.d);
  move_half<Way>(t + u5sm::kM, lane, b.m);
  move_plane<Way>(group(t + u5sm::kPlane, 0, lane), b.qh);
  move_groups<Way>(t + u5sm::kQs, 4, lane, b.qs);
}

template <class Way>
void move_block(uint8_t* t, int lane, BlockQ8_0& b) {
  move_half<Way>(t + i8s::kD, lane, b.d);
  for (int j = 0; j < 8; ++j) {
    uint8_t* dword = group(t + i8s::kQs, j, lane);
    uint8_t* qs = reinterpret_cast<uint8_t*>(b.qs) + j * 4;
    constexpr int order[4] = {0, 2, 1, 3};
    for (int i = 0; i < 4; ++i) Way::move(dword + i, qs + order[i], 1);
  }
}

template <class Way>
void move_block(uint8_t* t, int lane, BlockQ4_K& b) {
  move_half<Way>(t + u4k::kD, lane, b.d);
  move_half<Way>(t + u4k::kDmin, lane, b.dmin);
  move_groups<Way>(t + u4k::kScales, 3, lane, b.scales);
  for (int p = 0; p < 4; ++p) move_groups<Way>(t + u4k::kPairs + p * u4k::kPairBytes, 8, lane, b.qs + p * 32);
}

// Bits of sub-block s (bit s of all bytes of qh) as the 32 bits of one plane, and back.
template <class Way>
void move_k_plane(uint8_t* dword, uint8_t* qh, int s) {
  uint8_t bits[4] = {};
  if constexpr (std::is_same_v<Way, ToTile>) {
    for (int i = 0; i < 4; ++i) {
      uint64_t eight;
      std::memcpy(&eight, qh + i * 8, 8);
      // Bit s of byte j lands in bit j of the top byte.
      bits[i] = static_cast<uint8_t>((((eight >> s) & 0x0101010101010101u) * 0x0102040810204080u) >> 56);
    }
    plane_to_tile(bits, dword);
  } else {
    plane_to_block(dword, bits);
    for (int i = 0; i < 32; ++i) {
      const int bit = (bits[i / 8] >> (i % 8)) & 1;
      qh[i] = static_cast<uint8_t>((qh[i] & ~(1 << s)) | bit << s);
    }
  }
}

template <class Way>
void move_block(uint8_t* t, int lane, BlockQ5_K& b) {
  move_half<Way>(t + u5k::kD, lane, b.d);
  move_half<Way>(t + u5k::kDmin, lane, b.dmin);
  move_groups<Way>(t + u5k::kScales, 3, lane, b.scales);
  for (int p = 0; p < 4; ++p) {
    uint8_t* pair = t + u5k::kPairs + p * u5k::kPairBytes;
    for (int i = 0; i < 2; ++i) move_k_plane<Way>(group(pair, i, lane), b.qh, p * 2 + i);
    move_groups<Way>(pair + u5k::kPlanes, 8, lane, b.qs + p * 32);
  }
}

template <class Way>
void move_block(uint8_t* t, int lane, BlockQ6_K& b) {
  move_half<Way>(t + u6k::kD, lane, b.d);
  for (int i = 0; i < 8; ++i) {
    Way::move(t + u6k::kScales + i * 32 + lane * 2, reinterpret_cast<uint8_t*>(b.scales) + i * 2, 2);
  }
  for (int h = 0; h < 2; ++h) {
    uint8_t* half = t + u6k::kHalves + h * u6k::kHalfBytes;
    move_groups<Way>(half, 16, lane, b.ql + h * 64);
    move_groups<Way>(half + u6k::kHigh, 8, lane, b.qh + h * 32);
  }
}

template <class Way, class Block>
void move_u4z(uint8_t* t, int lane, Block& b) {
  move_half<Way>(t + u4z::kD, lane, b.d);
  move_half<Way>(t + u4z::kZ, lane, b.z);
  for (int i = 0; i < static_cast<int>(sizeof b.qs) / 16; ++i) {
    move_groups<Way>(t + u4z::kQs + i * u4z::kBlockBytes, 4, lane, b.qs + i * 16);
  }
}

template <class Way>
void move_block(uint8_t* t, int lane, BlockU4Z64& b) {
  move_u4z<Way>(t, lane, b);
}

template <class Way>
void move_block(uint8_t* t, int lane, BlockU4Z128& b) {
  move_u4z<Way>(t, lane, b);
}

template <class Way>
void move_block(uint8_t* t, int lane, BlockE4M3& b) {
  Way::move(t + e4m3::kScale + lane * 4, reinterpret_cast<uint8_t*>(&b.d), 4);
  for (int k = 0; k < e4m3::kCols; ++k) Way::move(t + e4m3::kQs + k * kTileRows + lane, b.qs + k, 1);
}

// One row of blocks into, or out of, one lane of a tile.
template <class Way, class Block>
void move_row(Scheme scheme, uint8_t* tile, int lane, int cols, uint8_t* row) {
  const RecordShape shape = record_shape(scheme);
  for (int i = 0; i < cols / shape.cols; ++i) {
    Block b{};
    std::memcpy(&b, row + static_cast<size_t>(i) * sizeof b, sizeof b);
    move_block<Way>(tile + static_cast<size_t>(i) * static_cast<size_t>(shape.bytes), lane, b);
    if constexpr (std::is_same_v<Way, ToBlock>)
      std::memcpy(row + static_cast<size_t>(i) * sizeof b, &b, sizeof b);
  }
}

template <class Way>
void move_values(uint8_t* tile, int lane, int cols, size_t size, uint8_t* row) {
  for (int k = 0; k < cols; ++k) {
    const size_t at = static_cast<size_t>(k);
    Way::move(tile + (at * kTileRows + static_cast<size_t>(lane)) * size, row + at * size, size);
  }
}

template <class Way>
bool move_lossless(Scheme scheme, uint8_t* tile, int lane, int cols, uint8_t* row) {
  switch (scheme) {
    case Scheme::kF32: move_values<Way>(tile, lane, cols, 4, row); return true;
    case Scheme::kF16:
    case Scheme::kBF16: move_values<Way>(tile, lane, cols, 2, row); return true;
    case Scheme::kU4S: move_row<Way, BlockQ4_0>(scheme, tile, lane, cols, row); return true;
    case Scheme::kU4SM: move_row<Way, BlockQ4_1>(scheme, tile, lane, cols, row); return true;
    case Scheme::kU5S: move_row<Way, BlockQ5_0>(scheme, tile, lane, cols, row); return true;
    case Scheme::kU5SM: move_row<Way, BlockQ5_1>(scheme, tile, lane, cols, row); return true;
    case Scheme::kI8S: move_row<Way, BlockQ8_0>(scheme, tile, lane, cols, row); return true;
    case Scheme::kU4K: move_row<Way, BlockQ4_K>(scheme, tile, lane, cols, row); return true;
    case Scheme::kU5K: move_row<Way, BlockQ5_K>(scheme, tile, lane, cols, row); return true;
    case Scheme::kU6K: move_row<Way, BlockQ6_K>(scheme, tile, lane, cols, row); return true;
    case Scheme::kU4Z64: move_row<Way, BlockU4Z64>(scheme, tile, lane, cols, row); return true;
    case Scheme::kU4Z128: move_row<Way, BlockU4Z128>(scheme, tile, lane, cols, row); return true;
    case Scheme::kE4M3: move_row<Way, BlockE4M3>(scheme, tile, lane, cols, row); return true;
    default: return false;
  }
}

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
      for (int j = 0; j < g.group / 4; ++j) std::memcpy(group(tile + g.codes, j, lane), code + j * 4, 4);
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
    auto* record = const_cast<uint8_t*>(tile) + static_cast<size_t>(i) * static_cast<size_t>(shape.bytes);
    move_lossless<ToBlock>(scheme, record, lane, shape.cols, block);
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
        move_lossless<ToTile>(scheme, to, lane, n, const_cast<uint8_t*>(from));
      } else {
        pack_generic_row(type, scheme, from, n, lane, to);
      }
    }
  }
  return true;
}

bool unpack_row(Scheme scheme, const uint8_t* packed, int64_t row, int cols, uint8_t* out) {
  if (!is_lossless(scheme)) return false;
  auto* tile = const_cast<uint8_t*>(tile_of(scheme, packed, row, cols));
  return move_lossless<ToBlock>(scheme, tile, static_cast<int>(row % kTileRows), cols, out);
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
