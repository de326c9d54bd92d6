// Conversions between f32 and the two 16-bit floats, in portable integer arithmetic.
//
// Equal to the F16C instructions bit by bit, NaN included. Not for hot loops.
#pragma once

#include <bit>
#include <cstdint>

namespace spola {

inline float f16_to_f32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 31u;
  uint32_t mantissa = h & 0x3ffu;
  if (exponent == 31) {  // infinity, or NaN made quiet
    return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13) | (mantissa ? 0x400000u : 0u));
  }
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  if (mantissa == 0) return std::bit_cast<float>(sign);
  const int shift = std::countl_zero(mantissa) - 21;  // bring the top bit to bit 10
  mantissa = (mantissa << shift) & 0x3ffu;
  return std::bit_cast<float>(sign | (static_cast<uint32_t>(113 - shift) << 23) | (mantissa << 13));
}

// Rounds to nearest, ties to even; beyond the range of f16 gives infinity.
inline uint16_t f32_to_f16_bits(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t a = bits & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((a >> 13) & 0x3ffu));
  if (a >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and above
  const int exponent = static_cast<int>(a >> 23);
  if (exponent < 102) return static_cast<uint16_t>(sign);  // below half the least subnormal
  uint32_t value, drop;
  if (exponent >= 113) {  // normal
    value = a - (112u << 23);
    drop = 13;
  } else {
    value = (a & 0x7fffffu) | 0x800000u;
    drop = static_cast<uint32_t>(126 - exponent);
  }
  const uint32_t rest = value & ((1u << drop) - 1u), tie = 1u << (drop - 1);
  value >>= drop;
  if (rest > tie || (rest == tie && (value & 1u))) ++value;
  return static_cast<uint16_t>(sign | value);
}

inline float bf16_to_f32(uint16_t h) { return std::bit_cast<float>(static_cast<uint32_t>(h) << 16); }

// E4M3 as f32. The two codes that stand for NaN (0x7f, 0xff) give plus and minus 480: weights that hold one
// are refused before they come here.
inline float e4m3_to_f32(uint8_t x) {
  return f16_to_f32(static_cast<uint16_t>((x & 0x80u) << 8 | (x & 0x7fu) << 7)) * 256.0f;
}
inline bool e4m3_finite(uint8_t x) { return (x & 0x7fu) != 0x7fu; }

inline bool f16_finite(uint16_t h) { return (h & 0x7c00u) != 0x7c00u; }
inline bool bf16_finite(uint16_t h) { return (h & 0x7f80u) != 0x7f80u; }
inline bool f32_finite(float x) { return (std::bit_cast<uint32_t>(x) & 0x7f800000u) != 0x7f800000u; }

}  // namespace spola
