// Tile kernels in plain loops: the twins that every SIMD kernel must equal bit by bit.
//
// Written for reading, one output element at a time, straight from docs/numerics.md. They share nothing
// with the SIMD kernels but the record layout.
#include <cmath>
#include <cstring>

#include "base/half.h"
#include "kernels/records.h"
#include "kernels/variants.h"

namespace spola::scalar {

namespace {

float half_at(const uint8_t* plane, int lane) {
  uint16_t h;
  std::memcpy(&h, plane + lane * 2, 2);
  return f16_to_f32(h);
}

float float_at(const uint8_t* plane, int lane) {
  float f;
  std::memcpy(&f, plane + lane * 4, 4);
  return f;
}

// Byte b of the dword of `lane` in group j.
int byte_at(const uint8_t* groups, int j, int lane, int b) { return groups[j * kGroupBytes + lane * 4 + b]; }

// Low nibbles are columns 0..15, high nibbles 16..31.
int split_nibble(const uint8_t* groups, int lane, int k) {
  const int byte = byte_at(groups, k % 16 / 4, lane, k % 4);
  return k < 16 ? byte & 15 : byte >> 4;
}

int fifth_bit(const uint8_t* plane, int lane, int k) {
  return ((byte_at(plane, 0, lane, k % 4) >> (k / 4)) & 1) << 4;
}

// 6-bit scale (or min) of sub-block s from the 12 bytes of a lane.
int k_scale(const uint8_t* planes, int lane, int s, bool min) {
  const auto byte = [&](int i) { return byte_at(planes, i / 4, lane, i % 4); };
  if (s < 4) return byte(min ? s + 4 : s) & 63;
  const int low = min ? byte(s + 4) >> 4 : byte(s + 4) & 15;
  return low | (byte(min ? s : s - 4) >> 6) << 4;
}

// Each reader says, for block b of 32 columns of one lane: codes, scale, min.
struct U4S {
  static constexpr bool kMin = false;
  static const uint8_t* record(const uint8_t* tile, int b) { return tile + size_t(b) * u4s::kBytes; }
  static int code(const uint8_t* t, int b, int lane, int k) {
    return split_nibble(record(t, b) + u4s::kQs, lane, k) - 8;
  }
  static float scale(const uint8_t* t, int b, int lane) { return half_at(record(t, b) + u4s::kD, lane); }
  static float min(const uint8_t*, int, int) { return 0; }
};

struct U4SM {
  static constexpr bool kMin = true;
  static const uint8_t* record(const uint8_t* tile, int b) { return tile + size_t(b) * u4sm::kBytes; }
  static int code(const uint8_t* t, int b, int lane, int k) {
    return split_nibble(record(t, b) + u4sm::kQs, lane, k);
  }
  static float scale(const uint8_t* t, int b, int lane) { return half_at(record(t, b) + u4sm::kD, lane); }
  static float min(const uint8_t* t, int b, int lane) { return half_at(record(t, b) + u4sm::kM, lane); }
};

struct U5S {
  static constexpr bool kMin = false;
  static const uint8_t* record(const uint8_t* tile, int b) { return tile + size_t(b) * u5s::kBytes; }
  static int code(const uint8_t* t, int b, int lane, int k) {
    const uint8_t* r = record(t, b);
    return (split_nibble(r + u5s::kQs, lane, k) | fifth_bit(r + u5s::kPlane, lane, k)) - 16;
  }
  static float scale(const uint8_t* t, int b, int lane) { return half_at(record(t, b) + u5s::kD, lane); }
  static float min(const uint8_t*, int, int) { return 0; }
};

struct U5SM {
  static constexpr bool kMin = true;
  static const uint8_t* record(const uint8_t* tile, int b) { return tile + size_t(b) * u5sm::kBytes; }
  static int code(const uint8_t* t, int b, int lane, int k) {
    const uint8_t* r = record(t, b);
    return split_nibble(r + u5sm::kQs, lane, k) | fifth_bit(r + u5sm::kPlane, lane, k);
  }
  static float scale(const uint8_t* t, int b, int lane) { return half_at(record(t, b) + u5sm::kD, lane); }
  static float min(const uint8_t* t, int b, int lane) { return half_at(record(t, b) + u5sm::kM, lane); }
};

struct U4K {
  static constexpr bool kMin = true;
  static const uint8_t* record(const uint8_t* tile, int b) { return tile + size_t(b / 8) * u4k::kBytes; }
  static int code(const uint8_t* t, int b, int lane, int k) {
    const uint8_t* pair = record(t, b) + u4k::kPairs + b % 8 / 2 * u4k::kPairBytes;
    return (byte_at(pair, k / 4, lane, k % 4) >> (b % 2 * 4)) & 15;
  }
  static float scale(const uint8_t* t, int b, int lane) {
    const uint8_t* r = record(t, b);
    return half_at(r + u4k::kD, lane) * static_cast<float>(k_scale(r + u4k::kScales, lane, b % 8, false));
  }
  static float min(const uint8_t* t, int b, int lane) {
    const uint8_t* r = record(t, b);
    return -(half_at(r + u4k::kDmin, lane) *
             static_cast<float>(k_scale(r + u4k::kScales, lane, b % 8, true)));
  }
};

struct U5K {
  static constexpr bool kMin = true;
  static const uint8_t* record(const uint8_t* tile, int b) { return tile + size_t(b / 8) * u5k::kBytes; }
  static int code(const uint8_t* t, int b, int lane, int k) {
    const uint8_t* pair = record(t, b) + u5k::kPairs + b % 8 / 2 * u5k::kPairBytes;
    const int low = (byte_at(pair + u5k::kPlanes, k / 4, lane, k % 4) >> (b % 2 * 4)) & 15;
    return low | fifth_bit(pair + b % 2 * kGroupBytes, lane, k);
  }
  static float scale(const uint8_t* t, int b, int lane) {
    const uint8_t* r = record(t, b);
    return half_at(r + u5k::kD, lane) * static_cast<float>(k_scale(r + u5k::kScales, lane, b % 8, false));
  }
  static float min(const uint8_t* t, int b, int lane) {
    const uint8_t* r = record(t, b);
    return -(half_at(r + u5k::kDmin, lane) *
             static_cast<float>(k_scale(r + u5k::kScales, lane, b % 8, true)));
  }
};

template <int Blocks>
struct U4Z {
  static constexpr bool kMin = true;
  static const uint8_t* record(const uint8_t* tile, int b) {
    return tile + size_t(b / Blocks) * size_t(u4z::bytes(Blocks));
  }
  static int code(const uint8_t* t, int b, int lane, int k) {
    return split_nibble(record(t, b) + u4z::kQs + b % Blocks * u4z::kBlockBytes, lane, k);
  }
  static float scale(const uint8_t* t, int b, int lane) { return half_at(record(t, b) + u4z::kD, lane); }
  static float min(const uint8_t* t, int b, int lane) {
    return -(half_at(record(t, b) + u4z::kD, lane) * half_at(record(t, b) + u4z::kZ, lane));
  }
};

// Rounded once; a zero is +0.
float scaled(float scale, int32_t i) { return std::fmaf(scale, static_cast<float>(i), 0.0f); }

template <class Scheme>
void tile_a8(const uint8_t* tile, const Activations& a, int row0, int rows, float* out) {
  const int blocks = a.k / kBlock;
  for (int r = 0; r < rows; ++r) {
    const int8_t* q = a.q8 + size_t(row0 + r) * size_t(a.k);
    const float* d = a.d8 + size_t(row0 + r) * size_t(blocks);
    const float* s = a.s8 + size_t(row0 + r) * size_t(blocks);
    for (int lane = 0; lane < kTileRows; ++lane) {
      float acc = 0;
      for (int b = 0; b < blocks; ++b) {
        int32_t dot = 0;
        for (int k = 0; k < kBlock; ++k) dot += Scheme::code(tile, b, lane, k) * q[b * kBlock + k];
        acc = std::fmaf(d[b], scaled(Scheme::scale(tile, b, lane), dot), acc);
        if (Scheme::kMin) acc = std::fmaf(Scheme::min(tile, b, lane), s[b], acc);
      }
      out[r * kTileRows + lane] = acc;
    }
  }
}

int code_u6k(const uint8_t* record, int lane, int k) {
  const uint8_t* half = record + u6k::kHalves + k / 128 * u6k::kHalfBytes;
  const int quarter = k / 32 % 4, j = k % 32 / 4;
  const int low = (byte_at(half, quarter % 2 * 8 + j, lane, k % 4) >> (quarter / 2 * 4)) & 15;
  const int high = (byte_at(half + u6k::kHigh, j, lane, k % 4) >> (quarter * 2)) & 3;
  return (low | high << 4) - 32;
}

// One group of int8 codes of a generic record.
template <int Group, bool Min>
struct Generic {
  static constexpr int kCodes = kFloatPlane * (Min ? 2 : 1);
  static constexpr int kBytes = kCodes + Group / 4 * kGroupBytes;
  static const uint8_t* record(const uint8_t* tile, int g) { return tile + size_t(g) * kBytes; }
  static float scale(const uint8_t* tile, int g, int lane) { return float_at(record(tile, g), lane); }
  static float min(const uint8_t* tile, int g, int lane) {
    return float_at(record(tile, g) + kFloatPlane, lane);
  }

