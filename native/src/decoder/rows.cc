// The rows of a step: where they stand, what ops need to know of them, and which are wanted in the end.
//
// Of a prompt's rows most are there for their K and V alone. Once the last layer has stored these, such rows
// leave: the rest of that layer is computed for the others. Rows do not depend on each other, so nobody's
// bits change.

#include <cstring>

#include "decoder/decoder.h"

namespace spola {
namespace {

void clear(StepRows& rows) {
  rows.of_step.clear();
  rows.token.clear();
  rows.position.clear();
  for (auto& blocks : rows.block) blocks.clear();
  rows.adapter.clear();
  rows.adapted = false;
}

}  // namespace

// How many of the slice's rows are wanted: the last ones.
int Decoder::wanted_of(const Run& run) {
  const SliceIn& slice = *run.in;
  if (run.request->want == Want::kEmbedMean) return slice.n;
  if (run.request->want == Want::kEmbedLast) return slice.start + slice.n >= run.request->total;
  return slice.n_head;
}

Decoder::Ends Decoder::ends_of(const std::vector<Run>& runs) {
  Ends ends;
  int wanted = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    const SliceIn& slice = *runs[i].in;
    const Want want = runs[i].request->want;
    const bool embeds = want == Want::kEmbedLast || want == Want::kEmbedMean;
    const int first = slice.n - wanted_of(runs[i]);
    for (int j = first; j < slice.n; ++j, ++wanted) {
      (embeds ? ends.vectors : ends.heads)
          .push_back({static_cast<int>(i), runs[i].row + j, wanted, embeds ? j : j - first});
    }
  }
  return ends;
}

const Adapter* Decoder::adapter_of(const Request& request) const {
  return request.adapter < 0 ? nullptr : adapters_[request.adapter].get();
}

void Decoder::add_rows(StepRows& rows, const Adapter* adapter, int count) const {
  rows.adapter.insert(rows.adapter.end(), static_cast<size_t>(count), adapter);
  rows.adapted |= adapter != nullptr;
}

void Decoder::plan_rows(StepRows& rows, const std::vector<RowSpan>& spans) const {
  rows.count = static_cast<int>(rows.adapter.size());
  if (rows.count == 0) return;
  for (size_t g = 0; g < kv_.size(); ++g) {
    plan_attention(spans, kv_[g].shape(), pool_->size(), Workspace::kSpareRecords, &rows.attention[g]);
  }
}

void Decoder::lay_out_rows(const std::vector<SliceIn>& slices) {
  clear(rows_);
  std::vector<RowSpan> spans;
  for (const SliceIn& slice : slices) {
    add_rows(rows_, adapter_of(requests_.find(slice.id)->second), slice.n);
    spans.push_back({slice.start, slice.n});
    for (int i = 0; i < slice.n; ++i) {
      const int32_t id = slice.ids[i];
      rows_.token.push_back(id < 0 || id >= config_.vocab ? 0 : id);  // such a slice has an error already
      rows_.position.push_back(slice.start + i);
      for (size_t g = 0; g < kv_.size(); ++g) {
        rows_.block[g].push_back(slice.tables[g].blocks[(slice.start + i) / kBlock]);
      }
    }
  }
  plan_rows(rows_, spans);
  for (int r = 0; r < rows_.count; ++r) bad_[r].store(false, std::memory_order_relaxed);
}

void Decoder::lay_out_wanted(const std::vector<Run>& runs) {
  clear(wanted_);
  std::vector<RowSpan> spans;
  for (const Run& run : runs) {
    const int n = wanted_of(run), first = run.in->n - n;
    add_rows(wanted_, adapter_of(*run.request), n);
    spans.push_back({run.in->start + first, n});
    for (int j = first; j < run.in->n; ++j) wanted_.of_step.push_back(run.row + j);
  }
  plan_rows(wanted_, spans);
}

void keep_rows(const Op& op, const OpContext& c, const StepRows& wanted) {
  const AttentionShape& shape = op.kind == OpKind::kLatent ? op.latent.shape : op.rope_kv.shape;
  const size_t hidden = static_cast<size_t>(c.work->width(Buffer::kResidual));
  const size_t queries = qkv_width(shape, (*c.kv)[shape.group].shape());
  float* x = c.work->buffer(Buffer::kResidual);
  float* q = c.work->buffer(Buffer::kQkv);
  for (size_t to = 0; to < wanted.of_step.size(); ++to) {  // ascending: no row is overwritten before it is read
    const size_t from = static_cast<size_t>(wanted.of_step[to]);
    if (from == to) continue;
    std::memcpy(x + to * hidden, x + from * hidden, hidden * sizeof(float));
    std::memcpy(q + to * queries, q + from * queries, queries * sizeof(float));
  }
}

}  // namespace spola
