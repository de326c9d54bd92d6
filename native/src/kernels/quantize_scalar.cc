// f32 activations to int8 blocks (A8) and int16 rows (A16), one value at a time.
#include <bit>
#include <cmath>

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

}  // namespace spola::scalar
