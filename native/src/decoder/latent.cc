// Latent attention: products of each head with a matrix of its own, and what a token keeps for all heads.
//
// A head's query is in the latent space when attention begins (k_b) and its result leaves it afterwards (v_b). The
// KV cache holds one head per token, whose value is the first v_dim dimensions of its key; they lie transposed
// there, so each call of the attention kernel gets a copy of them in the order in which it adds them up.

#include <algorithm>
#include <cstring>

#include "decoder/ops.h"
#include "kernels/rope.h"

namespace spola {
namespace {

// `rows` rows of 32 values as 32 rows of `rows` values.
template <class T>
void transpose(const T* from, int rows, T* to) {
  constexpr int kStep = 16;  // rows whose lines stay in the first-level cache
  for (int first = 0; first < rows; first += kStep) {
    const int last = std::min(first + kStep, rows);
    for (int t = 0; t < kBlock; ++t) {
      T* out = to + static_cast<size_t>(t) * rows;
      for (int d = first; d < last; ++d) out[d] = from[static_cast<size_t>(d) * kBlock + t];
    }
  }
}

void rotate(const OpContext& c, const RopeTable& table, int position, float* x) {
  const size_t at = static_cast<size_t>(position) * table.half;
  c.kernels->rope(x, table.cosine + at, table.sine + at, table.half, table.interleaved);
}

void latent_row(const LatentOp& op, const OpContext& c, int row, float* scratch) {
  const KvPool& pool = (*c.kv)[op.shape.group];
  const KvShape& g = pool.shape();
  const int turned = g.k_dim - g.v_dim, nope = op.q_dim - turned, position = c.rows->position[row];
  const float* kv = c.work->buffer(Buffer::kLatent) + static_cast<size_t>(row) * op.kv_stride + op.kv_column;
  float* k = scratch;
  apply_norm(*c.kernels, *c.model, op.norm, kv, g.v_dim, k, nullptr);
  std::memcpy(k + g.v_dim, kv + g.v_dim, static_cast<size_t>(turned) * sizeof(float));
  const RopeTable* table = op.rope == kNoId ? nullptr : &c.model->rope(op.rope);
  if (table) rotate(c, *table, position, k + g.v_dim);
  const int block = c.rows->block[op.shape.group][row];
  store_k(c, g, k, pool.k(block, op.shape.layer, 0), position % kBlock, scratch + g.k_dim);
  const float* from = c.work->buffer(op.q) + static_cast<size_t>(row) * op.q_stride + nope;
  float* q = c.work->buffer(Buffer::kQkv) + static_cast<size_t>(row) * op.shape.heads * g.k_dim;
  for (int h = 0; h < op.shape.heads; ++h, from += op.q_dim, q += g.k_dim) {
    std::memcpy(q + g.v_dim, from, static_cast<size_t>(turned) * sizeof(float));
    if (table) rotate(c, *table, position, q + g.v_dim);
    for (int d = 0; d < g.k_dim; ++d) q[d] *= op.shape.scale;
  }
}

}  // namespace

void run_latent(const LatentOp& op, const OpContext& c, int worker) {
  claim_all(c, worker, 0, c.rows->count, [&](Range range) {
    for (int r = range.begin; r < range.end; ++r) latent_row(op, c, r, c.work->scratch(worker));
    c.counters[worker].rows += static_cast<uint64_t>(range.end - range.begin);
  });
}

void run_heads(const HeadsOp& op, const OpContext& c, int worker) {
  const int tiles = c.model->matrix(op.matrix).tiles;
  claim_all(c, worker, 0, op.heads * tiles, [&](Range range) {
    LinearOp linear;
    linear.parts = 1;
    linear.output = op.output;
    linear.width = op.width;
    for (int i = range.begin; i < range.end; ++i) {
      const int head = i / tiles;
      linear.part[0] = {op.matrix + head, kNoId, head * op.step, kNoId, 0};
      linear.first = head * c.rows->count;
      linear_tile(linear, c, i % tiles, linear.first, linear.first + c.rows->count);
    }
    c.counters[worker].tiles += static_cast<uint64_t>(range.end - range.begin);
  });
}

void values_of_latent(const KvShape& g, const uint8_t* k, uint8_t* v) {
  const size_t values = static_cast<size_t>(g.v_dim) * kBlock;
  switch (g.k_type) {
    case KvType::kF32:
      return transpose(reinterpret_cast<const uint32_t*>(k), g.v_dim, reinterpret_cast<uint32_t*>(v));
    case KvType::kF16:
      return transpose(reinterpret_cast<const uint16_t*>(k), g.v_dim, reinterpret_cast<uint16_t*>(v));
    case KvType::kI8: {
      transpose(k, g.v_dim, v);
      const uint8_t* scales = k + static_cast<size_t>(g.k_dim) * kBlock;
      std::memcpy(v + values, scales, kv_block_bytes(KvType::kI8, g.v_dim) - values);
    }
  }
}

}  // namespace spola
