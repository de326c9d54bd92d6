// Rotary positions on one head, in place: the "Rope" section of docs/numerics.md.
#pragma once

namespace spola {

// `cosine` and `sine` hold `half` values for the position. Pairs are (2i, 2i + 1) when `interleaved`, else
// (i, i + half). x has at least 2 * half values; the rest is left alone.
void rope_scalar(float* x, const float* cosine, const float* sine, int half, bool interleaved);
void rope_avx2(float* x, const float* cosine, const float* sine, int half, bool interleaved);
void rope_neon(float* x, const float* cosine, const float* sine, int half, bool interleaved);

}  // namespace spola
