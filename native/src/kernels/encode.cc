#include "kernels/encode.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/half.h"
#include "kernels/expand.h"

// One body, several instruction sets: the compiler makes the copies and the loader picks one. Contraction is
// off and sums have fixed lanes, so that all of them give equal bits.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__)
#define SPOLA_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define SPOLA_CLONES
#endif
// Helpers become part of every copy.
#define SPOLA_INLINE inline __attribute__((always_inline))

namespace spola {
namespace {

constexpr int kLanes = 8;

// Nearest integer, ties to even, for |x| < 2^22.
SPOLA_INLINE float nearest(float x) { return (x + 12582912.0f) - 12582912.0f; }

// 0 for steps so small that their inverse overflows; f16 stores such a step as 0 anyway.
inline float inverse(float d) { return std::fabs(d) < 1.2e-38f ? 0.0f : 1.0f / d; }

SPOLA_INLINE float lane_sum(const float* s) {
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

// Code j in the low nibble of byte j, code j + 16 in the high one.
void put_nibbles(const uint8_t* q, uint8_t* qs) {
  for (int j = 0; j < 16; ++j) qs[j] = static_cast<uint8_t>((q[j] & 15) | (q[j + 16] & 15) << 4);
}

void put_fifth_bits(const uint8_t* q, uint8_t* qh) {
  std::memset(qh, 0, 4);
  for (int j = 0; j < 32; ++j) qh[j / 8] = static_cast<uint8_t>(qh[j / 8] | (q[j] >> 4) << (j % 8));
}

// Codes around `half`; the value of largest magnitude becomes code 0, so that its sign has the longer side.
float symmetric(const float* x, int half, uint8_t* q) {
  float most = 0.0f, value = 0.0f;
  for (int j = 0; j < 32; ++j) {
    const float magnitude = std::fabs(x[j]);
    if (magnitude > most) {
      most = magnitude;
      value = x[j];
    }
  }
  const float d = value / static_cast<float>(-half), id = inverse(d);
  for (int j = 0; j < 32; ++j) {
    const float code = x[j] * id + (static_cast<float>(half) + 0.5f);
    q[j] = static_cast<uint8_t>(std::min(static_cast<int>(code), 2 * half - 1));
  }
  return d;
}

float affine(const float* x, int top, uint8_t* q, float* low) {
  const auto [least, most] = std::minmax_element(x, x + 32);
  const float d = (*most - *least) / static_cast<float>(top), id = inverse(d);
  for (int j = 0; j < 32; ++j) {
    q[j] = static_cast<uint8_t>(std::min(static_cast<int>((x[j] - *least) * id + 0.5f), top));
  }
  *low = *least;
  return d;
}

BlockQ4_0 encode_q4_0(const float* x) {
  uint8_t q[32];
  BlockQ4_0 b;
  b.d = f32_to_f16_bits(symmetric(x, 8, q));
  put_nibbles(q, b.qs);
  return b;
}

BlockQ5_0 encode_q5_0(const float* x) {
  uint8_t q[32];
  BlockQ5_0 b;
  b.d = f32_to_f16_bits(symmetric(x, 16, q));
  put_nibbles(q, b.qs);
  put_fifth_bits(q, b.qh);
  return b;
}

BlockQ4_1 encode_q4_1(const float* x) {
  uint8_t q[32];
  float low;
  BlockQ4_1 b;
  b.d = f32_to_f16_bits(affine(x, 15, q, &low));
  b.m = f32_to_f16_bits(low);
  put_nibbles(q, b.qs);
  return b;
}

BlockQ5_1 encode_q5_1(const float* x) {
  uint8_t q[32];
  float low;
  BlockQ5_1 b;
  b.d = f32_to_f16_bits(affine(x, 31, q, &low));
  b.m = f32_to_f16_bits(low);
  put_nibbles(q, b.qs);
  put_fifth_bits(q, b.qh);
  return b;
}

BlockQ8_0 encode_q8_0(const float* x) {
  float most = 0.0f;
  for (int j = 0; j < 32; ++j) most = std::max(most, std::fabs(x[j]));
  const float d = most / 127.0f, id = inverse(d);
  BlockQ8_0 b;
  b.d = f32_to_f16_bits(d);
  for (int j = 0; j < 32; ++j) {  // halves away from zero
    const float scaled = x[j] * id;
    const int whole = static_cast<int>(scaled);
    b.qs[j] = static_cast<int8_t>(whole + static_cast<int>(2.0f * (scaled - static_cast<float>(whole))));
  }
  return b;
}

// --- Q4_K ------------------------------------------------------------------------------------------------

struct Fit {
  float scale, min;  // value = scale * code - min
};

// Weighted least squares of x = scale * q - min with min >= 0, for given codes; and the squared error.
struct Solved {
  Fit fit;
  float error;
};

SPOLA_INLINE Solved solve(const float* x, const float* w, const float* q, float sw, float swx, float swxx) {
  float a[kLanes] = {}, b[kLanes] = {}, c[kLanes] = {};
  for (int j = 0; j < 32; j += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const float wq = w[j + l] * q[j + l];
      a[l] += wq;
      b[l] += wq * q[j + l];
      c[l] += wq * x[j + l];
    }
  }
  const float swq = lane_sum(a), swqq = lane_sum(b), swqx = lane_sum(c);
  const float determinant = sw * swqq - swq * swq;
  if (!(determinant > 0.0f)) return {{0.0f, 0.0f}, INFINITY};
  float scale = (sw * swqx - swq * swx) / determinant;
  float min = (swq * swqx - swqq * swx) / determinant;
  if (min < 0.0f) {
    min = 0.0f;
    scale = swqx / swqq;
  }
  // sum of w (scale q - min - x)^2, multiplied out.
  const float error =
      scale * scale * swqq + min * min * sw + swxx - 2.0f * (scale * min * swq + scale * swqx - min * swx);
  return {{scale, min}, error};
}

SPOLA_INLINE Fit fit_32(const float* x) {
  float low = 0.0f, high = x[0], square[kLanes] = {};
  for (int j = 0; j < 32; ++j) {
    low = std::min(low, x[j]);
    high = std::max(high, x[j]);
  }
  for (int j = 0; j < 32; j += kLanes) {
    for (int l = 0; l < kLanes; ++l) square[l] += x[j + l] * x[j + l];
  }
  if (!(high > low)) return {0.0f, -low};
  const float rms = std::sqrt(lane_sum(square) / 32.0f);
  float w[32], q[32], a[kLanes] = {}, b[kLanes] = {}, c[kLanes] = {};
  for (int j = 0; j < 32; j += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      w[j + l] = rms + std::fabs(x[j + l]);
      a[l] += w[j + l];
      b[l] += w[j + l] * x[j + l];
      c[l] += w[j + l] * x[j + l] * x[j + l];
    }
  }
  const float sw = lane_sum(a), swx = lane_sum(b), swxx = lane_sum(c);
  Solved best{{(high - low) / 15.0f, -low}, INFINITY};
  for (int step = -10; step <= 10; ++step) {
    const float id = (15.0f + 0.1f * static_cast<float>(step)) / (high - low);
    for (int j = 0; j < 32; ++j) q[j] = std::min(std::max(nearest(id * (x[j] - low)), 0.0f), 15.0f);
    const Solved now = solve(x, w, q, sw, swx, swxx);
    if (now.error < best.error && now.fit.scale > 0.0f) best = now;
  }
  return best.fit;
}

// Eight 6-bit scales and mins in 12 bytes, as Q4_K and Q5_K have them.
void put_scales(const uint8_t* scale, const uint8_t* min, uint8_t* out) {
  for (int s = 0; s < 4; ++s) {
    out[s] = static_cast<uint8_t>(scale[s] | (scale[s + 4] >> 4) << 6);
    out[s + 4] = static_cast<uint8_t>(min[s] | (min[s + 4] >> 4) << 6);
    out[s + 8] = static_cast<uint8_t>((scale[s + 4] & 15) | (min[s + 4] & 15) << 4);
  }
}

SPOLA_CLONES void encode_q4_k(const float* x, int64_t blocks, uint8_t* out) {
  for (int64_t i = 0; i < blocks; ++i, x += 256, out += sizeof(BlockQ4_K)) {
    Fit fit[8];
    float scales = 0.0f, mins = 0.0f;
    for (int s = 0; s < 8; ++s) {
      fit[s] = fit_32(x + 32 * s);
      scales = std::max(scales, fit[s].scale);
      mins = std::max(mins, fit[s].min);
    }
    BlockQ4_K b;
    b.d = f32_to_f16_bits(scales / 63.0f);
    b.dmin = f32_to_f16_bits(mins / 63.0f);
    const float d = f16_to_f32(b.d), dmin = f16_to_f32(b.dmin);
    const float id = inverse(scales / 63.0f), idmin = inverse(mins / 63.0f);
    uint8_t scale[8], min[8], q[256];
    for (int s = 0; s < 8; ++s) {
      scale[s] = static_cast<uint8_t>(std::min(nearest(fit[s].scale * id), 63.0f));
      min[s] = static_cast<uint8_t>(std::min(nearest(fit[s].min * idmin), 63.0f));
      const float step = inverse(d * static_cast<float>(scale[s])), m = dmin * static_cast<float>(min[s]);
      for (int j = 0; j < 32; ++j) {
        const float code = nearest((x[32 * s + j] + m) * step);
        q[32 * s + j] = static_cast<uint8_t>(std::min(std::max(code, 0.0f), 15.0f));
      }
    }
    put_scales(scale, min, b.scales);
    for (int k = 0; k < 128; ++k) {
      const int at = k / 32 * 64 + k % 32;
      b.qs[k] = static_cast<uint8_t>(q[at] | q[at + 32] << 4);
    }
    std::memcpy(out, &b, sizeof b);
  }
}

// --- Q6_K ------------------------------------------------------------------------------------------------

// The scale of x = scale * q, q from -32 to 31, with the least error weighted by x^2.
SPOLA_INLINE float fit_16(const float* x) {
  float most = 0.0f, value = 0.0f;
  for (int j = 0; j < 16; ++j) {
    if (std::fabs(x[j]) > most) {
      most = std::fabs(x[j]);
      value = x[j];
    }
  }
  if (most < 1e-30f) return 0.0f;
  float best = 0.0f, scale = value / -32.0f;
  for (int step = -9; step <= 9; ++step) {
    const float id = -(32.0f + 0.1f * static_cast<float>(step)) / value;
    float a[kLanes] = {}, b[kLanes] = {};
    for (int j = 0; j < 16; j += kLanes) {
      for (int l = 0; l < kLanes; ++l) {
        const float q = std::min(std::max(nearest(id * x[j + l]), -32.0f), 31.0f);
        const float wq = x[j + l] * x[j + l] * q;
        a[l] += wq * x[j + l];
        b[l] += wq * q;
      }
    }
    const float along = lane_sum(a), square = lane_sum(b);
    // The error is a constant less along^2 / square.
    if (square > 0.0f && along * along > best * square) {
      scale = along / square;
      best = scale * along;
    }
  }
  return scale;
}

SPOLA_CLONES void encode_q6_k(const float* x, int64_t blocks, uint8_t* out) {
  for (int64_t i = 0; i < blocks; ++i, x += 256, out += sizeof(BlockQ6_K)) {
    float fit[16], most = 0.0f, value = 0.0f;
    for (int g = 0; g < 16; ++g) {
      fit[g] = fit_16(x + 16 * g);
      if (std::fabs(fit[g]) > most) {
        most = std::fabs(fit[g]);
        value = fit[g];
      }
    }
    BlockQ6_K b;
    b.d = f32_to_f16_bits(value / -128.0f);
    const float d = f16_to_f32(b.d), id = inverse(value / -128.0f);
    uint8_t q[256];
    for (int g = 0; g < 16; ++g) {
      b.scales[g] = static_cast<int8_t>(std::min(std::max(nearest(fit[g] * id), -128.0f), 127.0f));
      const float step = inverse(d * static_cast<float>(b.scales[g]));
      for (int j = 0; j < 16; ++j) {
        const float code = nearest(x[16 * g + j] * step);
        q[16 * g + j] = static_cast<uint8_t>(std::min(std::max(code, -32.0f), 31.0f) + 32.0f);
      }
    }
    for (int half = 0; half < 2; ++half) {
      const uint8_t* h = q + 128 * half;
      for (int j = 0; j < 32; ++j) {
        b.ql[64 * half + j] = static_cast<uint8_t>((h[j] & 15) | (h[j + 64] & 15) << 4);
        b.ql[64 * half + 32 + j] = static_cast<uint8_t>((h[j + 32] & 15) | (h[j + 96] & 15) << 4);
        b.qh[32 * half + j] = static_cast<uint8_t>(h[j] >> 4 | (h[j + 32] >> 4) << 2 | (h[j + 64] >> 4) << 4 |
                                                   (h[j + 96] >> 4) << 6);
      }
    }
    std::memcpy(out, &b, sizeof b);
  }
}

// --- plain types -------------------------------------------------------------------------------------------

template <class Block, Block (*encode)(const float*)>
void encode_blocks(const float* x, int64_t n, uint8_t* out) {
  for (int64_t i = 0; i < n; i += 32, out += sizeof(Block)) {
    const Block b = encode(x + i);
    std::memcpy(out, &b, sizeof b);
  }
}

uint16_t f32_to_bf16_bits(float x) {  // to nearest, ties to even; finite values only
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

template <uint16_t (*encode)(float)>
void encode_halves(const float* x, int64_t n, uint8_t* out) {
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t bits = encode(x[i]);
    std::memcpy(out + 2 * i, &bits, 2);
  }
}

template <float (*decode)(uint16_t)>
void decode_halves(const uint8_t* row, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    uint16_t bits;
    std::memcpy(&bits, row + 2 * i, 2);
    out[i] = decode(bits);
  }
}

