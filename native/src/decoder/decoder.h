// A decoder: weights, KV cache, op program, requests, and the one call that runs a step.
//
// Built by calls in this order: the constructor, add_* for tensors and tables, append for the program in
// execution order, finish. Then execute, from one thread at a time. Nothing of Python here.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/thread_pool.h"
#include "decoder/kv_pool.h"
#include "decoder/model.h"
#include "decoder/op_clock.h"
#include "decoder/ops.h"
#include "decoder/program.h"
#include "decoder/request.h"
#include "decoder/sampler.h"
#include "decoder/step.h"
#include "decoder/workspace.h"

namespace spola {

struct DecoderConfig {
  int vocab = 0;
  int hidden = 0;
  int max_step_tokens = 0;
  int max_seqs = 0;
  int max_model_len = 0;
  int threads = 1;
  bool precise = false;
  bool huge_pages = true;
  size_t weight_limit = 0;  // bytes of address space for weights
  std::string isa;          // "" for the best
};

constexpr int kHeadRows = 64;  // rows whose logits are held at a time, at most

struct MemoryUse {
  size_t weights = 0;
  size_t kv = 0;
  size_t workspace = 0;
};

class Decoder {
 public:
  // Throws std::invalid_argument naming the field or the instruction set.
  explicit Decoder(const DecoderConfig& config);

  const DecoderConfig& config() const { return config_; }
  const Kernels& kernels() const { return *kernels_; }
  ThreadPool& pool() { return *pool_; }
  const WorkerCounters& counters(int worker) const { return counters_[worker]; }
  Model& model() { return model_; }

  int add_kv_group(const KvShape& shape, int blocks);
  void append(const Op& op);
  void set_head(const HeadOp& head) { program_.head = head; }
  // Formats of activations that the matrices of `indices` need: bits by ActFormat.
  uint32_t formats_of(const std::vector<int>& indices) const;
  // A matrix that adapters may change; returns the number of its site.
  int add_site(int rows, int cols);
  // Puts an empty adapter into a free place and returns its number; parts are added one by one. Between steps
  // only, as drop_adapter, which requests in flight must not have. Throw std::invalid_argument.
  int add_adapter();
  void add_adapter_part(int adapter, int site, int rank, float scale, const float* a, size_t a_count, const float* b,
                        size_t b_count);
  void drop_adapter(int adapter);
  // Checks the program against tensors and groups, and takes the working memory.
  void finish();

  // Runs one step. Throws std::invalid_argument, having changed nothing, on a step that breaks the contract.
  std::vector<SliceOut> execute(const StepIn& step);

  // Keeps the distributions that drafts were drawn from, [drafts][vocab] weights, for the step that names
  // `handle` in a slice. Throws std::invalid_argument, naming the row, for what is no distribution.
  void hold(int64_t handle, const float* weights, size_t count);
  // Takes over what `source`, another decoder, holds under `handle`: of the ids that both have. Throws
  // std::invalid_argument when it holds nothing, or nothing of these ids.
  void adopt(int64_t handle, Decoder& source);
  // Forgets what is held under `handle`, if anything is.
  void drop(int64_t handle) { held_.erase(handle); }

  // From now on keeps the seconds of each op, from zero; or, switched off, drops them. Ops of one stage count
  // as the last of them.
  void time_ops(bool on);
  const OpSeconds& op_seconds() const { return op_seconds_; }
  const Program& program() const { return program_; }

  MemoryUse memory() const;
  // Fills a block with NaN, so that a test sees any read of it.
  void poison(int group, int block);

 private:
  // One slice while its step runs.
  struct Run {
    const SliceIn* in = nullptr;
    Request* request = nullptr;
    SliceOut out;
    int row = 0;           // its first row in the step
    bool stopped = false;  // a draft was refused: later head rows mean nothing
    const float* proposals = nullptr;
    std::vector<float>* kept = nullptr;  // where the distribution of a draft that it draws goes
  };

