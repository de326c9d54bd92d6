// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3".
#pragma once

#include <cstdint>

namespace spola {

enum class Purpose : uint32_t { kTarget = 0, kDraft, kAccept, kResidual };

// A uniform number in [0, 1) with 53 bits.
inline double uniform(uint64_t seed, uint32_t position, uint32_t choice, Purpose purpose) {
  uint32_t key0 = static_cast<uint32_t>(seed);
  uint32_t key1 = static_cast<uint32_t>(seed >> 32);
  uint32_t c[4] = {position, choice, static_cast<uint32_t>(purpose), 0};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c[2];
    const uint32_t next[4] = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ key0, static_cast<uint32_t>(p1),
                              static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ key1, static_cast<uint32_t>(p0)};
    for (int i = 0; i < 4; ++i) c[i] = next[i];
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return static_cast<double>(((uint64_t{c[0]} << 32) | c[1]) >> 11) * 0x1p-53;
}

}  // namespace spola
