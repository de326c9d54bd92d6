// Mixtures of experts: which experts a row goes to, their products, and the weighted sum.
//
// A slot is a row at one of its experts. Slots are sorted by expert and then by row, so that an expert's
// weights are read once for all of its rows; what a slot gives does not depend on the others.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/align.h"
#include "decoder/ops.h"

namespace spola {
namespace {

// The `used` largest scores, ties by lower number, best first.
void choose(const float* scores, int experts, int used, int32_t* chosen) {
  for (int j = 0; j < used; ++j) {
    int best = -1;
    for (int e = 0; e < experts; ++e) {
      const bool taken = std::find(chosen, chosen + j, e) != chosen + j;
      if (!taken && (best < 0 || scores[e] > scores[best])) best = e;
    }
    chosen[j] = best;
  }
}

// Drops the experts of all but the best groups. A group counts as much as its best expert or, where experts
// have a bias, its best two together.
void keep_groups(const RouteOp& op, float* scores, float* worth, int32_t* chosen) {
  const int size = op.experts / op.groups;
  for (int g = 0; g < op.groups; ++g) {
    const float* s = scores + g * size;
    int32_t best[2];
    choose(s, size, op.bias == kNoId ? 1 : 2, best);
    worth[g] = op.bias == kNoId ? s[best[0]] : s[best[0]] + s[best[1]];
  }
  choose(worth, op.groups, op.groups_used, chosen);
  for (int g = 0; g < op.groups; ++g) {
    if (std::find(chosen, chosen + op.groups_used, g) != chosen + op.groups_used) continue;
    std::fill(scores + g * size, scores + (g + 1) * size, -std::numeric_limits<float>::infinity());
  }
}

// Ascending numbers of the experts that `values` choose. `room`: experts + groups floats, and ints for groups.
void choose_experts(const RouteOp& op, const OpContext& c, const float* values, float* room, int32_t* ids,
                    int32_t* chosen) {
  if (op.bias != kNoId || op.groups > 1) {
    const float* bias = op.bias == kNoId ? nullptr : c.model->vector(op.bias).data;
    for (int e = 0; e < op.experts; ++e) room[e] = bias ? values[e] + bias[e] : values[e];
    if (op.groups > 1) keep_groups(op, room, room + op.experts, ids);
    values = room;
  }
  choose(values, op.experts, op.used, chosen);
  std::sort(chosen, chosen + op.used);
}

void softmax_weights(const RouteOp& op, const OpContext& c, const float* scores, float most, const int32_t* chosen,
                     float* weight) {
  float total = 0.0f;
  for (int e = 0; !op.normalise && e < op.experts; ++e) {
    float x = scores[e] - most;
    c.kernels->exp_many(&x, 1, &x);
    total += x;
  }
  for (int j = 0; j < op.used; ++j) {
    weight[j] = scores[chosen[j]] - most;
    c.kernels->exp_many(weight + j, 1, weight + j);
    if (op.normalise) total += weight[j];
  }
  for (int j = 0; j < op.used; ++j) weight[j] = weight[j] / total * op.scale;
}

void sigmoid_weights(const RouteOp& op, const float* values, const int32_t* chosen, float* weight) {
  float total = 0.0f;
  for (int j = 0; j < op.used; ++j) total += weight[j] = values[chosen[j]];
  for (int j = 0; j < op.used; ++j) {
    weight[j] = (op.normalise ? weight[j] / (total + 1e-20f) : weight[j]) * op.scale;
  }
}

void route_row(const RouteOp& op, const OpContext& c, int row, float* scratch) {
  const float* scores = c.work->buffer(Buffer::kRouter) + static_cast<size_t>(row) * op.width;
  const float most = c.kernels->max_many(scores, op.experts);
  int32_t* chosen = c.rows->routing.expert.data() + static_cast<size_t>(row) * op.used;
  float* weight = c.rows->routing.weight.data() + static_cast<size_t>(row) * op.used;
  if (!std::isfinite(most)) {
    c.rows->spoil(row);
    for (int j = 0; j < op.used; ++j) chosen[j] = j, weight[j] = 0.0f;
    return;
  }
  float* room = scratch + op.experts;
  int32_t* ids = reinterpret_cast<int32_t*>(room + op.experts + op.groups);
  if (!op.sigmoid) {
    choose_experts(op, c, scores, room, ids, chosen);
    return softmax_weights(op, c, scores, most, chosen, weight);
  }
  for (int e = 0; e < op.experts; ++e) scratch[e] = -scores[e];
  c.kernels->exp_many(scratch, op.experts, scratch);
  for (int e = 0; e < op.experts; ++e) scratch[e] = 1.0f / (1.0f + scratch[e]);
  choose_experts(op, c, scratch, room, ids, chosen);
  sigmoid_weights(op, scratch, chosen, weight);
}

// Which expert the n-th tile belongs to, counted over the experts that have slots; then the tile within it.
int expert_of(const Routing& routing, int experts, int tiles, int* tile) {
  for (int e = 0; e < experts; ++e) {
    if (routing.begin[e] == routing.begin[e + 1]) continue;
    if (*tile < tiles) return e;
    *tile -= tiles;
  }
  return experts;
}

}  // namespace

void run_route(const RouteOp& op, const OpContext& c, int worker, Range rows) {
  for (int row = rows.begin; row < rows.end; ++row) route_row(op, c, row, c.work->scratch(worker));
}

void run_group(const RouteOp& op, const OpContext& c) {
  Routing& routing = c.rows->routing;
  const int count = c.rows->count * op.used;
  std::fill(routing.begin.begin(), routing.begin.begin() + op.experts + 1, 0);
  for (int i = 0; i < count; ++i) ++routing.begin[routing.expert[i] + 1];
  for (int e = 0; e < op.experts; ++e) routing.begin[e + 1] += routing.begin[e];
  routing.next.assign(routing.begin.begin(), routing.begin.begin() + op.experts);
  for (int i = 0; i < count; ++i) {
    const int slot = routing.next[routing.expert[i]]++;
    routing.row_of_slot[slot] = i / op.used;
    routing.slot[i] = slot;
  }
  routing.slots = count;
  routing.used = op.used;
}

void run_experts(const ExpertsOp& op, const OpContext& c, int worker) {
  const Routing& routing = c.rows->routing;
  const Matrix& first = c.model->matrix(op.gate);
  int busy = 0;
  for (int e = 0; e < op.experts; ++e) busy += routing.begin[e] != routing.begin[e + 1];
  LinearOp linear;
  linear.parts = op.up == kNoId ? 1 : 2;
  linear.output = op.output;
  linear.width = op.width;
  linear.epilogue = op.epilogue;
  linear.clamp = op.clamp;
  linear.up_offset = op.up_offset;
  claim_all(c, worker, 0, busy * first.tiles, [&](Range range) {
    for (int i = range.begin; i < range.end; ++i) {
      int tile = i;
      const int e = expert_of(routing, op.experts, first.tiles, &tile);
      linear.part[0].matrix = op.gate + e;
      linear.part[1].matrix = op.up + e;
      linear.part[0].bias = op.gate_bias == kNoId ? kNoId : op.gate_bias + e;
      linear.part[1].bias = op.up_bias == kNoId ? kNoId : op.up_bias + e;
      linear_tile(linear, c, tile, routing.begin[e], routing.begin[e + 1]);
    }
    c.counters[worker].tiles += static_cast<uint64_t>(range.end - range.begin);
  });
}

void run_combine(const CombineOp& op, const OpContext& c, int worker, Range rows) {
  const Routing& routing = c.rows->routing;
  const size_t width = static_cast<size_t>(op.width);
  const size_t scores = static_cast<size_t>(op.router_width);
  float* sum = c.work->scratch(worker);
  for (int row = rows.begin; row < rows.end; ++row) {
    std::memset(sum, 0, width * sizeof(float));
    for (int j = 0; j < routing.used; ++j) {
      const size_t i = static_cast<size_t>(row) * routing.used + j;
      const float* y = c.work->buffer(Buffer::kExpert) + routing.slot[i] * width;
      for (size_t d = 0; d < width; ++d) sum[d] += routing.weight[i] * y[d];
    }
    float* out = c.work->buffer(Buffer::kBranch) + row * width;
    if (!op.shared) {
      std::memcpy(out, sum, width * sizeof(float));
      continue;
    }
    float gate = 1.0f;
    if (op.shared_gate) {
      float e = -c.work->buffer(Buffer::kRouter)[row * scores + scores - 1];
      c.kernels->exp_many(&e, 1, &e);
      gate = 1.0f / (1.0f + e);
    }
    for (size_t d = 0; d < width; ++d) out[d] = sum[d] + out[d] * gate;
  }
}

}  // namespace spola