  // A row whose logits or final hidden state is wanted.
  struct HeadRow {
    int run;
    int row;     // in the step
    int wanted;  // among the rows that are wanted
    int index;   // in the slice's head rows; for vectors, in the slice
  };
  using HeadRows = std::vector<HeadRow>;
  struct Ends {
    HeadRows heads, vectors;
  };

  // Head rows whose logits are held at a time.
  struct HeadChunk {
    const HeadRow* rows;
    int count;
    int32_t of_row[kHeadRows];  // which of the wanted rows they are
  };
  static constexpr int kHeadStages = 3, kVectorStages = 2;  // of a chunk

  void check(const StepIn& step) const;
  void check_slice(const SliceIn& slice) const;
  void check_proposals(const SliceIn& slice) const;
  void check_program() const;
  void check_op(const Op& op) const;
  void check_linear(const LinearOp& op) const;
  void check_adapter(const AdapterOp& op) const;
  void check_experts(const ExpertsOp& op) const;
  void check_route(const RouteOp& op) const;
  void check_prepare(const PrepareOp& op) const;
  void check_heads(const HeadsOp& op) const;
  void check_latent(const LatentOp& op) const;
  void check_norm(const NormPart& norm, int width, const char* what) const;

  void update_requests(const StepIn& step);
  void move_blocks(const StepIn& step);
  std::vector<Run> begin_runs(const StepIn& step);
  static int wanted_of(const Run& run);
  static Ends ends_of(const std::vector<Run>& runs);
  const Adapter* adapter_of(const Request& request) const;
  void add_rows(StepRows& rows, const Adapter* adapter, int count) const;
  void plan_rows(StepRows& rows, const std::vector<RowSpan>& spans) const;
  void lay_out_rows(const std::vector<SliceIn>& slices);
  void lay_out_wanted(const std::vector<Run>& runs);
  void mark_groups();
  bool takes_groups(const Op* op) const;
  bool reads_groups_only(const Op* prepare) const;
  bool read_again(Buffer buffer, const Op* from) const;
  void lay_out_stages();
  const uint8_t* weights_after(const Op& op, const OpContext& c, int worker) const;
  void compute(const StepIn& step, std::vector<Run>& runs);
  static int chunks_of(const HeadRows& rows);
  HeadChunk chunk(const HeadRows& rows, int index) const;
  void gather(const HeadChunk& chunk, Range rows);
  RowsIn head_rows_in() const {
    return {work_->head_input(), config_.hidden, static_cast<size_t>(config_.hidden)};
  }
  void run_head(const HeadRows& rows, int stage, std::vector<Run>& runs, OpContext& c, int worker);
  void run_vectors(const HeadRows& rows, int stage, std::vector<Run>& runs, OpContext& c, int worker);
  void use_logits(const HeadChunk& chunk, std::vector<Run>& runs, Sampler& sampler, Range turns, int worker);
  void pool_vectors(const HeadChunk& chunk, std::vector<Run>& runs);
  void use_row(const HeadRow& row, const float* logits, Run& run, Sampler& sampler);
  void end_runs(std::vector<Run>& runs);

  DecoderConfig config_;
  const Kernels* kernels_;
  std::shared_ptr<ThreadPool> pool_;
  std::unique_ptr<WorkerCounters[]> counters_;
  Model model_;
  std::vector<KvPool> kv_;
  Program program_;
  std::unique_ptr<Workspace> work_;
  std::vector<Sampler> samplers_;
  std::unordered_map<int64_t, Request> requests_;
  std::unordered_map<int64_t, std::vector<float>> held_;
  std::vector<std::pair<int, int>> sites_;           // rows and columns
  std::vector<std::unique_ptr<Adapter>> adapters_;  // null: a free place
  int max_rank_ = 0;                                 // of the program's adapter ops
  StepRows rows_, wanted_;
  std::unique_ptr<std::atomic<bool>[]> bad_;  // [row of the step]
  OpSeconds op_seconds_;
};

}  // namespace spola
