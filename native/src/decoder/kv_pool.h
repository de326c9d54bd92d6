// The memory of the KV cache: blocks of 32 tokens, one pool per KV group.
//
// A block is [layer][kv_head]{K, V}, each as kernels/attention.h says. Which block belongs to whom is the
// engine's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/arena.h"
#include "decoder/step.h"
#include "kernels/attention.h"

namespace spola {

struct KvShape {
  int layers = 0;
  int heads = 0;
  int k_dim = 0;
  int v_dim = 0;
  int window = 0;  // 0: every position
  KvType k_type = KvType::kF16;
  KvType v_type = KvType::kF16;
  bool latent = false;  // V is the first v_dim dimensions of K and has no place of its own
};

// Floats of partial results that one worker holds while it attends for one KV head of `heads` query heads.
inline size_t attention_floats(const KvShape& g, int heads) {
  return static_cast<size_t>(kQueryRows) * (heads / g.heads) * (g.v_dim + 2);
}

class KvPool {
 public:
  KvPool(const KvShape& shape, int blocks, bool huge_pages);

  const KvShape& shape() const { return shape_; }
  int blocks() const { return blocks_; }
  size_t bytes() const { return memory_.size(); }

  uint8_t* k(int block, int layer, int head) const {
    return memory_.data() + block * block_bytes_ +
           (static_cast<size_t>(layer) * shape_.heads + head) * head_bytes_;
  }
  uint8_t* v(int block, int layer, int head) const { return k(block, layer, head) + k_bytes_; }

  void zero(int block);
  void poison(int block);  // NaN in every value: what a test puts into blocks that nobody may read

  // All sources are read before any target is written.
  void copy(const std::vector<std::pair<int, int>>& source_target);

 private:
  KvShape shape_;
  int blocks_;
  size_t k_bytes_;
  size_t head_bytes_;
  size_t block_bytes_;
  Mapping memory_;
};

}  // namespace spola
