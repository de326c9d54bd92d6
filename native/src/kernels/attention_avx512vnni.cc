// attention_segment and attention_merge with AVX-512: equal bits to the scalar twins. What they do is in
// attention_tile.h.
#include "kernels/attention_tile.h"
#include "kernels/vector_avx512vnni.h"

namespace spola {

void attention_segment_avx512vnni(const AttentionArgs& a) { Attention<avx512vnni::Vector>::segment(a); }

void attention_merge_avx512vnni(const float* part, int v_dim, float* into) {
  Attention<avx512vnni::Vector>::merge(part, v_dim, into);
}

}  // namespace spola
