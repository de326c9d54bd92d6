// The interpreter of op records. Each function does what one worker can claim of one op; stages are the
// caller's.
#pragma once

#include <atomic>
#include <vector>

#include "base/thread_pool.h"
#include "decoder/adapter.h"
#include "decoder/attention_plan.h"
#include "decoder/kv_pool.h"
#include "decoder/model.h"
#include "decoder/program.h"
#include "decoder/workspace.h"
#include "kernels/table.h"

namespace spola {

// The experts of each row of a step, in the layer that is being computed; see experts.cc.
struct Routing {
  int used = 0;                      // experts of a row
  int slots = 0;                     // rows * used
  std::vector<int32_t> expert;       // [row][used], ascending
  std::vector<float> weight;         // [row][used]
  std::vector<int32_t> slot;         // [row][used]: where its products are
  std::vector<int32_t> row_of_slot;  // [slot]
  std::vector<int32_t> begin;        // slots of expert e: begin[e] .. begin[e + 1]
  std::vector<int32_t> next;
};

// The rows that ops work on: those of a step or, after the last layer has stored its K and V, those of them
// that are wanted in the end, which then need no token, position and block any more.
struct StepRows {
  int count = 0;
  std::vector<int32_t> of_step;  // ascending: which rows of the step these are; empty: all of them
  std::vector<int32_t> token;
  std::vector<int32_t> position;
  std::vector<std::vector<int32_t>> block;  // [group][row]: the block the row's K and V go to
  std::vector<AttentionPlan> attention;     // per group
  std::atomic<bool>* bad = nullptr;         // [row of the step]: a value of the row was not finite
  std::vector<const Adapter*> adapter;      // of the row's request, or null
  bool adapted = false;                     // a row has one
  Routing routing;

  void spoil(int row) const {
    bad[of_step.empty() ? row : of_step[row]].store(true, std::memory_order_relaxed);
  }
  // Those of row, row + 1 and so on whose bit is set.
  void spoil(int row, uint32_t bits) const {
    for (; bits != 0; ++row, bits >>= 1) {
      if (bits & 1u) spoil(row);
    }
  }
};

// What one worker has computed for a decoder. Only that worker writes.
struct alignas(kCacheLine) WorkerCounters {
  uint64_t tiles = 0;     // 16 output rows of a linear layer, for all rows of a step
  uint64_t segments = 0;  // attention segments of a row group and KV head
  uint64_t rows = 0;      // rows normed, quantized, rotated, merged
  uint64_t sampled = 0;   // head rows sampled or scored
};

// Everything ops read and write.
struct OpContext {
  const Kernels* kernels;
  const Model* model;
  const std::vector<KvPool>* kv;
  Workspace* work;
  ThreadPool* pool;
  WorkerCounters* counters;  // of each worker
  const std::vector<SliceIn>* slices;
  StepRows* rows;
  bool alone;               // every worker prepares all rows for itself, where ops say so
  int stage;                // of the call
  const uint8_t* next;      // first weights of the linear op after the one that runs
  Activations activations;  // what the linear op that runs reads
};

// Calls do(range) for items of `count` until none is left.
template <class Do>
void claim_all(const OpContext& c, int worker, int part, int count, Do&& work) {
  for (;;) {
    const Range range = c.pool->claim(worker, c.stage, part, count);
    if (range.begin == range.end) return;
    work(range);
  }
}

// Floats of one row of the qkv buffer.
size_t qkv_width(const AttentionShape& shape, const KvShape& g);

void run_stage(const Stage& stage, OpContext& c, int worker);
// Rows of the residual stream and of the queries of `op`, the last that stored K and V, go to where `wanted` has
// them. For one worker.
void keep_rows(const Op& op, const OpContext& c, const StepRows& wanted);
void run_linear(const LinearOp& op, const OpContext& c, int worker);
void run_route(const RouteOp& op, const OpContext& c, int worker, Range rows);
void run_group(const RouteOp& op, const OpContext& c);
void run_experts(const ExpertsOp& op, const OpContext& c, int worker);
void run_heads(const HeadsOp& op, const OpContext& c, int worker);
void run_latent(const LatentOp& op, const OpContext& c, int worker);
void run_combine(const CombineOp& op, const OpContext& c, int worker, Range rows);

// Whether a step's outputs of a linear op that `may` do so lie in its buffer as groups of A8 rows (row_groups.h), so
// that they never go to memory as f32 rows and back. Few rows are read row by row, those with adapters as f32 too.
bool leaves_groups(bool may, const OpContext& c);

int tiles_of(const LinearOp& op, const Model& model);

// Tile `tile` of a linear op for the activation rows begin .. end, which are also the output's. `next`: the
// weights that will be read after it, or null.
void linear_tile(const LinearOp& op, const OpContext& c, int tile, int begin, int end,
                 const uint8_t* next = nullptr);

// The first weights of this worker's range of `op`, or of the head; null when it has none.
const uint8_t* first_tile(const LinearOp& op, const OpContext& c, int worker);
const uint8_t* first_tile(const HeadOp& head, const OpContext& c, int worker);

// y = norm(x), n values. y may be x only when `scratch` (n floats) is given.
void apply_norm(const Kernels& kernels, const Model& model, const NormPart& norm, const float* x, int n,
                float* y, float* scratch);

// Puts one row of K to its lane of a block; `scratch` has room for it.
void store_k(const OpContext& c, const KvShape& g, const float* x, uint8_t* block, int lane, float* scratch);

// The values of a block of latents as a block of V.
void values_of_latent(const KvShape& g, const uint8_t* k, uint8_t* v);

// Where the input of an activation row lies: row i at `data` + from(i) * stride, or with `heads` part i / count
// of row i % count, parts `step` floats apart. `of_row`: the row of the step that it stands for, where that is
// another; with `gather` it is read from there.
struct RowsIn {
  const float* data;
  int width;
  size_t stride;
  const int32_t* of_row = nullptr;
  bool gather = false;
  int count = 0;  // of rows, where heads are apart
  int step = 0;

  int row(int i) const { return of_row ? of_row[i] : count ? i % count : i; }
  const float* at(int i) const {
    if (count) return data + static_cast<size_t>(i % count) * stride + static_cast<size_t>(i / count) * step;
    return data + static_cast<size_t>(gather ? of_row[i] : i) * stride;
  }
  // Whether f32 activations are not the input itself, row by row.
  bool moved() const { return gather || count || stride != static_cast<size_t>(width); }
};

// The pieces that the head shares with the layers: activations begin .. end of `input` into the same rows of
// `to`, and the logits of `count` prepared rows.
void prepare_rows(const OpContext& c, const ActivationRows& to, const NormPart& norm, const RowsIn& input,
                  uint32_t formats, int begin, int end);
void head_logits(const HeadOp& head, const OpContext& c, int count, const int32_t* of_row, int worker);

void prepare(const PrepareOp& op, bool own, const OpContext& c, int worker, Range rows);

// What an op reads: what the prepare op before it has left.
Activations activations_of(const Op& consumer, const OpContext& c, int worker);

// What the next linear ops read, after prepare ops of this input and width.
Activations prepared(const ActivationRows& rows, const NormPart& norm, const RowsIn& input);

}  // namespace spola