void decode_e4m3(const uint8_t* row, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    const uint8_t* block = row + i / 64 * static_cast<int64_t>(sizeof(BlockE4M3));
    float scale;
    std::memcpy(&scale, block, sizeof scale);
    out[i] = e4m3_to_f32(block[sizeof scale + i % 64]) * scale;
  }
}

}  // namespace

bool can_encode(GgmlType type) {
  switch (type) {
    case GgmlType::kF32:
    case GgmlType::kF16:
    case GgmlType::kBF16:
    case GgmlType::kQ4_0:
    case GgmlType::kQ4_1:
    case GgmlType::kQ5_0:
    case GgmlType::kQ5_1:
    case GgmlType::kQ8_0:
    case GgmlType::kQ4_K:
    case GgmlType::kQ6_K: return true;
    default: return false;
  }
}

void decode_values(GgmlType type, const uint8_t* row, int64_t n, float* out) {
  switch (type) {
    case GgmlType::kF32: std::memcpy(out, row, static_cast<size_t>(n) * sizeof(float)); return;
    case GgmlType::kF16: return decode_halves<f16_to_f32>(row, n, out);
    case GgmlType::kBF16: return decode_halves<bf16_to_f32>(row, n, out);
    case GgmlType::kE4M3: return decode_e4m3(row, n, out);
    default: break;
  }
  const TypeShape shape = type_shape(type);
  const int group = group_of(type);
  const bool mins = has_min(type);
  Expanded block;
  for (int64_t i = 0; i < n; i += shape.values, row += shape.bytes) {
    expand_block(type, row, &block);
    for (int j = 0; j < shape.values; ++j) {
      const float scaled = block.scale[j / group] * static_cast<float>(block.code[j]);
      out[i + j] = mins ? scaled + block.min[j / group] : scaled;
    }
  }
}

void encode_values(GgmlType type, const float* x, int64_t n, uint8_t* out) {
  switch (type) {
    case GgmlType::kF32: std::memcpy(out, x, static_cast<size_t>(n) * sizeof(float)); return;
    case GgmlType::kF16: return encode_halves<f32_to_f16_bits>(x, n, out);
    case GgmlType::kBF16: return encode_halves<f32_to_bf16_bits>(x, n, out);
    case GgmlType::kQ4_0: return encode_blocks<BlockQ4_0, encode_q4_0>(x, n, out);
    case GgmlType::kQ4_1: return encode_blocks<BlockQ4_1, encode_q4_1>(x, n, out);
    case GgmlType::kQ5_0: return encode_blocks<BlockQ5_0, encode_q5_0>(x, n, out);
    case GgmlType::kQ5_1: return encode_blocks<BlockQ5_1, encode_q5_1>(x, n, out);
    case GgmlType::kQ8_0: return encode_blocks<BlockQ8_0, encode_q8_0>(x, n, out);
    case GgmlType::kQ4_K: return encode_q4_k(x, n / 256, out);
    case GgmlType::kQ6_K: return encode_q6_k(x, n / 256, out);
    default: return;
  }
}

}  // namespace spola
