// attention_segment and attention_merge with AVX2, FMA and F16C: equal bits to the scalar twins. What they do
// is in attention_tile.h.
#include "kernels/attention_tile.h"
#include "kernels/vector_avx2.h"

namespace spola {

void attention_segment_avx2(const AttentionArgs& a) { Attention<avx2::Vector>::segment(a); }

void attention_merge_avx2(const float* part, int v_dim, float* into) {
  Attention<avx2::Vector>::merge(part, v_dim, into);
}

}  // namespace spola
