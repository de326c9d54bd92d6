#include "kernels/expand.h"

#include <cstring>

#include "base/half.h"

namespace spola {

const int8_t kIQ4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
const int8_t kMXFP4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

namespace {

template <class Block>
Block load(const uint8_t* p) {  // blocks lie at any address of a file
  Block b;
  std::memcpy(&b, p, sizeof b);
  return b;
}

int nibble(const uint8_t* qs, int i) { return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4; }

int fifth_bit(const uint8_t* qh, int i) { return (qh[i / 8] >> (i % 8)) & 1; }

template <class Block>
void expand_q4(const uint8_t* p, int zero, Expanded* out) {
  const Block b = load<Block>(p);
  out->scale[0] = f16_to_f32(b.d);
  if constexpr (requires { b.m; }) out->min[0] = f16_to_f32(b.m);
  for (int i = 0; i < 32; ++i) out->code[i] = static_cast<int8_t>(nibble(b.qs, i) - zero);
}

template <class Block>
void expand_q5(const uint8_t* p, int zero, Expanded* out) {
  const Block b = load<Block>(p);
  out->scale[0] = f16_to_f32(b.d);
  if constexpr (requires { b.m; }) out->min[0] = f16_to_f32(b.m);
  for (int i = 0; i < 32; ++i) {
    out->code[i] = static_cast<int8_t>((nibble(b.qs, i) | fifth_bit(b.qh, i) << 4) - zero);
  }
}

void expand_q8_0(const uint8_t* p, Expanded* out) {
  const auto b = load<BlockQ8_0>(p);
  out->scale[0] = f16_to_f32(b.d);
  std::memcpy(out->code, b.qs, 32);
}

void expand_iq4_nl(const uint8_t* p, Expanded* out) {
  const auto b = load<BlockIQ4_NL>(p);
  out->scale[0] = f16_to_f32(b.d);
  for (int i = 0; i < 32; ++i) out->code[i] = kIQ4Values[nibble(b.qs, i)];
}

// The codes are twice the E2M1 values, so the scale is half of 2^(e - 127).
float mxfp4_scale(uint8_t e) {
  return std::bit_cast<float>(e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23);
}

void expand_mxfp4(const uint8_t* p, Expanded* out) {
  const auto b = load<BlockMXFP4>(p);
  out->scale[0] = mxfp4_scale(b.e);
  for (int i = 0; i < 32; ++i) out->code[i] = kMXFP4Values[nibble(b.qs, i)];
}

// Two bits of value k of a Q2_K or Q3_K block.
int two_bits(const uint8_t* qs, int k) { return (qs[k / 128 * 32 + k % 32] >> (k / 32 % 4 * 2)) & 3; }

void expand_q2_k(const uint8_t* p, Expanded* out) {
  const auto b = load<BlockQ2_K>(p);
  const float d = f16_to_f32(b.d), dmin = f16_to_f32(b.dmin);
  for (int g = 0; g < 16; ++g) {
    out->scale[g] = d * static_cast<float>(b.scales[g] & 15);
    out->min[g] = -(dmin * static_cast<float>(b.scales[g] >> 4));
  }
  for (int k = 0; k < 256; ++k) out->code[k] = static_cast<int8_t>(two_bits(b.qs, k));
}

void expand_q3_k(const uint8_t* p, Expanded* out) {
  const auto b = load<BlockQ3_K>(p);
  const float d = f16_to_f32(b.d);
  for (int g = 0; g < 16; ++g) {
    const int low = (b.scales[g % 8] >> (g / 8 * 4)) & 15;
    const int high = (b.scales[8 + g % 4] >> (g / 4 * 2)) & 3;
    out->scale[g] = d * static_cast<float>((low | high << 4) - 32);
  }
  for (int k = 0; k < 256; ++k) {
    const int high = (b.hmask[k % 32] >> (k / 32)) & 1;
    out->code[k] = static_cast<int8_t>(two_bits(b.qs, k) - (high ? 0 : 4));
  }
}

// 6-bit scale and min of sub-block s of a Q4_K or Q5_K block.
void scale_min(const uint8_t* scales, int s, int* sc, int* mn) {
  if (s < 4) {
    *sc = scales[s] & 63;
    *mn = scales[s + 4] & 63;
  } else {
    *sc = (scales[s + 4] & 15) | (scales[s - 4] >> 6) << 4;
    *mn = (scales[s + 4] >> 4) | (scales[s] >> 6) << 4;
  }
}

template <class Block>
void expand_k45(const uint8_t* p, Expanded* out) {
  const Block b = load<Block>(p);
  const float d = f16_to_f32(b.d), dmin = f16_to_f32(b.dmin);
  for (int s = 0; s < 8; ++s) {
    int sc, mn;
    scale_min(b.scales, s, &sc, &mn);
    out->scale[s] = d * static_cast<float>(sc);
    out->min[s] = -(dmin * static_cast<float>(mn));
    for (int i = 0; i < 32; ++i) {
      int code = (b.qs[s / 2 * 32 + i] >> (s % 2 * 4)) & 15;
      if constexpr (requires { b.qh; }) code |= ((b.qh[i] >> s) & 1) << 4;
      out->code[s * 32 + i] = static_cast<int8_t>(code);
    }
  }
}

void expand_q6_k(const uint8_t* p, Expanded* out) {
  const auto b = load<BlockQ6_K>(p);
  const float d = f16_to_f32(b.d);
  for (int g = 0; g < 16; ++g) out->scale[g] = d * static_cast<float>(b.scales[g]);
  for (int k = 0; k < 256; ++k) {
    const int half = k / 128, quarter = k / 32 % 4, i = k % 32;
    const int low = (b.ql[half * 64 + quarter % 2 * 32 + i] >> (quarter / 2 * 4)) & 15;
    const int high = (b.qh[half * 32 + i] >> (quarter * 2)) & 3;
    out->code[k] = static_cast<int8_t>((low | high << 4) - 32);
  }
}

void expand_iq4_xs(const uint8_t* p, Expanded* out) {
  const auto b = load<BlockIQ4_XS>(p);
  const float d = f16_to_f32(b.d);
  for (int s = 0; s < 8; ++s) {
    const int low = (b.scales_l[s / 2] >> (s % 2 * 4)) & 15;
    const int high = (b.scales_h >> (s * 2)) & 3;
    out->scale[s] = d * static_cast<float>((low | high << 4) - 32);
    for (int i = 0; i < 32; ++i) out->code[s * 32 + i] = kIQ4Values[nibble(b.qs + s * 16, i)];
  }
}

// Four-bit codes with a zero point: a min, as far as expanding goes.
template <class Block>
void expand_u4z(const uint8_t* p, Expanded* out) {
  const Block b = load<Block>(p);
  for (int g = 0; g < static_cast<int>(sizeof b.qs) / 16; ++g) {
    out->scale[g] = f16_to_f32(b.d);
    out->min[g] = -(out->scale[g] * f16_to_f32(b.z));
    for (int i = 0; i < 32; ++i) out->code[g * 32 + i] = static_cast<int8_t>(nibble(b.qs + g * 16, i));
  }
}

void expand_i8c(const uint8_t* p, Expanded* out) {
  const auto b = load<BlockI8C>(p);
  out->scale[0] = b.d;
  std::memcpy(out->code, b.qs, sizeof b.qs);
}

// Scales of f32 stay far enough below infinity that all they make is finite, in any kernel.
bool scale_finite(float d) { return d >= -0x1p115f && d <= 0x1p115f; }

bool e4m3_block_finite(const uint8_t* p) {
  const auto b = load<BlockE4M3>(p);
  bool finite = scale_finite(b.d);
  for (uint8_t code : b.qs) finite &= e4m3_finite(code);
  return finite;
}

bool block_finite(GgmlType type, const uint8_t* p) {
  switch (type) {
    case GgmlType::kQ4_1:
    case GgmlType::kQ5_1:
    case GgmlType::kQ4_K:
    case GgmlType::kQ5_K: return f16_finite(load<half_bits>(p)) && f16_finite(load<half_bits>(p + 2));
    case GgmlType::kQ2_K: return f16_finite(load<BlockQ2_K>(p).d) && f16_finite(load<BlockQ2_K>(p).dmin);
    case GgmlType::kQ3_K: return f16_finite(load<BlockQ3_K>(p).d);
    case GgmlType::kQ6_K: return f16_finite(load<BlockQ6_K>(p).d);
    case GgmlType::kU4Z64:
    case GgmlType::kU4Z128: return f16_finite(load<half_bits>(p)) && f16_finite(load<half_bits>(p + 2));
    case GgmlType::kI8C: return scale_finite(load<float>(p));
    case GgmlType::kE4M3: return e4m3_block_finite(p);
    case GgmlType::kMXFP4: return *p < 254;  // 12 * 2^(254 - 128) overflows; 255 is NaN in the OCP format
    default: return f16_finite(load<half_bits>(p));  // d comes first
  }
}

// Whether the magnitudes of n floats, as integers, are all below that of infinity.
template <class Bits>
bool all_below(const uint8_t* p, int n, Bits infinity) {
  constexpr Bits no_sign = static_cast<Bits>(-1) / 2;
  Bits most = 0;
  for (int i = 0; i < n; ++i) {
    const Bits magnitude = load<Bits>(p + static_cast<size_t>(i) * sizeof(Bits)) & no_sign;
    if (magnitude > most) most = magnitude;
  }
  return most < infinity;
}

}  // namespace

int group_of(GgmlType type) {
  switch (type) {
    case GgmlType::kF32:
    case GgmlType::kF16:
    case GgmlType::kBF16: return 0;
    case GgmlType::kQ2_K:
    case GgmlType::kQ3_K:
    case GgmlType::kQ6_K: return 16;
    case GgmlType::kI8C:
    case GgmlType::kE4M3: return 64;
    default: return 32;
  }
}

bool has_min(GgmlType type) {
  switch (type) {
    case GgmlType::kQ4_1:
    case GgmlType::kQ5_1:
    case GgmlType::kQ2_K:
    case GgmlType::kQ4_K:
    case GgmlType::kQ5_K:
    case GgmlType::kU4Z64:
    case GgmlType::kU4Z128: return true;
    default: return false;
  }
}

void expand_block(GgmlType type, const uint8_t* p, Expanded* out) {
  switch (type) {
    case GgmlType::kQ4_0: return expand_q4<BlockQ4_0>(p, 8, out);
    case GgmlType::kQ4_1: return expand_q4<BlockQ4_1>(p, 0, out);
    case GgmlType::kQ5_0: return expand_q5<BlockQ5_0>(p, 16, out);
    case GgmlType::kQ5_1: return expand_q5<BlockQ5_1>(p, 0, out);
    case GgmlType::kQ8_0: return expand_q8_0(p, out);
    case GgmlType::kQ2_K: return expand_q2_k(p, out);
    case GgmlType::kQ3_K: return expand_q3_k(p, out);
    case GgmlType::kQ4_K: return expand_k45<BlockQ4_K>(p, out);
    case GgmlType::kQ5_K: return expand_k45<BlockQ5_K>(p, out);
    case GgmlType::kQ6_K: return expand_q6_k(p, out);
    case GgmlType::kIQ4_NL: return expand_iq4_nl(p, out);
    case GgmlType::kIQ4_XS: return expand_iq4_xs(p, out);
    case GgmlType::kMXFP4: return expand_mxfp4(p, out);
    case GgmlType::kU4Z64: return expand_u4z<BlockU4Z64>(p, out);
    case GgmlType::kU4Z128: return expand_u4z<BlockU4Z128>(p, out);
    case GgmlType::kI8C: return expand_i8c(p, out);
    case GgmlType::kF32:
    case GgmlType::kF16:
    case GgmlType::kBF16:
    case GgmlType::kE4M3: return;
  }
}

bool row_finite(GgmlType type, const uint8_t* row, int cols) {
  switch (type) {
    case GgmlType::kF32: return all_below<uint32_t>(row, cols, 0x7f800000u);
    case GgmlType::kF16: return all_below<uint16_t>(row, cols, 0x7c00u);
    case GgmlType::kBF16: return all_below<uint16_t>(row, cols, 0x7f80u);
    default: break;
  }
  const TypeShape shape = type_shape(type);
  for (int i = 0; i < cols / shape.values; ++i, row += shape.bytes) {
    if (!block_finite(type, row)) return false;
  }
  return true;
}

}  // namespace spola
