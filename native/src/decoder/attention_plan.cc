#include "decoder/attention_plan.h"

#include <algorithm>
#include <cstdint>

namespace spola {
namespace {

struct Group {
  int slice, row, position, rows, segment, segments;
  int64_t cost;  // blocks to visit, for one KV head
};

// Rows whose positions lie in one aligned run of `run`, and whose windows begin in the same block: every
// row of a group then has a valid position in every block that the group visits.
std::vector<Group> row_groups(const std::vector<RowSpan>& spans, const KvShape& shape, int run) {
  std::vector<Group> groups;
  int row = 0;
  for (size_t s = 0; s < spans.size(); ++s) {
    for (int i = 0; i < spans[s].rows;) {
      const int position = spans[s].position + i;
      const int block = first_visible(shape, position) / kBlock;
      int rows = 1;
      while (i + rows < spans[s].rows && (position + rows) % run != 0 &&
             first_visible(shape, position + rows) / kBlock == block) {
        ++rows;
      }
      const int first = block * kBlock / kSegment;
      const int last = position / kSegment;
      const int64_t blocks = position / kBlock - block + 1;
      groups.push_back({static_cast<int>(s), row, position, rows, first, last - first + 1, blocks * rows});
      i += rows;
      row += rows;
    }
  }
  return groups;
}

// Long runs read K and V less often; short ones leave enough items to share out evenly.
int run_length(const std::vector<RowSpan>& spans, const KvShape& shape, int workers) {
  int64_t rows = 0;
  for (const RowSpan& s : spans) rows += s.rows;
  int run = kQueryRows;
  while (workers > 1 && run > 4 && rows * shape.heads < int64_t{4} * workers * run) run /= 2;
  return run;
}

}  // namespace

void plan_attention(const std::vector<RowSpan>& spans, const KvShape& shape, int workers, int spare_records,
                    AttentionPlan* plan) {
  const std::vector<Group> groups = row_groups(spans, shape, run_length(spans, shape, workers));
  int64_t total = 0;
  for (const Group& g : groups) total += g.cost * shape.heads;
  plan->items.clear();
  plan->record.clear();
  plan->parts.clear();
  int record = 0;
  for (const Group& g : groups) {
    const int extra = (g.segments - 1) * g.rows;
    const bool split =
        g.segments > 1 && extra <= spare_records && g.cost * 4 * workers > total && workers > 1;
    const int parts = split ? g.segments : 1;
    if (split) spare_records -= extra;
    for (int r = 0; r < g.rows; ++r) {
      plan->record.push_back(record + r * parts);
      plan->parts.push_back(parts);
    }
    for (int head = 0; head < shape.heads; ++head) {
      for (int p = 0; p < parts; ++p) {
        plan->items.push_back({g.slice, g.row, g.position, g.rows, head, g.segment + p,
                               split ? 1 : g.segments, record + p, parts});
      }
    }
    record += g.rows * parts;
  }
}

}  // namespace spola
