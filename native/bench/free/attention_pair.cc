#include "free/attention_pair.h"

#include <algorithm>
#include <cstring>

#include "base/half.h"
#include "check.h"

namespace spola::free_order {
namespace {

constexpr int kStages = 2;  // of a layer

Op op_of(OpKind kind) {
  Op op;
  op.kind = kind;
  return op;
}

}  // namespace

AttentionPair::AttentionPair(const spola::Kernels& kernels, const Kernels& free, ThreadPool& pool,
                             const AttentionCase& of)
    : case_(of),
      shape_{of.layers, of.kv_heads, of.dim, of.dim, 0, KvType::kF16, KvType::kF16, false},
      kernels_(kernels),
      free_(free),
      pool_(pool),
      counters_(static_cast<size_t>(pool.size())),
      model_(size_t{1} << 20, false, false, &kernels),
      head_floats_(static_cast<size_t>(of.dim) + 2),
      record_floats_(head_floats_ * static_cast<size_t>(of.heads / of.kv_heads)) {
  int blocks = 0;
  std::vector<RowSpan> spans;
  for (const auto& [start, n] : of.slices) {
    spans.push_back({start, n});
    SliceIn slice;
    slice.start = start;
    slice.n = n;
    std::vector<int32_t> table;
    for (int b = 0; b * kBlock < start + n; ++b) table.push_back(blocks++);
    std::reverse(table.begin(), table.end());  // blocks do not lie in order
    tables_.push_back(std::move(table));
    slices_.push_back(std::move(slice));
    rows_.count += n;
  }
  for (size_t s = 0; s < slices_.size(); ++s) {
    slices_[s].tables = {{tables_[s].data(), static_cast<int>(tables_[s].size())}};
  }
  kv_.emplace_back(shape_, blocks, true);
  const int width = (of.heads + 2 * of.kv_heads) * of.dim;
  for (int layer = 0; layer < of.layers; ++layer) {
    const AttentionShape shape{0, layer, of.heads, 1.0f, 0.0f};
    program_.ops.push_back(op_of(OpKind::kAttention));
    program_.ops.back().attention = {shape};
    program_.ops.push_back(op_of(OpKind::kMerge));
    program_.ops.back().merge = {shape, kNoId};
  }
  program_.ops.push_back(op_of(OpKind::kLinear));  // only to say how wide the qkv buffer is
  program_.ops.back().linear = LinearOp{};
  program_.ops.back().linear.output = Buffer::kQkv;
  program_.ops.back().linear.width = width;
  for (int i = 0; i < kStages * of.layers; ++i) stages_.push_back({&program_.ops[i], &program_.ops[i] + 1});
  const WorkspaceShape room{rows_.count, 1, pool.size(), of.heads * of.dim, kTileRows};
  work_ = std::make_unique<Workspace>(room, program_, std::vector<KvShape>{shape_}, true);
  rows_.attention.resize(1);
  plan_attention(spans, shape_, pool.size(), Workspace::kSpareRecords, &rows_.attention[0]);
  of.slices[0].second == 1 ? plan_decode() : plan_prefill();
  records_.resize(record_floats_ * pieces_.size() * (of.slices[0].second == 1 ? 1 : kQueryRows));
  result_.resize(static_cast<size_t>(rows_.count) * static_cast<size_t>(of.heads * of.dim));
  fill();
}

void AttentionPair::fill() {
  check::Random random(11);
  uint16_t* half = reinterpret_cast<uint16_t*>(kv_[0].k(0, 0, 0));
  for (size_t i = 0; i < kv_[0].bytes() / 2; ++i) half[i] = f32_to_f16_bits(random.symmetric(1.0f));
  float* q = work_->buffer(Buffer::kQkv);
  const size_t width = static_cast<size_t>(work_->width(Buffer::kQkv));
  for (size_t i = 0; i < width * static_cast<size_t>(rows_.count); ++i) q[i] = random.symmetric(0.5f);
}

// All blocks of all rows and heads in one line, cut into as many equal parts as there are workers.
void AttentionPair::plan_decode() {
  int64_t total = 0, done = 0;
  for (const auto& table : tables_) total += static_cast<int64_t>(table.size()) * case_.kv_heads;
  int worker = 0;
  share_ = {0};
  for (int s = 0; s < static_cast<int>(slices_.size()); ++s) {
    const int blocks = static_cast<int>(tables_[s].size());
    for (int head = 0; head < case_.kv_heads; ++head) {
      const int first = static_cast<int>(pieces_.size());
      for (int begin = 0; begin < blocks;) {
        const int64_t limit = total * (worker + 1) / pool_.size();
        const int end = static_cast<int>(std::min<int64_t>(blocks, begin + limit - done));
        if (end > begin) {
          const bool whole = begin == 0 && end == blocks;
          const int record = static_cast<int>(pieces_.size());
          pieces_.push_back({s, s, slices_[s].start, 1, head, begin, end, record, whole});
        }
        done += end - begin;
        begin = end;
        if (done == limit && worker + 1 < pool_.size()) {
          ++worker;
          share_.push_back(static_cast<int>(pieces_.size()));
        }
      }
      const int last = static_cast<int>(pieces_.size());
      if (last - first > 1) splits_.push_back({s, head, first, last});
    }
  }
  share_.push_back(static_cast<int>(pieces_.size()));
}

void AttentionPair::plan_prefill() {
  int row = 0;
  for (int s = 0; s < static_cast<int>(slices_.size()); ++s) {
    for (int i = 0; i < slices_[s].n; i += kQueryRows) {
      const int rows = std::min(kQueryRows, slices_[s].n - i), position = slices_[s].start + i;
      for (int head = 0; head < case_.kv_heads; ++head) {
        const int record = static_cast<int>(pieces_.size()) * kQueryRows;
        pieces_.push_back(
            {s, row + i, position, rows, head, 0, (position + rows - 1) / kBlock + 1, record, true});
      }
    }
    row += slices_[s].n;
  }
}

void AttentionPair::finish_row(const float* records, int row, int head) {
  const int group = case_.heads / case_.kv_heads;
  float* out = work_->buffer(Buffer::kAttention) +
               (static_cast<size_t>(row) * case_.heads + static_cast<size_t>(head) * group) * case_.dim;
  for (int g = 0; g < group; ++g, records += head_floats_) {
    const float inverse = 1.0f / records[1];
    for (int d = 0; d < case_.dim; ++d) *out++ = records[2 + d] * inverse;
  }
}

void AttentionPair::run_piece(const Piece& piece, int layer, int) {
  constexpr int kMost = 4096;  // blocks
  const uint8_t *k[kMost], *v[kMost];
  int high[kQueryRows];
  for (int b = piece.begin; b < piece.end; ++b) {
    k[b - piece.begin] = kv_[0].k(tables_[piece.slice][b], layer, piece.head);
    v[b - piece.begin] = kv_[0].v(tables_[piece.slice][b], layer, piece.head);
  }
  const int begin = piece.begin * kBlock, end = piece.end * kBlock;
  for (int r = 0; r < piece.rows; ++r) high[r] = std::min(piece.position + r + 1, end) - begin;
  Attention a;
  a.q_stride = static_cast<size_t>(work_->width(Buffer::kQkv));
  a.heads = case_.heads / case_.kv_heads;
  a.q = work_->buffer(Buffer::kQkv) + static_cast<size_t>(piece.row) * a.q_stride +
        static_cast<size_t>(piece.head * a.heads * case_.dim);
  a.rows = piece.rows;
  a.k_dim = a.v_dim = case_.dim;
  a.blocks = piece.end - piece.begin;
  a.k = k;
  a.v = v;
  a.high = high;
  a.out = &records_[static_cast<size_t>(piece.record) * record_floats_];
  a.out_stride = record_floats_;
  free_.attention(a);
  for (int r = 0; r < piece.rows && piece.whole; ++r) {
    finish_row(a.out + static_cast<size_t>(r) * record_floats_, piece.row + r, piece.head);
  }
}

void AttentionPair::merge_split(const Split& split) {
  float* into = &records_[static_cast<size_t>(split.first) * record_floats_];
  for (int p = split.first + 1; p < split.last; ++p) {
    const float* part = &records_[static_cast<size_t>(p) * record_floats_];
    for (size_t at = 0; at < record_floats_; at += head_floats_) {
      kernels_.attention_merge(part + at, case_.dim, into + at);
    }
  }
  finish_row(into, split.row, split.head);
}

void AttentionPair::ours() {
  pool_.run(kStages * case_.layers, [&](int worker, int stage) {
    OpContext c{&kernels_, &model_, &kv_,  work_.get(), &pool_, counters_.data(), &slices_,
                &rows_,    false,   stage, nullptr,     {}};
    run_stage(stages_[stage], c, worker);
  });
  std::memcpy(result_.data(), work_->buffer(Buffer::kAttention), result_.size() * sizeof(float));
}

void AttentionPair::free() {
  pool_.run(kStages * case_.layers, [&](int worker, int stage) {
    const int layer = stage / kStages;
    const bool decode = !share_.empty();
    const int count = stage % kStages == 1 ? static_cast<int>(splits_.size())
                      : decode             ? pool_.size()
                                           : static_cast<int>(pieces_.size());
    for (Range range; range = pool_.claim(worker, stage, 0, count), range.begin < range.end;) {
      for (int i = range.begin; i < range.end; ++i) {
        if (stage % kStages == 1) {
          merge_split(splits_[i]);
        } else if (decode) {
          for (int p = share_[i]; p < share_[i + 1]; ++p) run_piece(pieces_[p], layer, worker);
        } else {
          run_piece(pieces_[i], layer, worker);
        }
      }
    }
  });
  std::memcpy(result_.data(), work_->buffer(Buffer::kAttention), result_.size() * sizeof(float));
}

}  // namespace spola::free_order
