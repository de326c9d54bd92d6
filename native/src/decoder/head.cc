// The end of a step: logits of head rows, what is made of them, and hidden states of embedding requests.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "decoder/decoder.h"

namespace spola {

// Copies the residual rows into the head's input: the rows that this worker prepares.
void Decoder::gather(const HeadRow* rows, int count, int worker) {
  const size_t hidden = static_cast<size_t>(config_.hidden);
  const Range range = share(count, worker, pool_.size());
  for (int i = range.begin; i < range.end; ++i) {
    std::memcpy(work_->head_input() + i * hidden,
                work_->buffer(Buffer::kResidual) + static_cast<size_t>(rows[i].row) * hidden,
                hidden * sizeof(float));
  }
}

void Decoder::run_head(const std::vector<HeadRow>& rows, std::vector<Run>& runs, OpContext& c, int worker) {
  const HeadOp& head = program_.head;
  const uint32_t formats = 1u << static_cast<int>(model_.matrix(head.matrix).format);
  c.activations = prepared(work_->shared(), head.norm, work_->head_input(), config_.hidden);
  for (size_t begin = 0; begin < rows.size(); begin += static_cast<size_t>(work_->head_rows())) {
    const HeadRow* chunk = rows.data() + begin;
    const int count = static_cast<int>(std::min<size_t>(rows.size() - begin, work_->head_rows()));
    int32_t of_row[64];
    for (int i = 0; i < count; ++i) of_row[i] = chunk[i].row;
    gather(chunk, count, worker);
    const Range range = share(count, worker, pool_.size());
    prepare_rows(c, work_->shared(), head.norm, work_->head_input(), config_.hidden, formats, range.begin,
                 range.end, of_row);
    pool_.barrier();
    head_logits(head, c, count, of_row, worker);
    pool_.barrier();
    use_logits(chunk, count, runs, worker);
    pool_.barrier();
  }
}

// Rows of one request stay together, in order: a draft is only looked at when those before it were right.
void Decoder::use_logits(const HeadRow* rows, int count, std::vector<Run>& runs, int worker) {
  const size_t width = static_cast<size_t>(work_->width(Buffer::kLogits));
  int turn = 0;
  for (int i = 0; i < count; ++i) {
    if (i > 0 && rows[i].run != rows[i - 1].run) ++turn;
    if (turn % pool_.size() != worker) continue;
    Run& run = runs[rows[i].run];
    if (run.stopped || !run.out.error.empty() || rows_.bad[rows[i].row].load(std::memory_order_relaxed)) {
      run.stopped = true;
      continue;
    }
    use_row(rows[i], work_->buffer(Buffer::kLogits) + i * width, run, samplers_[worker]);
    ++pool_.counters(worker).sampled;
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

// Final hidden states: the last row of a request, or the mean of all its rows, summed in order of position.
void Decoder::run_vectors(const std::vector<HeadRow>& rows, std::vector<Run>& runs, OpContext& c,
                          int worker) {
  const size_t hidden = static_cast<size_t>(config_.hidden);
  for (size_t begin = 0; begin < rows.size(); begin += static_cast<size_t>(work_->head_rows())) {
    const HeadRow* chunk = rows.data() + begin;
    const int count = static_cast<int>(std::min<size_t>(rows.size() - begin, work_->head_rows()));
    gather(chunk, count, worker);
    const Range range = share(count, worker, pool_.size());
    prepare_rows(c, work_->shared(), program_.head.norm, work_->head_input(), config_.hidden, 0, range.begin,
                 range.end, nullptr);
    pool_.barrier();
    const float* states =
        program_.head.norm.kind == NormKind::kNone ? work_->head_input() : work_->shared().f32;
    for (int i = 0; worker == 0 && i < count; ++i) {
      Run& run = runs[chunk[i].run];
      Request& request = *run.request;
      const float* x = states + i * hidden;
      for (size_t d = 0; d < hidden; ++d) {
        if (!std::isfinite(x[d])) rows_.bad[chunk[i].row].store(true, std::memory_order_relaxed);
      }
      const bool last = run.in->start + chunk[i].index + 1 >= request.total;
      if (request.want == Want::kEmbedLast) {
        if (last) run.out.vector.assign(x, x + hidden);
        continue;
      }
      if (run.in->start + chunk[i].index == 0) request.pooled = 0;
      if (request.pooled == 0) request.sums.assign(hidden, 0.0);
      for (size_t d = 0; d < hidden; ++d) request.sums[d] += x[d];
      ++request.pooled;
      if (!last) continue;
      for (double sum : request.sums) run.out.vector.push_back(static_cast<float>(sum / request.pooled));
    }
    pool_.barrier();
  }
}

}  // namespace spola
