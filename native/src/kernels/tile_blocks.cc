// Fields of GGUF blocks in the lanes of a tile, both ways. See tile_blocks.h.
#include "kernels/tile_blocks.h"

#include <cstring>
#include <type_traits>

namespace spola {
namespace {

// The two directions of one field. The layout functions below are written once and run both ways.
struct ToTile {
  static void move(uint8_t* tile, uint8_t* block, size_t n) { std::memcpy(tile, block, n); }
};
struct ToBlock {
  static void move(uint8_t* tile, uint8_t* block, size_t n) { std::memcpy(block, tile, n); }
};

template <class Way>
void move_half(uint8_t* plane, int lane, half_bits& h) {
  Way::move(plane + lane * 2, reinterpret_cast<uint8_t*>(&h), 2);
}

template <class Way>
void move_groups(uint8_t* p, int n, int lane, uint8_t* qs) {
  for (int j = 0; j < n; ++j) Way::move(group_dword(p, j, lane), qs + j * 4, 4);
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
  move_plane<Way>(group_dword(t + u5s::kPlane, 0, lane), b.qh);
  move_groups<Way>(t + u5s::kQs, 4, lane, b.qs);
}

template <class Way>
void move_block(uint8_t* t, int lane, BlockQ5_1& b) {
  move_half<Way>(t + u5sm::kD, lane, b.d);
  move_half<Way>(t + u5sm::kM, lane, b.m);
  move_plane<Way>(group_dword(t + u5sm::kPlane, 0, lane), b.qh);
  move_groups<Way>(t + u5sm::kQs, 4, lane, b.qs);
}

template <class Way>
void move_block(uint8_t* t, int lane, BlockQ8_0& b) {
  move_half<Way>(t + i8s::kD, lane, b.d);
  for (int j = 0; j < 8; ++j) {
    uint8_t* dword = group_dword(t + i8s::kQs, j, lane);
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
    for (int i = 0; i < 2; ++i) move_k_plane<Way>(group_dword(pair, i, lane), b.qh, p * 2 + i);
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

}  // namespace

bool put_blocks(Scheme scheme, const uint8_t* row, int cols, int lane, uint8_t* tile) {
  return move_lossless<ToTile>(scheme, tile, lane, cols, const_cast<uint8_t*>(row));
}

bool take_blocks(Scheme scheme, const uint8_t* tile, int lane, int cols, uint8_t* row) {
  return move_lossless<ToBlock>(scheme, const_cast<uint8_t*>(tile), lane, cols, row);
}

}  // namespace spola