  template <class Q>
  static int32_t dot(const uint8_t* tile, int g, int lane, const Q* q) {
    int32_t sum = 0;
    for (int k = 0; k < Group; ++k) {
      sum += static_cast<int8_t>(byte_at(record(tile, g) + kCodes, k / 4, lane, k % 4)) * q[k];
    }
    return sum;
  }
};

template <int Group, class Q>
float sum_codes(const Q* q) {
  int32_t sum = 0;
  for (int k = 0; k < Group; ++k) sum += q[k];
  return static_cast<float>(sum);
}

template <int Group, bool Min>
void generic_a8(const uint8_t* tile, const Activations& a, int row0, int rows, float* out) {
  using G = Generic<Group, Min>;
  for (int r = 0; r < rows; ++r) {
    const int8_t* q = a.q8 + size_t(row0 + r) * size_t(a.k);
    const float* d = a.d8 + size_t(row0 + r) * size_t(a.k / kBlock);
    for (int lane = 0; lane < kTileRows; ++lane) {
      float acc = 0;
      for (int g = 0; g < a.k / Group; ++g) {
        const float da = d[g * Group / kBlock];
        acc = std::fmaf(da, scaled(G::scale(tile, g, lane), G::dot(tile, g, lane, q + g * Group)), acc);
        if (Min) acc = std::fmaf(G::min(tile, g, lane), da * sum_codes<Group>(q + g * Group), acc);
      }
      out[r * kTileRows + lane] = acc;
    }
  }
}

template <int Group, bool Min>
void generic_a16(const uint8_t* tile, const Activations& a, int row0, int rows, float* out) {
  using G = Generic<Group, Min>;
  for (int r = 0; r < rows; ++r) {
    const int16_t* q = a.q16 + size_t(row0 + r) * size_t(a.k);
    for (int lane = 0; lane < kTileRows; ++lane) {
      float acc = 0;
      for (int g = 0; g < a.k / Group; ++g) {
        const float dot = static_cast<float>(G::dot(tile, g, lane, q + g * Group));
        acc = std::fmaf(G::scale(tile, g, lane), dot, acc);
        if (Min) acc = std::fmaf(G::min(tile, g, lane), sum_codes<Group>(q + g * Group), acc);
      }
      out[r * kTileRows + lane] = acc * a.d16[row0 + r];
    }
  }
}

template <class Load>
void tile_floats(const uint8_t* tile, const Activations& a, int row0, int rows, float* out, Load load) {
  for (int r = 0; r < rows; ++r) {
    const float* x = a.f32 + size_t(row0 + r) * size_t(a.k);
    for (int lane = 0; lane < kTileRows; ++lane) {
      float acc = 0;
      for (int k = 0; k < a.k; ++k)
        acc = std::fmaf(load(tile, size_t(k) * kTileRows + size_t(lane)), x[k], acc);
      out[r * kTileRows + lane] = acc;
    }
  }
}

uint16_t bits16(const uint8_t* tile, size_t i) {
  uint16_t h;
  std::memcpy(&h, tile + i * 2, 2);
  return h;
}

}  // namespace

void tile_u4s_a8(const uint8_t* t, const Activations& a, int r0, int n, float* o) {
  tile_a8<U4S>(t, a, r0, n, o);
}
void tile_u4sm_a8(const uint8_t* t, const Activations& a, int r0, int n, float* o) {
  tile_a8<U4SM>(t, a, r0, n, o);
}
void tile_u5s_a8(const uint8_t* t, const Activations& a, int r0, int n, float* o) {
  tile_a8<U5S>(t, a, r0, n, o);
}
void tile_u5sm_a8(const uint8_t* t, const Activations& a, int r0, int n, float* o) {
  tile_a8<U5SM>(t, a, r0, n, o);
}
void tile_u4k_a8(const uint8_t* t, const Activations& a, int r0, int n, float* o) {
  tile_a8<U4K>(t, a, r0, n, o);
}
void tile_u5k_a8(const uint8_t* t, const Activations& a, int r0, int n, float* o) {
  tile_a8<U5K>(t, a, r0, n, o);
}

void tile_u6k_a8(const uint8_t* tile, const Activations& a, int row0, int rows, float* out) {
  for (int r = 0; r < rows; ++r) {
    const int8_t* q = a.q8 + size_t(row0 + r) * size_t(a.k);
    const float* d = a.d8 + size_t(row0 + r) * size_t(a.k / kBlock);
    for (int lane = 0; lane < kTileRows; ++lane) {
      float acc = 0;
      for (int b = 0; b < a.k / kBlock; ++b) {
        const uint8_t* record = tile + size_t(b / 8) * u6k::kBytes;
        int32_t dot[2] = {0, 0};
        for (int k = 0; k < kBlock; ++k) {
          dot[k / 16] += code_u6k(record, lane, b % 8 * kBlock + k) * q[b * kBlock + k];
        }
        const uint8_t* sc = record + u6k::kScales + b % 8 * 32 + lane * 2;
        for (int h = 0; h < 2; ++h) {
          const float scale =
              half_at(record + u6k::kD, lane) * static_cast<float>(static_cast<int8_t>(sc[h]));
          acc = std::fmaf(d[b], scaled(scale, dot[h]), acc);
        }
      }
      out[r * kTileRows + lane] = acc;
    }
  }
}

void tile_i8s_a16(const uint8_t* tile, const Activations& a, int row0, int rows, float* out) {
  constexpr int place[4] = {0, 2, 1, 3};  // of column 4j + i in its dword
  for (int r = 0; r < rows; ++r) {
    const int16_t* q = a.q16 + size_t(row0 + r) * size_t(a.k);
    for (int lane = 0; lane < kTileRows; ++lane) {
      float acc = 0;
      for (int b = 0; b < a.k / kBlock; ++b) {
        const uint8_t* record = tile + size_t(b) * i8s::kBytes;
        int32_t dot = 0;
        for (int k = 0; k < kBlock; ++k) {
          dot +=
              static_cast<int8_t>(byte_at(record + i8s::kQs, k / 4, lane, place[k % 4])) * q[b * kBlock + k];
        }
        acc = std::fmaf(half_at(record + i8s::kD, lane), static_cast<float>(dot), acc);
      }
      out[r * kTileRows + lane] = acc * a.d16[row0 + r];
    }
  }
}

void tile_i8g16_a8(const uint8_t* t, const Activations& a, int r0, int n, float* o) {
  generic_a8<16, false>(t, a, r0, n, o);
}
void tile_i8g16m_a8(const uint8_t* t, const Activations& a, int r0, int n, float* o) {
  generic_a8<16, true>(t, a, r0, n, o);
}
void tile_i8g32_a8(const uint8_t* t, const Activations& a, int r0, int n, float* o) {
  generic_a8<32, false>(t, a, r0, n, o);
}
void tile_i8g32m_a8(const uint8_t* t, const Activations& a, int r0, int n, float* o) {
  generic_a8<32, true>(t, a, r0, n, o);
}
void tile_i8g16_a16(const uint8_t* t, const Activations& a, int r0, int n, float* o) {
  generic_a16<16, false>(t, a, r0, n, o);
}
void tile_i8g16m_a16(const uint8_t* t, const Activations& a, int r0, int n, float* o) {
  generic_a16<16, true>(t, a, r0, n, o);
}
void tile_i8g32_a16(const uint8_t* t, const Activations& a, int r0, int n, float* o) {
  generic_a16<32, false>(t, a, r0, n, o);
}
void tile_i8g32m_a16(const uint8_t* t, const Activations& a, int r0, int n, float* o) {
  generic_a16<32, true>(t, a, r0, n, o);
}

void tile_u4z64_a8(const uint8_t* t, const Activations& a, int r0, int n, float* o) {
  tile_a8<U4Z<2>>(t, a, r0, n, o);
}
void tile_u4z128_a8(const uint8_t* t, const Activations& a, int r0, int n, float* o) {
  tile_a8<U4Z<4>>(t, a, r0, n, o);
}
void tile_i8g64_a16(const uint8_t* t, const Activations& a, int r0, int n, float* o) {
  generic_a16<64, false>(t, a, r0, n, o);
}
void tile_e4m3(const uint8_t* t, const Activations& a, int r0, int n, float* o) {
  tile_floats(t, a, r0, n, o, [](const uint8_t* p, size_t i) {
    const size_t k = i / kTileRows, lane = i % kTileRows;
    const uint8_t* record = p + k / e4m3::kCols * e4m3::kBytes;
    const uint8_t code = record[e4m3::kQs + k % e4m3::kCols * kTileRows + lane];
    return e4m3_to_f32(code) * float_at(record + e4m3::kScale, static_cast<int>(lane));
  });
}

void tile_f32(const uint8_t* t, const Activations& a, int r0, int n, float* o) {
  tile_floats(t, a, r0, n, o, [](const uint8_t* p, size_t i) {
    float f;
    std::memcpy(&f, p + i * 4, 4);
    return f;
  });
}
void tile_f16(const uint8_t* t, const Activations& a, int r0, int n, float* o) {
  tile_floats(t, a, r0, n, o, [](const uint8_t* p, size_t i) { return f16_to_f32(bits16(p, i)); });
}
void tile_bf16(const uint8_t* t, const Activations& a, int r0, int n, float* o) {
  tile_floats(t, a, r0, n, o, [](const uint8_t* p, size_t i) { return bf16_to_f32(bits16(p, i)); });
}

}  // namespace spola::scalar
