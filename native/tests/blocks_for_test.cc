#include "blocks_for_test.h"

#include "base/half.h"

namespace blocks {

using namespace spola;

const NamedType kAll[20] = {
    {GgmlType::kF32, "F32"},       {GgmlType::kF16, "F16"},
    {GgmlType::kBF16, "BF16"},     {GgmlType::kQ4_0, "Q4_0"},
    {GgmlType::kQ4_1, "Q4_1"},     {GgmlType::kQ5_0, "Q5_0"},
    {GgmlType::kQ5_1, "Q5_1"},     {GgmlType::kQ8_0, "Q8_0"},
    {GgmlType::kQ2_K, "Q2_K"},     {GgmlType::kQ3_K, "Q3_K"},
    {GgmlType::kQ4_K, "Q4_K"},     {GgmlType::kQ5_K, "Q5_K"},
    {GgmlType::kQ6_K, "Q6_K"},     {GgmlType::kIQ4_NL, "IQ4_NL"},
    {GgmlType::kIQ4_XS, "IQ4_XS"}, {GgmlType::kMXFP4, "MXFP4"},
    {GgmlType::kE4M3, "E4M3"},     {GgmlType::kU4Z64, "4 bits, group 64"},
    {GgmlType::kI8C, "int8"},      {GgmlType::kU4Z128, "4 bits, group 128"},
};

namespace {

// A scale in f16: of either sign, subnormal now and then.
uint16_t random_half(Fill fill, check::Random& r) {
  if (fill != Fill::kTypical && r.below(20) == 0) return static_cast<uint16_t>(r.below(1024));
  return f32_to_f16_bits(r.symmetric(0.2f));
}

// Byte offsets of the f16 members of a block.
std::vector<int> half_offsets(GgmlType type) {
  switch (type) {
    case GgmlType::kQ4_1:
    case GgmlType::kQ5_1:
    case GgmlType::kQ4_K:
    case GgmlType::kQ5_K:
    case GgmlType::kU4Z64:
    case GgmlType::kU4Z128: return {0, 2};
    case GgmlType::kQ2_K: return {80, 82};
    case GgmlType::kQ3_K: return {108};
    case GgmlType::kQ6_K: return {208};
    case GgmlType::kMXFP4:
    case GgmlType::kE4M3:
    case GgmlType::kI8C: return {};
    default: return {0};
  }
}

template <class T>
std::vector<uint8_t> bytes_of(const std::vector<T>& v) {
  std::vector<uint8_t> out(v.size() * sizeof(T));
  std::memcpy(out.data(), v.data(), out.size());
  return out;
}

std::vector<uint8_t> make_float_row(GgmlType type, int cols, check::Random& r) {
  std::vector<float> f(static_cast<size_t>(cols));
  for (float& x : f) x = r.value();
  if (type == GgmlType::kF32) return bytes_of(f);
  std::vector<uint16_t> h;
  for (float x : f) {
    h.push_back(type == GgmlType::kF16 ? f32_to_f16_bits(x)
                                       : static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16));
  }
  return bytes_of(h);
}

}  // namespace

std::vector<uint8_t> make_row(GgmlType type, int cols, Fill fill, check::Random& r) {
  const TypeShape shape = type_shape(type);
  if (shape.values == 1) return make_float_row(type, cols, r);
  std::vector<uint8_t> row(row_bytes(type, cols));
  const bool i8 = type == GgmlType::kQ8_0 || type == GgmlType::kI8C;
  const float row_scale = r.symmetric(0.2f);  // int8 with a scale per row
  for (uint8_t& b : row) {
    if (fill == Fill::kRandom || fill == Fill::kTypical) b = static_cast<uint8_t>(r.bits());
    if (fill == Fill::kLowest) b = i8 ? 0x80 : 0;
    if (fill == Fill::kHighest) b = i8 ? 0x7f : 0xff;
  }
  for (size_t at = 0; at < row.size(); at += static_cast<size_t>(shape.bytes)) {
    for (int o : half_offsets(type)) {
      const uint16_t h = random_half(fill, r);
      std::memcpy(&row[at + static_cast<size_t>(o)], &h, 2);
    }
    if (type == GgmlType::kE4M3 || type == GgmlType::kI8C) {
      const bool tiny = fill != Fill::kTypical && r.below(20) == 0;
      const float d = type == GgmlType::kI8C ? row_scale : tiny ? 0x1p-140f : r.symmetric(0.2f);
      std::memcpy(&row[at], &d, 4);
      for (size_t i = at + 4; type == GgmlType::kE4M3 && i < at + 68; ++i) {
        if ((row[i] & 0x7f) == 0x7f) row[i] ^= 1;  // no NaN
      }
    }
    if (type == GgmlType::kMXFP4) {
      const bool tiny = fill != Fill::kTypical && r.below(10) == 0;
      row[at] = static_cast<uint8_t>(tiny ? r.below(3) : 110 + r.below(20));
    }
    // Sub-block scales must not vanish when all code bits are 0.
    if (type == GgmlType::kQ6_K && (fill == Fill::kLowest || fill == Fill::kHighest))
      std::memset(&row[at + 192], 0x80, 16);
    if (type == GgmlType::kQ4_K || type == GgmlType::kQ5_K) {
      if (fill == Fill::kLowest) std::memset(&row[at + 4], 0xff, 12);
    }
  }
  return row;
}

