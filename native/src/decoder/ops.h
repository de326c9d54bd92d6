// The interpreter of op records. Each function computes one worker's share of one op; the barriers between
// ops are the caller's.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "decoder/attention_plan.h"
#include "decoder/kv_pool.h"
#include "decoder/model.h"
#include "decoder/program.h"
#include "decoder/workspace.h"
#include "kernels/table.h"

namespace spola {

// The rows of a step.
struct StepRows {
  int count = 0;
  std::vector<int32_t> token;
  std::vector<int32_t> position;
  std::vector<std::vector<int32_t>> block;   // [group][row]: the block the row's K and V go to
  std::vector<AttentionPlan> attention;      // per group
  std::unique_ptr<std::atomic<bool>[]> bad;  // a value of the row was not finite
};

// Everything ops read and write.
struct OpContext {
  const Kernels* kernels;
  const Model* model;
  const std::vector<KvPool>* kv;
  Workspace* work;
  ThreadPool* pool;
  const std::vector<SliceIn>* slices;
  StepRows* rows;
  Activations activations;  // as the last prepare op left them
};

void run_op(const Op& op, OpContext& c, int worker);
void run_linear(const LinearOp& op, const OpContext& c, int worker);

// y = norm(x), n values. y may be x only when `scratch` (n floats) is given.
void apply_norm(const Kernels& kernels, const Model& model, const NormPart& norm, const float* x, int n,
                float* y, float* scratch);

// The pieces that the head shares with the layers: activations of `count` rows of `input` (row i stands for
// row of_row[i] of the step when given), and the logits of `count` prepared rows.
void prepare_rows(const OpContext& c, const NormPart& norm, const float* input, int width, uint32_t formats,
                  int begin, int end, const int32_t* of_row);
void head_logits(const HeadOp& head, const OpContext& c, int count, const int32_t* of_row, int worker);

// What the next linear ops read, after prepare ops of this input and width.
Activations prepared(const Workspace& work, const NormPart& norm, const float* input, int width);

}  // namespace spola
