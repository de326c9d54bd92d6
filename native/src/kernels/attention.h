// One attention segment: up to kQueryRows query rows against at most kSegment positions of one KV head.
//
// The arithmetic is the "Attention" section of docs/numerics.md. A row's result does not depend on which
// other rows or heads share the call. Choosing segments and writing K and V are the decoder's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/table.h"

namespace spola {

// How K or V of one block and KV head lie in memory. Values are K [k_dim][32], V [32][v_dim]; int8 codes are
// followed by their f16 scales [groups of kKvGroup dimensions][32 tokens].
enum class KvType : int32_t { kF32 = 0, kF16 = 1, kI8 = 2 };

constexpr int kKvGroup = 32;  // dimensions of one token that share a scale; the last group may be smaller

constexpr size_t kv_value_bytes(KvType type) {
  return type == KvType::kI8 ? 1 : type == KvType::kF16 ? 2 : 4;
}

// Bytes of K or V of one block and head of `dim` dimensions.
constexpr size_t kv_block_bytes(KvType type, int dim) {
  const size_t values = static_cast<size_t>(dim) * kBlock * kv_value_bytes(type);
  const size_t groups = static_cast<size_t>(dim + kKvGroup - 1) / kKvGroup;
  return type == KvType::kI8 ? values + groups * kBlock * 2 : values;
}

// Positions are counted from the segment's first one. The caller guarantees that every row has at least one
// valid position in every block of the call, so only the first and last block can be partly valid.
struct AttentionArgs {
  const float* q = nullptr;  // row r, head g at q + r * q_stride + g * k_dim; already scaled
  size_t q_stride = 0;       // floats
  int rows = 0;              // 1..kQueryRows
  int heads = 0;             // query heads that share this KV head
  int k_dim = 0;
  int v_dim = 0;
  float softcap = 0.0f;  // 0 = none
  KvType k_type = KvType::kF16;
  KvType v_type = KvType::kF16;
  int blocks = 0;                            // 1..kSegment / kBlock
  int first_block = 0;                       // index of blocks[0] within the segment
  const uint8_t* k[kSegment / kBlock] = {};  // of each block, as k_type says
  const uint8_t* v[kSegment / kBlock] = {};  // of each block, as v_type says
  int low[kQueryRows] = {};                  // first valid position of the row
  int high[kQueryRows] = {};                 // one past the last valid position of the row
  float* out = nullptr;   // row r, head g at out + r * out_stride + g * (v_dim + 2): m, l, o[v_dim]
  size_t out_stride = 0;  // floats
};

void attention_segment_scalar(const AttentionArgs& args);
void attention_segment_avx2(const AttentionArgs& args);  // these only where x86 is compiled for
void attention_segment_avx512vnni(const AttentionArgs& args);
void attention_segment_neon(const AttentionArgs& args);  // this only where arm64 is compiled for

// Merges the partial `part` (m, l, o[v_dim]) of a later segment into `into`, of one head.
void attention_merge_scalar(const float* part, int v_dim, float* into);
void attention_merge_avx2(const float* part, int v_dim, float* into);
void attention_merge_avx512vnni(const float* part, int v_dim, float* into);
void attention_merge_neon(const float* part, int v_dim, float* into);

}  // namespace spola
