// Prepare ops: rows normed and quantized for the linear ops that read them, and where they lie.

#include <cstring>

#include "decoder/ops.h"
#include "kernels/row_groups.h"

namespace spola {
namespace {

// Where a prepare op takes its rows from and puts them.
struct Ends {
  const float* input;
  const ActivationRows& to;
};

Ends ends_of(const PrepareOp& op, bool own, const OpContext& c, int worker) {
  const ActivationRows& to = own ? c.work->own(worker) : c.work->shared();
  return {own && op.input == Buffer::kAttention ? to.attention : c.work->buffer(op.input), to};
}

RowsIn rows_in(const PrepareOp& op, const OpContext& c, const float* input) {
  const bool slots = op.rows == Rows::kGather || op.rows == Rows::kSlots;
  return {input,
          op.width,
          static_cast<size_t>(op.stride),
          slots ? c.rows->routing.row_of_slot.data() : nullptr,
          op.rows == Rows::kGather,
          op.rows == Rows::kHeads ? c.rows->count : 0,
          op.step};
}

// Whether A8 rows also go into groups: where the kernels read those, and do not take all rows in one call.
bool in_groups(const PrepareOp& op, const OpContext& c) {
  return op.rows == Rows::kStep && (op.formats & (1u << static_cast<int>(ActFormat::kA8))) != 0 &&
         c.kernels->groups > 0 && c.rows->count > c.kernels->rows;
}

}  // namespace

void apply_norm(const Kernels& kernels, const Model& model, const NormPart& norm, const float* x, int n,
                float* y, float* scratch) {
  float* out = y == x ? scratch : y;
  if (norm.kind == NormKind::kLayer) {
    kernels.layer_norm(x, model.vector(norm.weight).data, model.vector(norm.bias).data, norm.eps, n, out);
  } else {
    kernels.rms_norm(x, model.vector(norm.weight).data, norm.eps, n, out);
  }
  if (out != y) std::memcpy(y, out, static_cast<size_t>(n) * sizeof(float));
}

namespace {

// Row r normed, where it lies then.
const float* normed(const OpContext& c, const ActivationRows& to, const NormPart& norm, const RowsIn& input, int r) {
  const float* x = input.at(r);
  float* own = to.f32 + static_cast<size_t>(r) * input.width;
  if (norm.kind != NormKind::kNone) {
    apply_norm(*c.kernels, *c.model, norm, x, input.width, own, nullptr);
    return own;
  }
  if (!input.moved()) return x;
  std::memcpy(own, x, static_cast<size_t>(input.width) * sizeof(float));
  return own;
}

// Rows of A8 into their groups and nowhere else: whole groups.
void prepare_groups(const OpContext& c, const ActivationRows& to, const NormPart& norm, const RowsIn& input,
                    Range range) {
  const RowGroups groups(c.rows->count, c.kernels->rows);
  const size_t stride = static_cast<size_t>(input.width);
  for (int g = groups.of(range.begin), row = range.begin; row < range.end; row = groups.begin(++g)) {
    const int end = groups.begin(g + 1);
    const float* x = normed(c, to, norm, input, row);
    for (int r = row + 1; r < end; ++r) normed(c, to, norm, input, r);
    uint32_t bad = 0;
    for (int b = 0; b < input.width / kBlock; ++b, x += kBlock) {
      uint8_t* record = to.groups + record_at(row, end - row, input.width, b);
      bad |= c.kernels->quantize_group(x, x + kBlock / 2, stride, end - row, record);
    }
    c.rows->spoil(row, bad);
  }
}

}  // namespace

void prepare_rows(const OpContext& c, const ActivationRows& to, const NormPart& norm, const RowsIn& input,
                  uint32_t formats, int begin, int end) {
  const int width = input.width;
  for (int r = begin; r < end; ++r) {
    const size_t at = static_cast<size_t>(r) * width;
    const float* x = normed(c, to, norm, input, r);
    bool finite = true;
    if (formats & (1u << static_cast<int>(ActFormat::kA8))) {
      const size_t blocks = static_cast<size_t>(r) * (width / 32);
      finite &=
          c.kernels->quantize_a8(x, width, to.q8 + at, to.d8 + blocks, to.s8 + blocks, to.h8 + 2 * blocks);
    }
    if (formats & (1u << static_cast<int>(ActFormat::kA16))) {
      finite &= c.kernels->quantize_a16(x, width, to.q16 + at, to.d16 + r);
    }
    if (!finite) c.rows->spoil(input.row(r));
  }
}

Activations prepared(const ActivationRows& rows, const NormPart& norm, const RowsIn& input) {
  Activations a;
  a.k = input.width;
  a.f32 = norm.kind == NormKind::kNone && !input.moved() ? input.data : rows.f32;
  a.q8 = rows.q8;
  a.d8 = rows.d8;
  a.s8 = rows.s8;
  a.h8 = rows.h8;
  a.q16 = rows.q16;
  a.d16 = rows.d16;
  return a;
}

void prepare(const PrepareOp& op, bool own, const OpContext& c, int worker, Range range) {
  if (leaves_groups(op.left, c)) return;
  const Ends ends = ends_of(op, own, c, worker);
  const RowsIn input = rows_in(op, c, ends.input);
  if (op.groups_only && in_groups(op, c)) return prepare_groups(c, ends.to, op.norm, input, range);
  prepare_rows(c, ends.to, op.norm, input, op.formats, range.begin, range.end);
  if (!in_groups(op, c)) return;
  const Activations a = prepared(ends.to, op.norm, input);
  for (int r = range.begin; r < range.end; ++r) {
    put_into_group(a, r, c.rows->count, c.kernels->rows, ends.to.groups);
  }
}

Activations activations_of(const Op& consumer, const OpContext& c, int worker) {
  const Op* source = &consumer - 1;
  if (source->kind == OpKind::kAdapter) --source;
  if (leaves_groups(source->prepare.left, c)) {
    Activations a;
    a.k = source->prepare.width;
    a.groups = c.work->groups(source->prepare.input);
    a.grouped = c.rows->count;
    return a;
  }
  const bool own = c.alone && source->own;
  const Ends ends = ends_of(source->prepare, own, c, worker);
  Activations a = prepared(ends.to, source->prepare.norm, rows_in(source->prepare, c, ends.input));
  if (in_groups(source->prepare, c)) {
    a.groups = ends.to.groups;
    a.grouped = c.rows->count;
  }
  return a;
}

}  // namespace spola
