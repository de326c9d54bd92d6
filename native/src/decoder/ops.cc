#include "decoder/ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/attention.h"
#include "kernels/pack.h"
#include "kernels/rope.h"
#include "kernels/row_groups.h"

namespace spola {

size_t qkv_width(const AttentionShape& shape, const KvShape& g) {
  if (g.latent) return static_cast<size_t>(shape.heads) * g.k_dim;
  return static_cast<size_t>(shape.heads + g.heads) * g.k_dim + static_cast<size_t>(g.heads) * g.v_dim;
}

namespace {

void embed(const EmbedOp& op, const OpContext& c, int worker, Range range) {
  const Matrix& m = c.model->matrix(op.matrix);
  for (int r = range.begin; r < range.end; ++r) {
    float* x = c.work->buffer(Buffer::kResidual) + static_cast<size_t>(r) * m.cols;
    decode_row(m.scheme, m.data, c.rows->token[r], m.cols, x);
    if (op.scale != 1.0f) {
      for (int i = 0; i < m.cols; ++i) x[i] *= op.scale;
    }
    if (op.positions == kNoId) continue;
    const Matrix& table = c.model->matrix(op.positions);
    float* row = c.work->scratch(worker);
    decode_row(table.scheme, table.data, c.rows->position[r] + op.offset, m.cols, row);
    for (int i = 0; i < m.cols; ++i) x[i] += row[i];
  }
}

void residual(const ResidualOp& op, const OpContext& c, int worker, Range range) {
  const int n = c.work->width(Buffer::kResidual);
  float* scratch = c.work->scratch(worker);
  for (int r = range.begin; r < range.end; ++r) {
    float* x = c.work->buffer(Buffer::kResidual) + static_cast<size_t>(r) * n;
    const float* y = c.work->buffer(op.input) + static_cast<size_t>(r) * n;
    if (op.norm.kind != NormKind::kNone) {
      apply_norm(*c.kernels, *c.model, op.norm, y, n, scratch, nullptr);
      y = scratch;
    }
    if (op.input == Buffer::kResidual) {
      std::memcpy(x, y, static_cast<size_t>(n) * sizeof(float));
    } else if (op.multiplier == 1.0f) {
      for (int i = 0; i < n; ++i) x[i] += y[i];
    } else {
      for (int i = 0; i < n; ++i) x[i] += op.multiplier * y[i];
    }
  }
}

// Norms every head of x, or all of them as one vector.
void norm_heads(const OpContext& c, const NormPart& norm, bool whole, float* x, int heads, int dim,
                float* scratch) {
  if (norm.kind == NormKind::kNone) return;
  const int n = whole ? heads * dim : dim;
  for (int i = 0; i < heads * dim; i += n) apply_norm(*c.kernels, *c.model, norm, x + i, n, x + i, scratch);
}

// Scales of one token behind the codes of an int8 block.
void store_scales(const uint16_t* scales, int dim, uint8_t* block, int lane) {
  uint16_t* to = reinterpret_cast<uint16_t*>(block + static_cast<size_t>(dim) * kBlock) + lane;
  for (int i = 0; i * kKvGroup < dim; ++i) to[i * kBlock] = scales[i];
}

void store_v(const OpContext& c, const KvShape& g, const float* x, uint8_t* block, int lane, float* scratch) {
  uint8_t* row = block + static_cast<size_t>(lane) * g.v_dim * kv_value_bytes(g.v_type);
  if (g.v_type == KvType::kF32) {
    std::memcpy(row, x, static_cast<size_t>(g.v_dim) * 4);
  } else if (g.v_type == KvType::kF16) {
    c.kernels->f32_to_f16(x, g.v_dim, reinterpret_cast<uint16_t*>(row));
  } else {
    uint16_t* scales = reinterpret_cast<uint16_t*>(scratch);
    c.kernels->quantize_kv(x, g.v_dim, reinterpret_cast<int8_t*>(row), scales);
    store_scales(scales, g.v_dim, block, lane);
  }
}

}  // namespace

// One row of K: each dimension goes to a row of the block of its own.
void store_k(const OpContext& c, const KvShape& g, const float* x, uint8_t* block, int lane, float* scratch) {
  if (g.k_type == KvType::kF32) {
    float* k = reinterpret_cast<float*>(block) + lane;
    for (int d = 0; d < g.k_dim; ++d) k[d * kBlock] = x[d];
  } else if (g.k_type == KvType::kF16) {
    uint16_t* half = reinterpret_cast<uint16_t*>(scratch);
    c.kernels->f32_to_f16(x, g.k_dim, half);
    uint16_t* k = reinterpret_cast<uint16_t*>(block) + lane;
    for (int d = 0; d < g.k_dim; ++d) k[d * kBlock] = half[d];
  } else {
    int8_t* codes = reinterpret_cast<int8_t*>(scratch);
    uint16_t* scales = reinterpret_cast<uint16_t*>(scratch + ceil_div(g.k_dim, 4));
    c.kernels->quantize_kv(x, g.k_dim, codes, scales);
    for (int d = 0; d < g.k_dim; ++d) block[d * kBlock + lane] = static_cast<uint8_t>(codes[d]);
    store_scales(scales, g.k_dim, block, lane);
  }
}

namespace {

// KV heads begin .. end of one row, with the query heads that share them.
void rope_heads(const RopeKvOp& op, const OpContext& c, int row, int begin, int end, float* scratch) {
  const KvPool& pool = (*c.kv)[op.shape.group];
  const KvShape& g = pool.shape();
  const int group = op.shape.heads / g.heads;
  float* first = c.work->buffer(Buffer::kQkv) + row * qkv_width(op.shape, g);
  float* q = first + begin * group * g.k_dim;
  float* k = first + (op.shape.heads + begin) * g.k_dim;
  const float* v = first + (op.shape.heads + g.heads) * g.k_dim + begin * g.v_dim;
  const int heads = (end - begin) * group;
  norm_heads(c, op.q_norm, op.norm_whole, q, heads, g.k_dim, scratch);
  norm_heads(c, op.k_norm, op.norm_whole, k, end - begin, g.k_dim, scratch);
  const int position = c.rows->position[row];
  if (op.rope != kNoId) {
    const RopeTable& t = c.model->rope(op.rope);
    const float* cosine = t.cosine + static_cast<size_t>(position) * t.half;
    const float* sine = t.sine + static_cast<size_t>(position) * t.half;
    for (int h = 0; h < heads; ++h) c.kernels->rope(q + h * g.k_dim, cosine, sine, t.half, t.interleaved);
    for (int h = 0; h < end - begin; ++h) {
      c.kernels->rope(k + h * g.k_dim, cosine, sine, t.half, t.interleaved);
    }
  }
  for (int i = 0; i < heads * g.k_dim; ++i) q[i] *= op.shape.scale;
  const int block = c.rows->block[op.shape.group][row];
  const int lane = position % kBlock;
  for (int h = 0; h < end - begin; ++h) {
    store_k(c, g, k + h * g.k_dim, pool.k(block, op.shape.layer, begin + h), lane, scratch);
    store_v(c, g, v + h * g.v_dim, pool.v(block, op.shape.layer, begin + h), lane, scratch);
  }
}

// Shared out by KV head, or by row where a norm takes all heads of a row together.
void rope_kv(const RopeKvOp& op, const OpContext& c, int worker) {
  const int heads = (*c.kv)[op.shape.group].shape().heads;
  const bool normed = op.q_norm.kind != NormKind::kNone || op.k_norm.kind != NormKind::kNone;
  const int step = op.norm_whole && normed ? heads : 1;
  claim_all(c, worker, 0, c.rows->count * (heads / step), [&](Range range) {
    for (int i = range.begin; i < range.end; ++i) {
      const int head = i * step % heads;
      rope_heads(op, c, i * step / heads, head, head + step, c.work->scratch(worker));
    }
    c.counters[worker].rows += static_cast<uint64_t>(range.end - range.begin);
  });
}

// Fills in the blocks of one segment that rows of the item see. `values`: room for V of a segment of latents.
void aim(const AttentionItem& item, const KvPool& pool, const Table& table, int layer, int segment,
         uint8_t* values, AttentionArgs* a) {
  const int per_segment = kSegment / kBlock;
  const int first = std::max(first_visible(pool.shape(), item.position) / kBlock, segment * per_segment);
  const int last = std::min(item.position / kBlock, segment * per_segment + per_segment - 1);
  a->blocks = last - first + 1;
  a->first_block = first - segment * per_segment;
  for (int b = first; b <= last; ++b) {
    a->k[b - first] = pool.k(table.blocks[b], layer, item.kv_head);
    if (pool.shape().latent) {
      uint8_t* v = values + static_cast<size_t>(b - first) * kv_block_bytes(a->v_type, a->v_dim);
      values_of_latent(pool.shape(), a->k[b - first], v);
      a->v[b - first] = v;
    } else {
      a->v[b - first] = pool.v(table.blocks[b], layer, item.kv_head);
    }
  }
  for (int r = 0; r < item.rows; ++r) {
    const int low = first_visible(pool.shape(), item.position + r) - segment * kSegment;
    a->low[r] = std::max(low, 0);
    a->high[r] = std::min(item.position + r + 1 - segment * kSegment, kSegment);
  }
}

void attention_items(const AttentionOp& op, const OpContext& c, int worker, Range range) {
  const KvPool& pool = (*c.kv)[op.shape.group];
  const KvShape& g = pool.shape();
  const AttentionPlan& plan = c.rows->attention[op.shape.group];
  AttentionArgs a;
  a.heads = op.shape.heads / g.heads;
  a.k_dim = g.k_dim;
  a.v_dim = g.v_dim;
  a.k_type = g.k_type;
  a.v_type = g.v_type;
  a.softcap = op.shape.softcap;
  a.q_stride = qkv_width(op.shape, g);
  const size_t head = static_cast<size_t>(g.v_dim) + 2;
  const size_t record = head * static_cast<size_t>(op.shape.heads);
  uint8_t* values = reinterpret_cast<uint8_t*>(c.work->scratch(worker) + attention_floats(g, op.shape.heads));
  uint64_t segments = 0;
  for (int i = range.begin; i < range.end; ++i) {
    const AttentionItem& item = plan.items[i];
    const Table& table = (*c.slices)[item.slice].tables[op.shape.group];
    a.rows = item.rows;
    a.q = c.work->buffer(Buffer::kQkv) + item.row * a.q_stride +
          static_cast<size_t>(item.kv_head) * a.heads * g.k_dim;
    float* result = c.work->partials() + item.record * record + item.kv_head * a.heads * head;
    const size_t stride = record * static_cast<size_t>(item.stride);
    for (int s = 0; s < item.segments; ++s, ++segments) {
      aim(item, pool, table, op.shape.layer, item.segment + s, values, &a);
      a.out = s == 0 ? result : c.work->scratch(worker);
      a.out_stride = s == 0 ? stride : a.heads * head;
      c.kernels->attention_segment(a);
      if (s == 0) continue;
      for (int r = 0; r < item.rows; ++r) {
        for (int h = 0; h < a.heads; ++h) {
          c.kernels->attention_merge(a.out + r * a.out_stride + h * head, g.v_dim,
                                     result + r * stride + h * head);
        }
      }
    }
  }
  c.counters[worker].segments += segments;
}

void attention(const AttentionOp& op, const OpContext& c, int worker) {
  const int items = static_cast<int>(c.rows->attention[op.shape.group].items.size());
  claim_all(c, worker, 0, items, [&](Range range) { attention_items(op, c, worker, range); });
}

// The partial results stay as they are: with `own`, every worker merges them for itself.
void merge(const MergeOp& op, bool own, const OpContext& c, int worker, Range range) {
  const KvShape& g = (*c.kv)[op.shape.group].shape();
  const AttentionPlan& plan = c.rows->attention[op.shape.group];
  const size_t head = static_cast<size_t>(g.v_dim) + 2;
  const size_t record = head * static_cast<size_t>(op.shape.heads);
  float* into = c.work->scratch(worker);
  float* sink = into + head;
  float* rows = own ? c.work->own(worker).attention : c.work->buffer(Buffer::kAttention);
  for (int r = range.begin; r < range.end; ++r) {
    const float* first = c.work->partials() + plan.record[r] * record;
    float* out = rows + static_cast<size_t>(r) * op.shape.heads * g.v_dim;
    for (int h = 0; h < op.shape.heads; ++h, first += head) {
      std::memcpy(into, first, head * sizeof(float));
      for (int p = 1; p < plan.parts[r]; ++p) c.kernels->attention_merge(first + p * record, g.v_dim, into);
      if (op.sinks != kNoId) {
        sink[0] = c.model->vector(op.sinks).data[h];
        sink[1] = 1.0f;
        std::fill(sink + 2, sink + head, 0.0f);
        c.kernels->attention_merge(sink, g.v_dim, into);
      }
      const float inverse = 1.0f / into[1];
      for (int d = 0; d < g.v_dim; ++d) out[h * g.v_dim + d] = into[2 + d] * inverse;
    }
  }
}

// Ops that work row by row: several of them in one stage share out rows, not outputs.
bool is_by_row(OpKind kind) {
  return kind == OpKind::kEmbed || kind == OpKind::kPrepare || kind == OpKind::kMerge ||
         kind == OpKind::kResidual || kind == OpKind::kRoute || kind == OpKind::kCombine ||
         kind == OpKind::kAdapter;
}

int rows_of(const Op& op, const OpContext& c) {
  if (op.kind != OpKind::kPrepare || op.prepare.rows == Rows::kStep) return c.rows->count;
  return op.prepare.rows == Rows::kHeads ? c.rows->count * op.prepare.heads : c.rows->routing.slots;
}

void run_rows(const Op& op, bool own, const OpContext& c, int worker, Range range) {
  switch (op.kind) {
    case OpKind::kEmbed: return embed(op.embed, c, worker, range);
    case OpKind::kPrepare: return prepare(op.prepare, own, c, worker, range);
    case OpKind::kMerge: return merge(op.merge, own, c, worker, range);
    case OpKind::kResidual: return residual(op.residual, c, worker, range);
    case OpKind::kRoute: return run_route(op.route, c, worker, range);
    case OpKind::kCombine: return run_combine(op.combine, c, worker, range);
    case OpKind::kAdapter: return run_adapter(op.adapter, activations_of(op, c, worker), c, range);
    default: return;
  }
}

// Ops from *first on whose rows every worker prepares for itself, as long as it may be of use.
const Op* run_own(const Op* first, const OpContext& c, int worker) {
  const Op* op = first;
  while (op->own) ++op;
  if (op == first || !c.pool->left(c.stage, tiles_of(op->linear, *c.model))) return op;
  const Range all{0, c.rows->count};
  for (; first != op; ++first) run_rows(*first, true, c, worker, all);
  c.counters[worker].rows += static_cast<uint64_t>(all.end);
  return op;
}

// Rows of a step that kernels read in groups are shared out in those.
template <class Do>
void claim_rows(const OpContext& c, int worker, int rows, Do&& work) {
  if (rows != c.rows->count || c.kernels->groups == 0) return claim_all(c, worker, 0, rows, work);
  const RowGroups groups(rows, c.kernels->rows);
  claim_all(c, worker, 0, groups.count, [&](Range range) {
    work(Range{groups.begin(range.begin), groups.begin(range.end)});
  });
}

}  // namespace

void run_stage(const Stage& stage, OpContext& c, int worker) {
  const Op* op = stage.first;
  if (c.alone) op = run_own(op, c, worker);
  if (is_by_row(op->kind)) {
    return claim_rows(c, worker, rows_of(*op, c), [&](Range range) {
      for (const Op* o = op; o != stage.last; ++o) run_rows(*o, false, c, worker, range);
      c.counters[worker].rows += static_cast<uint64_t>(range.end - range.begin);
    });
  }
  switch (op->kind) {
    case OpKind::kLinear:
      c.activations = activations_of(*op, c, worker);
      return run_linear(op->linear, c, worker);
    case OpKind::kRopeKv: return rope_kv(op->rope_kv, c, worker);
    case OpKind::kLatent: return run_latent(op->latent, c, worker);
    case OpKind::kAttention: return attention(op->attention, c, worker);
    case OpKind::kHeads:
      c.activations = activations_of(*op, c, worker);
      return run_heads(op->heads, c, worker);
    case OpKind::kGroup: return claim_all(c, worker, 0, 1, [&](Range) { run_group(op->route, c); });
    case OpKind::kExperts:
      c.activations = activations_of(*op, c, worker);
      return run_experts(op->experts, c, worker);
    default: return;
  }
}

}  // namespace spola
