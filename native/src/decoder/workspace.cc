#include "decoder/workspace.h"

#include <algorithm>

#include "base/align.h"
#include "kernels/row_groups.h"

namespace spola {
namespace {

void widen(std::array<int, static_cast<size_t>(Buffer::kCount)>& widths, Buffer b, int width) {
  if (b == Buffer::kNone) return;
  int& w = widths[static_cast<size_t>(b)];
  w = std::max(w, width);
}

}  // namespace

Workspace::Workspace(const WorkspaceShape& shape, const Program& program, const std::vector<KvShape>& kv,
                     bool huge_pages)
    : shape_(shape), own_(static_cast<size_t>(shape.workers)) {
  size_t total = 0;
  lay_out(program, kv, [&total](auto*& pointer, size_t count) {
    total = round_up(total, kCacheLine) + count * sizeof(*pointer);
  });
  memory_ = Mapping(total, huge_pages);
  size_t used = 0;
  lay_out(program, kv, [&](auto*& pointer, size_t count) {
    used = round_up(used, kCacheLine);
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(memory_.data() + used);
    used += count * sizeof(*pointer);
  });
}

template <class Take>
void Workspace::lay_out(const Program& program, const std::vector<KvShape>& kv, Take&& take) {
  widths_.fill(0);
  widen(widths_, Buffer::kResidual, shape_.hidden);
  widen(widths_, Buffer::kLogits, static_cast<int>(round_up(static_cast<size_t>(shape_.vocab), kTileRows)));
  int k = shape_.hidden;  // widest activations
  int record = 0;         // floats of the largest attention record
  int scratch = 0;
  int slots = 1;  // per row, at most
  size_t heads = 0, head_width = 0;  // of activations that are apart by head
  for (const Op& op : program.ops) {
    if (op.kind == OpKind::kRoute) {
      slots = std::max(slots, op.route.used);
      scratch = std::max(scratch, 2 * (op.route.experts + op.route.groups));
    }
    if (op.kind == OpKind::kHeads) widen(widths_, op.heads.output, op.heads.width);
    if (op.kind == OpKind::kCombine) widen(widths_, Buffer::kBranch, op.combine.width);
    if (op.kind == OpKind::kExperts) {
      widen(widths_, op.experts.output, op.experts.width);
      k = std::max(k, op.experts.width);
    }
    if (op.kind == OpKind::kLinear) widen(widths_, op.linear.output, op.linear.width);
    if (op.kind == OpKind::kAdapter) widen(widths_, Buffer::kDelta, op.adapter.parts * op.adapter.max_rank);
    if (op.kind == OpKind::kPrepare && op.prepare.rows == Rows::kHeads) {
      heads = std::max(heads, static_cast<size_t>(op.prepare.heads));
      head_width = std::max(head_width, static_cast<size_t>(op.prepare.width));
    } else if (op.kind == OpKind::kPrepare) {
      k = std::max(k, op.prepare.width);
    }
    if (op.kind == OpKind::kMerge) {
      const KvShape& g = kv[static_cast<size_t>(op.merge.shape.group)];
      widen(widths_, Buffer::kAttention, op.merge.shape.heads * g.v_dim);
      record = std::max(record, op.merge.shape.heads * (g.v_dim + 2));
      const size_t values = g.latent ? kSegment / kBlock * kv_block_bytes(g.k_type, g.v_dim) / sizeof(float) : 0;
      const size_t held = attention_floats(g, op.merge.shape.heads) + values;
      scratch = std::max({scratch, static_cast<int>(held), g.latent ? 2 * g.k_dim : 0});
    }
  }
  scratch = std::max({scratch, widths_[static_cast<size_t>(Buffer::kQkv)], shape_.hidden});
  scratch_floats_ = round_up(static_cast<size_t>(scratch), kCacheLine);

  const size_t rows = static_cast<size_t>(shape_.rows);
  for (size_t b = 0; b < buffers_.size(); ++b) {
    const Buffer buffer = static_cast<Buffer>(b);
    size_t n = rows;
    if (buffer == Buffer::kLogits) n = static_cast<size_t>(shape_.head_rows);
    if (buffer == Buffer::kHidden || buffer == Buffer::kExpert) n = rows * slots;
    take(buffers_[b], n * static_cast<size_t>(widths_[b]));
  }
  const size_t width = static_cast<size_t>(k);
  take(head_input_, static_cast<size_t>(shape_.head_rows) * static_cast<size_t>(shape_.hidden));
  take(partials_, (rows + kSpareRecords) * static_cast<size_t>(record));
  take(scratch_, scratch_floats_ * static_cast<size_t>(shape_.workers));
  lay_out_rows(shared_, {rows * slots, width}, {rows * heads, head_width}, take);
  take(shared_.groups, grouped_bytes(rows, width));
  for (ActivationRows& own : own_) {
    lay_out_rows(own, {kOwnRows, width}, {}, take);
    take(own.attention, kOwnRows * static_cast<size_t>(widths_[static_cast<size_t>(Buffer::kAttention)]));
  }
}

template <class Take>
void Workspace::lay_out_rows(ActivationRows& rows, const Extent& a, const Extent& b, Take&& take) {
  const auto most = [&](size_t per) {  // values of which `per` make one entry
    return std::max(a.count * ceil_div(a.width, per), b.count * ceil_div(b.width, per));
  };
  take(rows.q8, most(1));
  take(rows.d8, most(32));
  take(rows.s8, most(32));
  take(rows.h8, most(16));
  take(rows.q16, most(1));
  take(rows.d16, std::max(a.count, b.count));
  take(rows.f32, most(1));
}

}  // namespace spola
