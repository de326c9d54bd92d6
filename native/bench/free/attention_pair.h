// Attention of a step twice: as the decoder does it, and in a free order, over the same cache.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "decoder/kv_pool.h"
#include "decoder/ops.h"
#include "free/free.h"

namespace spola::free_order {

// What attention is done for: rows start .. start + n of each slice, in each of `layers` layers.
struct AttentionCase {
  int heads = 0, kv_heads = 0, dim = 0, layers = 0;
  std::vector<std::pair<int, int>> slices;  // start, n
};

class AttentionPair {
 public:
  // Fills an f16 cache and the queries of one layer with random values. Every slice has one row, or none has.
  AttentionPair(const spola::Kernels& kernels, const Kernels& free, ThreadPool& pool, const AttentionCase& of);

  void ours();
  void free();
  // What the last call left of the last layer: [rows][heads * dim].
  const std::vector<float>& result() const { return result_; }

 private:
  struct Piece {  // blocks begin .. end of one KV head for rows of a slice
    int slice, row, position, rows, head, begin, end, record;
    bool whole;
  };
  struct Split {  // the pieces first .. last - 1 of one row and head
    int row, head, first, last;
  };

  void fill();
  void plan_decode();
  void plan_prefill();
  void run_piece(const Piece& piece, int layer, int worker);
  void merge_split(const Split& split);
  void finish_row(const float* records, int row, int head);

  AttentionCase case_;
  KvShape shape_;
  const spola::Kernels& kernels_;
  const Kernels& free_;
  ThreadPool& pool_;
  std::vector<WorkerCounters> counters_;
  std::vector<KvPool> kv_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<SliceIn> slices_;
  Program program_;
  std::vector<Stage> stages_;
  Model model_;
  std::unique_ptr<Workspace> work_;
  StepRows rows_;
  std::vector<Piece> pieces_;
  std::vector<int> share_;  // worker w has pieces share_[w] .. share_[w + 1]; empty: whoever comes
  std::vector<Split> splits_;
  size_t head_floats_, record_floats_;
  std::vector<float> records_;
  std::vector<float> result_;
};

}  // namespace spola::free_order
