// The end of a step: logits of head rows, what is made of them, and hidden states of embedding requests.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/align.h"
#include "decoder/decoder.h"

namespace spola {

int Decoder::chunks_of(const HeadRows& rows) { return ceil_div(static_cast<int>(rows.size()), kHeadRows); }

Decoder::HeadChunk Decoder::chunk(const HeadRows& rows, int index) const {
  const int begin = index * kHeadRows;
  HeadChunk out;
  out.rows = rows.data() + begin;
  out.count = std::min(static_cast<int>(rows.size()) - begin, kHeadRows);
  for (int i = 0; i < out.count; ++i) out.of_row[i] = out.rows[i].wanted;
  return out;
}

// Copies residual rows into the head's input.
void Decoder::gather(const HeadChunk& chunk, Range rows) {
  const size_t hidden = static_cast<size_t>(config_.hidden);
  for (int i = rows.begin; i < rows.end; ++i) {
    std::memcpy(work_->head_input() + i * hidden,
                work_->buffer(Buffer::kResidual) + static_cast<size_t>(chunk.of_row[i]) * hidden,
                hidden * sizeof(float));
  }
}

// Three stages for each chunk of head rows: prepared, their logits, what is made of those.
void Decoder::run_head(const HeadRows& rows, int stage, std::vector<Run>& runs, OpContext& c, int worker) {
  const HeadOp& head = program_.head;
  const HeadChunk part = chunk(rows, stage / kHeadStages);
  if (stage % kHeadStages == 0) {
    const uint32_t formats = 1u << static_cast<int>(model_.matrix(head.matrix).format);
    claim_all(c, worker, 0, part.count, [&](Range range) {
      gather(part, range);
      RowsIn input = head_rows_in();
      input.of_row = part.of_row;
      prepare_rows(c, work_->shared(), head.norm, input, formats, range.begin, range.end);
    });
  } else if (stage % kHeadStages == 1) {
    c.activations = prepared(work_->shared(), head.norm, head_rows_in());
    head_logits(head, c, part.count, part.of_row, worker);
  } else {
    int turns = 1;
    for (int i = 1; i < part.count; ++i) turns += part.rows[i].run != part.rows[i - 1].run;
    claim_all(c, worker, 0, turns,
              [&](Range range) { use_logits(part, runs, samplers_[worker], range, worker); });
  }
}

// The head rows of some requests. Those of one request stay together, in order: a draft is only looked at
// when those before it were right.
void Decoder::use_logits(const HeadChunk& chunk, std::vector<Run>& runs, Sampler& sampler, Range turns,
                         int worker) {
  const size_t width = static_cast<size_t>(work_->width(Buffer::kLogits));
  int turn = 0;
  for (int i = 0; i < chunk.count; ++i) {
    const HeadRow& row = chunk.rows[i];
    if (i > 0 && row.run != chunk.rows[i - 1].run) ++turn;
    if (turn < turns.begin || turn >= turns.end) continue;
    Run& run = runs[row.run];
    if (run.stopped || !run.out.error.empty() || bad_[row.row].load(std::memory_order_relaxed)) {
      run.stopped = true;
      continue;
    }
    use_row(row, work_->buffer(Buffer::kLogits) + i * width, run, sampler);
    ++counters_[worker].sampled;
  }
}

void Decoder::use_row(const HeadRow& row, const float* logits, Run& run, Sampler& sampler) {
  const SliceIn& slice = *run.in;
  if (run.request->want == Want::kLogits) {
    run.out.logits.insert(run.out.logits.end(), logits, logits + config_.vocab);
    return;
  }
  if (run.request->want == Want::kScore) {
    run.out.scores.push_back(static_cast<double>(logits[slice.targets[row.index]]) -
                             sampler.log_sum_exp(logits));
    return;
  }
  if (row.index < slice.n_targets) {
    run.out.prompt_logprobs.push_back(
        sampler.logprob(logits, slice.targets[row.index], std::max(run.request->params.prompt_logprobs, 0)));
    return;
  }
  const int place = row.index - slice.n_targets;
  const int position = slice.start + (row.row - run.row) + 1;  // of the token that is drawn
  const size_t words = static_cast<size_t>((config_.vocab + 31) / 32);
  const uint32_t* mask = slice.masks ? slice.masks + static_cast<size_t>(place) * words : nullptr;
  const bool drafted = place < slice.n_drafts;
  const int32_t draft = drafted ? slice.ids[slice.n - slice.n_drafts + place] : -1;
  bool accepted = false;
  int32_t id;
  if (drafted && run.proposals) {
    id =
        sampler.verify(logits, *run.request, position, mask, draft,
                       run.proposals + static_cast<size_t>(place) * config_.vocab, &accepted, &run.out.error);
  } else if (run.kept) {
    id = sampler.propose(logits, *run.request, position, mask, run.kept, &run.out.error);
  } else {
    id = sampler.sample(logits, *run.request, position, mask, &run.out.error);
    accepted = id == draft;
  }
  if (id < 0) return;
  run.out.ids.push_back(id);
  const Params& params = run.request->params;
  if (params.logprobs >= 0) {
    run.out.logprobs.push_back(params.processed ? sampler.drawn_logprob(*run.request, id, params.logprobs)
                                                : sampler.logprob(logits, id, params.logprobs));
  }
  run.request->append(id);
  if (!drafted) return;
  if (accepted) {
    ++run.out.accepted;
  } else {
    run.stopped = true;
  }
}

// Final hidden states: two stages for each chunk of rows.
void Decoder::run_vectors(const HeadRows& rows, int stage, std::vector<Run>& runs, OpContext& c, int worker) {
  const HeadChunk part = chunk(rows, stage / kVectorStages);
  if (stage % kVectorStages == 1) return claim_all(c, worker, 0, 1, [&](Range) { pool_vectors(part, runs); });
  claim_all(c, worker, 0, part.count, [&](Range range) {
    gather(part, range);
    prepare_rows(c, work_->shared(), program_.head.norm, head_rows_in(), 0, range.begin, range.end);
  });
}

// The last row of a request, or the mean of all its rows, summed in order of position.
void Decoder::pool_vectors(const HeadChunk& chunk, std::vector<Run>& runs) {
  const size_t hidden = static_cast<size_t>(config_.hidden);
  const float* states =
      program_.head.norm.kind == NormKind::kNone ? work_->head_input() : work_->shared().f32;
  for (int i = 0; i < chunk.count; ++i) {
    const HeadRow& row = chunk.rows[i];
    Run& run = runs[row.run];
    Request& request = *run.request;
    const float* x = states + i * hidden;
    for (size_t d = 0; d < hidden; ++d) {
      if (!std::isfinite(x[d])) bad_[row.row].store(true, std::memory_order_relaxed);
    }
    const bool last = run.in->start + row.index + 1 >= request.total;
    if (request.want == Want::kEmbedLast) {
      if (last) run.out.vector.assign(x, x + hidden);
      continue;
    }
    if (run.in->start + row.index == 0) request.pooled = 0;
    if (request.pooled == 0) request.sums.assign(hidden, 0.0);
    for (size_t d = 0; d < hidden; ++d) request.sums[d] += x[d];
    ++request.pooled;
    if (!last) continue;
    for (double sum : request.sums) run.out.vector.push_back(static_cast<float>(sum / request.pooled));
  }
}

}  // namespace spola
