#include "decoder/kv_pool.h"

#include <cstring>

namespace spola {

KvPool::KvPool(const KvShape& shape, int blocks, bool huge_pages)
    : shape_(shape),
      blocks_(blocks),
      k_bytes_(kv_block_bytes(shape.k_type, shape.k_dim)),
      head_bytes_(k_bytes_ + (shape.latent ? 0 : kv_block_bytes(shape.v_type, shape.v_dim))),
      block_bytes_(head_bytes_ * static_cast<size_t>(shape.layers) * static_cast<size_t>(shape.heads)),
      memory_(block_bytes_ * static_cast<size_t>(blocks), huge_pages) {}

void KvPool::zero(int block) { std::memset(k(block, 0, 0), 0, block_bytes_); }

void KvPool::poison(int block) { std::memset(k(block, 0, 0), 0xff, block_bytes_); }

void KvPool::copy(const std::vector<std::pair<int, int>>& source_target) {
  if (source_target.size() == 1) {
    std::memmove(k(source_target[0].second, 0, 0), k(source_target[0].first, 0, 0), block_bytes_);
    return;
  }
  std::vector<uint8_t> held(source_target.size() * block_bytes_);
  for (size_t i = 0; i < source_target.size(); ++i) {
    std::memcpy(held.data() + i * block_bytes_, k(source_target[i].first, 0, 0), block_bytes_);
  }
  for (size_t i = 0; i < source_target.size(); ++i) {
    std::memcpy(k(source_target[i].second, 0, 0), held.data() + i * block_bytes_, block_bytes_);
  }
}

}  // namespace spola