namespace {

float half(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, 2);
  return f16_to_f32(h);
}

void legacy(const uint8_t* x, bool min, bool five, int zero, float* y) {
  const float d = half(x), m = min ? half(x + 2) : 0;
  x += min ? 4 : 2;
  uint32_t qh = 0;
  if (five) std::memcpy(&qh, x, 4), x += 4;
  for (int j = 0; j < 16; ++j) {
    const int h0 = static_cast<int>((qh >> j) << 4) & 16, h1 = static_cast<int>(qh >> (j + 12)) & 16;
    const float p0 = static_cast<float>(((x[j] & 15) | (five ? h0 : 0)) - zero) * d;
    const float p1 = static_cast<float>(((x[j] >> 4) | (five ? h1 : 0)) - zero) * d;
    y[j] = min ? p0 + m : p0;
    y[j + 16] = min ? p1 + m : p1;
  }
}

void table4(const uint8_t* qs, float d, const int* values, float* y) {
  for (int j = 0; j < 16; ++j) {
    y[j] = d * static_cast<float>(values[qs[j] & 15]);
    y[j + 16] = d * static_cast<float>(values[qs[j] >> 4]);
  }
}

const int kNl[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
const int kFp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

void q2_k(const uint8_t* x, float* y) {
  const uint8_t *sc = x, *q = x + 16;
  const float d = half(x + 80), dmin = half(x + 82);
  for (int n = 0; n < 2; ++n, q += 32) {
    for (int shift = 0; shift < 8; shift += 2) {
      for (int part = 0; part < 2; ++part, ++sc) {
        const float dl = d * static_cast<float>(*sc & 15), ml = dmin * static_cast<float>(*sc >> 4);
        for (int l = 0; l < 16; ++l) *y++ = dl * static_cast<float>((q[part * 16 + l] >> shift) & 3) - ml;
      }
    }
  }
}

void q3_k(const uint8_t* x, float* y) {
  const uint8_t *hm = x, *q = x + 32, *s = x + 96;
  const float d = half(x + 108);
  int scales[16];
  for (int i = 0; i < 4; ++i) {
    scales[i] = (s[i] & 15) | ((s[8 + i] & 3) << 4);
    scales[4 + i] = (s[4 + i] & 15) | (((s[8 + i] >> 2) & 3) << 4);
    scales[8 + i] = (s[i] >> 4) | (((s[8 + i] >> 4) & 3) << 4);
    scales[12 + i] = (s[4 + i] >> 4) | ((s[8 + i] >> 6) << 4);
  }
  int is = 0, m = 1;
  for (int n = 0; n < 2; ++n, q += 32) {
    for (int shift = 0; shift < 8; shift += 2, m <<= 1) {
      for (int l = 0; l < 32; ++l) {
        const float dl = d * static_cast<float>(scales[is + l / 16] - 32);
        *y++ = dl * static_cast<float>(((q[l] >> shift) & 3) - (hm[l] & m ? 0 : 4));
      }
      is += 2;
    }
  }
}

void q45_k(const uint8_t* x, bool five, float* y) {
  const float d = half(x), dmin = half(x + 2);
  const uint8_t *s = x + 4, *qh = x + 16, *q = x + (five ? 48 : 16);
  for (int j = 0; j < 8; ++j) {
    const int sc = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | ((s[j - 4] >> 6) << 4);
    const int mn = j < 4 ? s[j + 4] & 63 : (s[j + 4] >> 4) | ((s[j] >> 6) << 4);
    const float d1 = d * static_cast<float>(sc), m1 = dmin * static_cast<float>(mn);
    for (int l = 0; l < 32; ++l) {
      const int low = j % 2 == 0 ? q[l] & 15 : q[l] >> 4;
      *y++ = d1 * static_cast<float>(low + (five && (qh[l] >> j & 1) ? 16 : 0)) - m1;
    }
    if (j % 2 == 1) q += 32;
  }
}

void q6_k(const uint8_t* x, float* y) {
  const uint8_t *ql = x, *qh = x + 128;
  const auto* sc = reinterpret_cast<const int8_t*>(x + 192);
  const float d = half(x + 208);
  for (int n = 0; n < 2; ++n, y += 128, ql += 64, qh += 32, sc += 8) {
    for (int l = 0; l < 32; ++l) {
      const int is = l / 16;
      const int q1 = ((ql[l] & 15) | (((qh[l] >> 0) & 3) << 4)) - 32;
      const int q2 = ((ql[l + 32] & 15) | (((qh[l] >> 2) & 3) << 4)) - 32;
      const int q3 = ((ql[l] >> 4) | (((qh[l] >> 4) & 3) << 4)) - 32;
      const int q4 = ((ql[l + 32] >> 4) | (((qh[l] >> 6) & 3) << 4)) - 32;
      y[l] = d * static_cast<float>(sc[is]) * static_cast<float>(q1);
      y[l + 32] = d * static_cast<float>(sc[is + 2]) * static_cast<float>(q2);
      y[l + 64] = d * static_cast<float>(sc[is + 4]) * static_cast<float>(q3);
      y[l + 96] = d * static_cast<float>(sc[is + 6]) * static_cast<float>(q4);
    }
  }
}

void iq4_xs(const uint8_t* x, float* y) {
  uint16_t high;
  std::memcpy(&high, x + 2, 2);
  for (int ib = 0; ib < 8; ++ib) {
    const int ls = ((x[4 + ib / 2] >> (4 * (ib % 2))) & 15) | (((high >> (2 * ib)) & 3) << 4);
    table4(x + 8 + ib * 16, half(x) * static_cast<float>(ls - 32), kNl, y + ib * 32);
  }
}

// By sign, exponent and mantissa.
float e4m3(uint8_t x) {
  const int e = x >> 3 & 15, m = x & 7;
  const float v =
      e == 0 ? std::ldexp(static_cast<float>(m), -9) : std::ldexp(static_cast<float>(8 + m), e - 10);
  return x & 0x80 ? -v : v;
}

void u4z(const uint8_t* x, int values, float* y) {
  const float d = half(x), m = d * half(x + 2);
  for (int k = 0; k < values; ++k) {
    const int byte = x[4 + k / 32 * 16 + k % 16];
    y[k] = d * static_cast<float>(k % 32 < 16 ? byte & 15 : byte >> 4) - m;
  }
}

void scaled_bytes(const uint8_t* x, bool floats, float* y) {
  float d;
  std::memcpy(&d, x, 4);
  for (int k = 0; k < 64; ++k)
    y[k] = d * (floats ? e4m3(x[4 + k]) : static_cast<float>(static_cast<int8_t>(x[4 + k])));
}

void decode_block(GgmlType type, const uint8_t* x, float* y) {
  switch (type) {
    case GgmlType::kF32: std::memcpy(y, x, 4); return;
    case GgmlType::kF16: *y = half(x); return;
    case GgmlType::kBF16: *y = std::bit_cast<float>(static_cast<uint32_t>(x[0] << 16 | x[1] << 24)); return;
    case GgmlType::kQ4_0: return legacy(x, false, false, 8, y);
    case GgmlType::kQ4_1: return legacy(x, true, false, 0, y);
    case GgmlType::kQ5_0: return legacy(x, false, true, 16, y);
    case GgmlType::kQ5_1: return legacy(x, true, true, 0, y);
    case GgmlType::kQ8_0:
      for (int j = 0; j < 32; ++j) y[j] = static_cast<float>(static_cast<int8_t>(x[2 + j])) * half(x);
      return;
    case GgmlType::kQ2_K: return q2_k(x, y);
    case GgmlType::kQ3_K: return q3_k(x, y);
    case GgmlType::kQ4_K: return q45_k(x, false, y);
    case GgmlType::kQ5_K: return q45_k(x, true, y);
    case GgmlType::kQ6_K: return q6_k(x, y);
    case GgmlType::kIQ4_NL: return table4(x + 2, half(x), kNl, y);
    case GgmlType::kIQ4_XS: return iq4_xs(x, y);
    case GgmlType::kE4M3: return scaled_bytes(x, true, y);
    case GgmlType::kI8C: return scaled_bytes(x, false, y);
    case GgmlType::kU4Z64: return u4z(x, 64, y);
    case GgmlType::kU4Z128: return u4z(x, 128, y);
    case GgmlType::kMXFP4: return table4(x + 1, std::ldexp(1.0f, x[0] - 128), kFp4, y);
  }
}

}  // namespace

std::vector<float> decode(GgmlType type, const std::vector<uint8_t>& row, int cols) {
  const TypeShape shape = type_shape(type);
  std::vector<float> out(static_cast<size_t>(cols));
  for (int i = 0; i < cols / shape.values; ++i) {
    decode_block(type, row.data() + static_cast<size_t>(i) * static_cast<size_t>(shape.bytes),
                 out.data() + static_cast<size_t>(i) * static_cast<size_t>(shape.values));
  }
  return out;
}

}  // namespace blocks
