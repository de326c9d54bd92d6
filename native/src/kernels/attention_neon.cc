// attention_segment and attention_merge with NEON: equal bits to the scalar twins. What they do is in
// attention_tile.h.
#include "kernels/attention_tile.h"
#include "kernels/vector_neon.h"

namespace spola {

void attention_segment_neon(const AttentionArgs& a) { Attention<neon::Vector>::segment(a); }

void attention_merge_neon(const float* part, int v_dim, float* into) {
  Attention<neon::Vector>::merge(part, v_dim, into);
}

}  // namespace spola
