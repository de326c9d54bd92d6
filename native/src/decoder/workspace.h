// The buffers a step computes in, sized once from the program.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/arena.h"
#include "decoder/kv_pool.h"
#include "decoder/program.h"
#include "kernels/table.h"

namespace spola {

struct WorkspaceShape {
  int rows = 0;       // of a step, at most
  int head_rows = 0;  // whose logits are held at a time, at most
  int workers = 1;
  int hidden = 0;
  int vocab = 0;
};

class Workspace {
 public:
  Workspace(const WorkspaceShape& shape, const Program& program, const std::vector<KvShape>& kv,
            bool huge_pages);

  // Row 0 of a buffer; rows are width(buffer) floats apart.
  float* buffer(Buffer b) const { return buffers_[static_cast<int>(b)]; }
  int width(Buffer b) const { return widths_[static_cast<int>(b)]; }

  int head_rows() const { return shape_.head_rows; }
  float* head_input() const { return head_input_; }  // [head_rows][hidden]: residual rows, then normed
  float* partials() const { return partials_; }      // attention records
  float* scratch(int worker) const { return scratch_ + static_cast<size_t>(worker) * scratch_floats_; }

  // Storage of activations in all formats; `k` and `f32` are set by the op that prepares them.
  int8_t* q8 = nullptr;
  float* d8 = nullptr;
  float* s8 = nullptr;
  int16_t* h8 = nullptr;
  int16_t* q16 = nullptr;
  float* d16 = nullptr;
  float* f32 = nullptr;

  // Attention records that a plan may use beyond one per row.
  static constexpr int kSpareRecords = 1024;

  size_t bytes() const { return memory_.size(); }

 private:
  template <class Take>
  void lay_out(const Program& program, const std::vector<KvShape>& kv, Take&& take);

  WorkspaceShape shape_;
  std::array<float*, static_cast<size_t>(Buffer::kCount)> buffers_{};
  std::array<int, static_cast<size_t>(Buffer::kCount)> widths_{};
  float* head_input_ = nullptr;
  float* partials_ = nullptr;
  float* scratch_ = nullptr;
  size_t scratch_floats_ = 0;
  Mapping memory_;
};

}  // namespace spola
