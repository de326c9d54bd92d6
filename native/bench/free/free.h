// Kernels that need not keep the rules of invariance (docs/numerics.md), to measure what those cost. For the
// benchmark and its test only; no table of kernels has them.
//
// They compute what the kernels of the library compute, within rounding, in whatever order is fastest for the
// call at hand.
#pragma once

#include "kernels/attention.h"
#include "kernels/table.h"

namespace spola::free_order {

// Query rows of one KV head against all blocks of a sequence, f16, without segments.
struct Attention {
  const float* q = nullptr;  // row r, head g at q + r * q_stride + g * k_dim; already scaled
  size_t q_stride = 0;       // floats
  int rows = 0;              // 1..kQueryRows
  int heads = 0;             // query heads that share this KV head
  int k_dim = 0;             // both multiples of 32
  int v_dim = 0;
  int blocks = 0;
  const uint8_t* const* k = nullptr;  // of each block
  const uint8_t* const* v = nullptr;
  const int* high = nullptr;  // of each row: one past its last valid position, counted from the first block's
  float* out = nullptr;       // row r, head g at out + r * out_stride + g * (v_dim + 2): m, l, o[v_dim]
  size_t out_stride = 0;      // floats
};

// Rows of the groups that many_* take: two sets of float sums for them fill the registers.
constexpr int kManyRows = 8;

// What one instruction set has.
struct Kernels {
  const char* isa;
  void (*attention)(const Attention& a);
  void (*rms_norm)(const float* x, const float* w, float eps, int n, float* y);
  TileKernel one_u4s, one_u4sm;    // one activation row
  // Whole groups of kManyRows rows, up to kMaxCallRows; null where the library has no kernels for groups.
  TileKernel many_u4s, many_u4sm;
};

#if defined(SPOLA_HAVE_X86)
extern const Kernels kAvx2, kAvx512vnni;
#endif

// Those of the instruction set `isa`, or null.
const Kernels* find(const char* isa);

}  // namespace spola::free_order
