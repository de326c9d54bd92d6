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

// Room for activations in all formats, row-major.
struct ActivationRows {
  int8_t* q8 = nullptr;
  float* d8 = nullptr;
  float* s8 = nullptr;
  int16_t* h8 = nullptr;
  int16_t* q16 = nullptr;
  float* d16 = nullptr;
  float* f32 = nullptr;
  uint8_t* groups = nullptr;   // A8 of a step's rows once more, see row_groups.h; null in those of a worker
  float* attention = nullptr;  // rows of Buffer::kAttention; null in the shared ones
};

// With up to this many rows in a step every worker prepares all of them for itself: cheaper than sharing the
// work and meeting for the results.
constexpr int kOwnRows = 2;

class Workspace {
 public:
  Workspace(const WorkspaceShape& shape, const Program& program, const std::vector<KvShape>& kv,
            bool huge_pages);

  // Row 0 of a buffer; rows are width(buffer) floats apart.
  float* buffer(Buffer b) const { return buffers_[static_cast<int>(b)]; }
  // The same memory for groups of A8 rows, which are less than half as large.
  uint8_t* groups(Buffer b) const { return reinterpret_cast<uint8_t*>(buffer(b)); }
  int width(Buffer b) const { return widths_[static_cast<int>(b)]; }

  int head_rows() const { return shape_.head_rows; }
  float* head_input() const { return head_input_; }  // [head_rows][hidden]: residual rows, then normed
  float* partials() const { return partials_; }      // attention records
  float* scratch(int worker) const { return scratch_ + static_cast<size_t>(worker) * scratch_floats_; }

  const ActivationRows& shared() const { return shared_; }              // every row of a step
  const ActivationRows& own(int worker) const { return own_[worker]; }  // up to kOwnRows, of one worker

  // Attention records that a plan may use beyond one per row.
  static constexpr int kSpareRecords = 1024;

  size_t bytes() const { return memory_.size(); }

 private:
  struct Extent {
    size_t count = 0;
    size_t width = 0;
  };

  template <class Take>
  void lay_out(const Program& program, const std::vector<KvShape>& kv, Take&& take);

  template <class Take>
  static void lay_out_rows(ActivationRows& rows, const Extent& a, const Extent& b, Take&& take);

  WorkspaceShape shape_;
  ActivationRows shared_;
  std::vector<ActivationRows> own_;
  std::array<float*, static_cast<size_t>(Buffer::kCount)> buffers_{};
  std::array<int, static_cast<size_t>(Buffer::kCount)> widths_{};
  float* head_input_ = nullptr;
  float* partials_ = nullptr;
  float* scratch_ = nullptr;
  size_t scratch_floats_ = 0;
  Mapping memory_;
};

}  // namespace spola
