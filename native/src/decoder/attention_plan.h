// Which attention segments a step needs, as items that workers take.
//
// Rebuilt each step, once per KV group. Splitting is for balance only: partials are merged in the order of
// segments either way, so the result does not depend on it.
#pragma once

#include <vector>

#include "decoder/kv_pool.h"

namespace spola {

// Neighbouring rows of one slice.
struct RowSpan {
  int position;  // of the first
  int rows;
};

// Up to kQueryRows rows of one slice, against `segments` segments, for one KV head.
struct AttentionItem {
  int slice;
  int row;       // first row, counted over the step
  int position;  // of that row
  int rows;
  int kv_head;
  int segment;  // first segment
  int segments;
  int record;  // where the first row's result goes
  int stride;  // records between rows
};

struct AttentionPlan {
  std::vector<AttentionItem> items;
  std::vector<int> record;  // per row: its first record of partial results
  std::vector<int> parts;   // per row: how many records
};

// First position that the row at `position` sees.
inline int first_visible(const KvShape& shape, int position) {
  return shape.window > 0 && position >= shape.window ? position - shape.window + 1 : 0;
}

// `spans` has one entry per slice, its rows side by side in the step. At most rows + spare_records records are
// used.
void plan_attention(const std::vector<RowSpan>& spans, const KvShape& shape, int workers, int spare_records,
                    AttentionPlan* plan);

}  // namespace spola
