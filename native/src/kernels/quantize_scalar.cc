// f32 activations to int8 blocks (A8) and int16 rows (A16), one value at a time.
#include <algorithm>
#include <bit>
#include <cmath>

#include "base/half.h"
#include "kernels/attention.h"
#include "kernels/row_groups.h"
#include "kernels/variants.h"

namespace spola::scalar {

namespace {

constexpr uint32_t kInfinity = 0x7f800000u;
constexpr float kTiny = 0x1p-100f;  // below it the inverse scale could overflow

// Bits of max |x|. As integers they order like the values, with infinity and then NaN on top.
uint32_t abs_max_bits(const float* x, int n) {
  uint32_t most = 0;
  for (int i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu;
    if (bits > most) most = bits;
  }
  return most;
}

// max |x| as the quantizers use it: 0 when tiny, or not finite (then *ok becomes false).
float abs_max(const float* x, int n, bool* ok) {
  const uint32_t bits = abs_max_bits(x, n);
  if (bits >= kInfinity) {
    *ok = false;
    return 0;
  }
  const float amax = std::bit_cast<float>(bits);
  return amax < kTiny ? 0 : amax;
}

}  // namespace

bool quantize_a8(const float* x, int k, int8_t* q, float* d, float* s, int16_t* h) {
  bool ok = true;
  for (int b = 0; b < k / kBlock; ++b, x += kBlock, q += kBlock) {
    const float amax = abs_max(x, kBlock, &ok);
    const float inverse = amax == 0 ? 0 : 127.0f / amax;
    int sum[2] = {0, 0};
    for (int i = 0; i < kBlock; ++i) {
      q[i] = amax == 0 ? int8_t(0) : static_cast<int8_t>(std::nearbyintf(x[i] * inverse));
      sum[i / 16] += q[i];
    }
    d[b] = amax / 127.0f;
    s[b] = d[b] * static_cast<float>(sum[0] + sum[1]);
    h[b * 2] = static_cast<int16_t>(sum[0]);
    h[b * 2 + 1] = static_cast<int16_t>(sum[1]);
  }
  return ok;
}

// See row_groups.h for the record; kernels that work on many rows at once are compared with this.
uint32_t quantize_group(const float* lo, const float* hi, size_t stride, int rows, uint8_t* record) {
  uint32_t bad = 0;
  for (int r = 0; r < rows; ++r, lo += stride, hi += stride) {
    float x[kBlock];
    std::copy(lo, lo + kBlock / 2, x);
    std::copy(hi, hi + kBlock / 2, x + kBlock / 2);
    int8_t q[kBlock];
    float d, s;
    int16_t h[2];
    if (!quantize_a8(x, kBlock, q, &d, &s, h)) bad |= 1u << r;
    put_block({q, &d, &s, h}, r, rows, record);
  }
  return bad;
}

bool quantize_a16(const float* x, int k, int16_t* q, float* d) {
  bool ok = true;
  const float amax = abs_max(x, k, &ok);
  const float inverse = amax == 0 ? 0 : 32767.0f / amax;
  for (int i = 0; i < k; ++i) {
    q[i] = amax == 0 ? int16_t(0) : static_cast<int16_t>(std::nearbyintf(x[i] * inverse));
  }
  *d = amax / 32767.0f;
  return ok;
}

// A group with a value that is not finite gets a scale that is not: whoever reads it ends with an error.
void quantize_kv(const float* x, int n, int8_t* q, uint16_t* d) {
  for (int from = 0; from < n; from += kKvGroup) {
    const int to = from + kKvGroup < n ? from + kKvGroup : n;
    const uint32_t bits = abs_max_bits(x + from, to - from);
    const uint16_t half = bits >= kInfinity ? uint16_t(0x7e00) : f32_to_f16_bits(std::bit_cast<float>(bits) / 127.0f);
    const float scale = f16_to_f32(half);
    const float inverse = scale > 0 && f16_finite(half) ? 1.0f / scale : 0.0f;
    for (int i = from; i < to; ++i) {
      const float code = inverse == 0 ? 0.0f : std::nearbyintf(x[i] * inverse);
      q[i] = static_cast<int8_t>(code > 127.0f ? 127.0f : code < -127.0f ? -127.0f : code);
    }
    d[from / kKvGroup] = half;
  }
}

}  // namespace spola::scalar
