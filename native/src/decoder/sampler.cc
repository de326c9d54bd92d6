#include "decoder/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "decoder/philox.h"

namespace spola {
namespace {

constexpr int kChunk = 4096;  // ids per partial sum
constexpr int kScan = 256;    // ids looked at together when candidates are selected
constexpr float kLowest = -std::numeric_limits<float>::infinity();

bool better(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

}  // namespace

int32_t Sampler::sample(const float* logits, const Request& request, int position, const uint32_t* mask,
                        std::string* error) {
  if (!survivors(logits, request, position, mask, error)) return -1;
  if (left_ == Left::kBest) return best_;
  return draw(uniform(request.seed, static_cast<uint32_t>(position), static_cast<uint32_t>(request.choice),
                      Purpose::kTarget));
}

int32_t Sampler::verify(const float* logits, const Request& request, int position, const uint32_t* mask,
                        int32_t draft, const float* q, bool* accepted, std::string* error) {
  *accepted = false;
  if (!survivors(logits, request, position, mask, error)) return -1;
  spread();
  double q_total = 0.0;
  for (int i = 0; i < vocab_; ++i) q_total += q[i];
  const auto u = [&](Purpose purpose) {
    return uniform(request.seed, static_cast<uint32_t>(position), static_cast<uint32_t>(request.choice),
                   purpose);
  };
  const double drafted = q[draft] / q_total;
  *accepted = drafted > 0.0 && u(Purpose::kAccept) * drafted < target_[draft];
  if (*accepted) return draft;
  residual_.resize(vocab_);
  double total = 0.0;
  for (int i = 0; i < vocab_; ++i) {
    residual_[i] = std::max(0.0, target_[i] - q[i] / q_total);
    total += residual_[i];
  }
  const double goal = u(Purpose::kResidual);
  if (!(total > 0.0)) return draw(goal);  // the two are equal but for rounding
  double sum = 0.0;
  int32_t last = 0;
  for (int i = 0; i < vocab_; ++i) {
    sum += residual_[i];
    if (sum > goal * total) return i;
    if (residual_[i] > 0.0) last = i;
  }
  return last;
}

int32_t Sampler::propose(const float* logits, const Request& request, int position, const uint32_t* mask,
                         std::vector<float>* q, std::string* error) {
  if (!survivors(logits, request, position, mask, error)) return -1;
  const size_t begin = q->size();
  q->resize(begin + vocab_, 0.0f);
  float* row = q->data() + begin;
  if (left_ == Left::kBest) {
    row[best_] = 1.0f;
    return best_;
  }
  if (left_ == Left::kCandidates) {
    for (const Candidate& c : candidates_) row[c.id] = c.weight;
  } else {
    std::copy(weights_.begin(), weights_.end(), row);
  }
  return draw(uniform(request.seed, static_cast<uint32_t>(position), static_cast<uint32_t>(request.choice),
                      Purpose::kDraft));
}

// Finds out what can be drawn at `position`; false with `error` set when nothing can.
bool Sampler::survivors(const float* logits, const Request& request, int position, const uint32_t* mask,
                        std::string* error) {
  const Params& p = request.params;
  const float* l = adjust(logits, request, position, mask);
  drawn_ = l;
  const float top = kernels_->max_many(l, vocab_);
  if (!std::isfinite(top)) {
    *error = top == kLowest ? "the mask allows no token that is not banned"
                            : "a logit is not finite after penalties and temperature";
    return false;
  }
  if (p.greedy) {
    left_ = Left::kBest;
    best_ = largest(l, top);
  } else if (narrow(l, top, p)) {
    left_ = Left::kCandidates;
    trim(p.min_p);
  } else {
    left_ = Left::kWeights;
    weigh_all(l, top, p.min_p);
  }
  return true;
}

int32_t Sampler::draw(double u) const {
  switch (left_) {
    case Left::kCandidates: return draw_candidates(u);
    case Left::kWeights: return draw_all(u);
    case Left::kBest: break;
  }
  return best_;
}

// The distribution as probabilities of all ids.
void Sampler::spread() {
  target_.assign(vocab_, 0.0);
  if (left_ == Left::kBest) {
    target_[best_] = 1.0;
  } else if (left_ == Left::kCandidates) {
    for (const Candidate& c : candidates_) target_[c.id] = c.weight / total_;
  } else {
    for (int i = 0; i < vocab_; ++i) target_[i] = weights_[i] / total_;
  }
}

// Takes out what must not be drawn: by mask, allowed ids, bad sequences and ends that come too early.
void Sampler::restrict(const Request& request, int position, const uint32_t* mask) {
  const Params& p = request.params;
  float* l = adjusted_.data();
  for (const uint32_t* bits : {mask, p.allowed.empty() ? nullptr : p.allowed.data()}) {
    if (!bits) continue;
    for (int i = 0; i < vocab_; ++i) {
      if (!((bits[i / 32] >> (i % 32)) & 1u)) l[i] = kLowest;
    }
  }
  for (const std::vector<int32_t>& bad : p.bad) {
    const size_t before = bad.size() - 1;
    if (before > request.output.size()) continue;
    if (std::equal(bad.begin(), bad.end() - 1, request.output.end() - before)) l[bad.back()] = kLowest;
  }
  if (position - request.n_prompt < p.min_tokens) {
    for (int32_t id : p.ends) l[id] = kLowest;
  }
}

// Bans, bias, penalties and temperature; the logits themselves when none of them applies.
const float* Sampler::adjust(const float* logits, const Request& request, int position,
                             const uint32_t* mask) {
  const Params& p = request.params;
  const bool warm = !p.greedy && p.temperature != 1.0f;
  const bool bans = mask || !p.allowed.empty() || !p.bad.empty() || p.min_tokens > 0;
  if (!bans && p.logit_bias.empty() && !p.counts_tokens() && !warm) return logits;
  adjusted_.assign(logits, logits + vocab_);
  float* l = adjusted_.data();
  if (bans) restrict(request, position, mask);
  for (const auto& [id, bias] : p.logit_bias) l[id] += bias;
  for (const auto& [id, count] : request.counts) {
    if (p.repetition != 1.0f) l[id] = l[id] > 0.0f ? l[id] / p.repetition : l[id] * p.repetition;
    if (count > 0) l[id] -= p.frequency * static_cast<float>(count) + p.presence;
  }
  if (warm) {
    for (int i = 0; i < vocab_; ++i) l[i] /= p.temperature;
  }
  return l;
}

int32_t Sampler::largest(const float* logits, float top) const {
  int32_t id = 0;  // first of a block that holds it, then within
  while (id + kScan < vocab_ && kernels_->max_many(logits + id, kScan) != top) id += kScan;
  while (logits[id] != top) ++id;
  return id;
}

// The `count` best of all ids into candidates_, in order.
void Sampler::best(const float* logits, int64_t count) {
  const size_t keep = static_cast<size_t>(std::min<int64_t>(count, vocab_));
  const size_t room = 2 * keep + kScan;
  candidates_.clear();
  float floor = kLowest;  // ids at or below it cannot be among the best any more
  for (int begin = 0; begin < vocab_; begin += kScan) {
    const int n = std::min(kScan, vocab_ - begin);
    if (!(kernels_->max_many(logits + begin, n) > floor)) continue;
    for (int i = begin; i < begin + n; ++i) {
      if (logits[i] > floor) candidates_.push_back({logits[i], i, 0.0f});
    }
    if (candidates_.size() >= room) {
      std::nth_element(candidates_.begin(), candidates_.begin() + (keep - 1), candidates_.end(), better);
      candidates_.resize(keep);
      floor = candidates_.back().logit;
    }
  }
  if (candidates_.size() > keep) {
    std::nth_element(candidates_.begin(), candidates_.begin() + (keep - 1), candidates_.end(), better);
    candidates_.resize(keep);
  }
  std::sort(candidates_.begin(), candidates_.end(), better);
}

void Sampler::weigh(float top) {
  weights_.resize(candidates_.size());
  for (size_t i = 0; i < candidates_.size(); ++i) weights_[i] = candidates_[i].logit - top;
  kernels_->exp_many(weights_.data(), static_cast<int>(weights_.size()), weights_.data());
  for (size_t i = 0; i < candidates_.size(); ++i) candidates_[i].weight = weights_[i];
}

// Sum of all weights in chunks of ids.
double Sampler::chunked_total(const float* logits, float top) {
  weights_.resize(kChunk);
  double total = 0.0;
  for (int begin = 0; begin < vocab_; begin += kChunk) {
    const int n = std::min(kChunk, vocab_ - begin);
    for (int i = 0; i < n; ++i) weights_[i] = logits[begin + i] - top;
    kernels_->exp_many(weights_.data(), n, weights_.data());
    double sum = 0.0;
    for (int i = 0; i < n; ++i) sum += weights_[i];
    total += sum;
  }
  return total;
}

// Applies top-k and top-p: true with what they leave in candidates_, false when neither is on.
bool Sampler::narrow(const float* logits, float top, const Params& params) {
  const bool by_count = params.top_k > 0 && params.top_k < vocab_;
  const bool by_mass = params.top_p < 1.0;
  if (!by_count && !by_mass) return false;
  int64_t count = by_count ? params.top_k : kScan;
  double goal = 0.0;
  if (!by_count) goal = params.top_p * chunked_total(logits, top);
  for (;;) {
    best(logits, count);
    weigh(top);
    if (!by_mass) return true;
    if (by_count) {
      double total = 0.0;
      for (const Candidate& c : candidates_) total += c.weight;
      goal = params.top_p * total;
    }
    double sum = 0.0;
    for (size_t i = 0; i < candidates_.size(); ++i) {
      sum += candidates_[i].weight;
      if (sum >= goal) {
        candidates_.resize(i + 1);
        return true;
      }
    }
    if (by_count || count >= vocab_) return true;
    count *= 8;
  }
}

// What min-p leaves of the candidates, in id order.
void Sampler::trim(float min_p) {
  std::erase_if(candidates_, [min_p](const Candidate& c) { return c.weight < min_p; });
  std::sort(candidates_.begin(), candidates_.end(),
            [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  total_ = 0.0;
  for (const Candidate& c : candidates_) total_ += c.weight;
}

int32_t Sampler::draw_candidates(double u) const {
  double sum = 0.0;
  int32_t last = candidates_.front().id;
  for (const Candidate& c : candidates_) {
    sum += c.weight;
    if (sum > u * total_) return c.id;
    if (c.weight > 0.0f) last = c.id;
  }
  return last;
}

// Weights of all ids, zero for those below min_p. The running sum is kept at chunk borders, so that a walk
// starts in the chunk where it ends.
void Sampler::weigh_all(const float* logits, float top, float min_p) {
  weights_.resize(vocab_);
  before_.clear();
  total_ = 0.0;
  for (int begin = 0; begin < vocab_; begin += kChunk) {
    const int n = std::min(kChunk, vocab_ - begin);
    float* w = weights_.data() + begin;
    for (int i = 0; i < n; ++i) w[i] = logits[begin + i] - top;
    kernels_->exp_many(w, n, w);
    before_.push_back(total_);
    for (int i = 0; i < n; ++i) {
      if (w[i] < min_p) w[i] = 0.0f;
      total_ += w[i];
    }
  }
}

int32_t Sampler::draw_all(double u) const {
  const double goal = u * total_;
  size_t chunk = before_.size() - 1;
  while (chunk > 0 && before_[chunk] > goal) --chunk;
  double sum = before_[chunk];
  int32_t last = 0;
  for (int i = static_cast<int>(chunk) * kChunk; i < vocab_; ++i) {
    sum += weights_[i];
    if (sum > goal) return i;
  }
  for (int i = 0; i < vocab_; ++i) {
    if (weights_[i] > 0.0f) last = i;
  }
  return last;
}

double Sampler::log_sum_exp(const float* logits) {
  const float top = kernels_->max_many(logits, vocab_);
  double total = 0.0;
  for (int begin = 0; begin < vocab_; begin += kChunk) {
    total += kernels_->sum_exp16(logits + begin, std::min(kChunk, vocab_ - begin), top);
  }
  return static_cast<double>(top) + std::log(total);
}

LogprobOut Sampler::logprob(const float* logits, int32_t id, int top) {
  const double lse = log_sum_exp(logits);
  LogprobOut out;
  out.id = id;
  out.logprob = static_cast<double>(logits[id]) - lse;
  if (top > 0) {
    best(logits, top);
    for (const Candidate& c : candidates_) out.top.emplace_back(c.id, static_cast<double>(c.logit) - lse);
  }
  return out;
}

LogprobOut Sampler::drawn_logprob(const Request& request, int32_t id, int top) {
  if (left_ == Left::kBest) return logprob(drawn_, id, top);
  processed_.assign(vocab_, kLowest);
  if (left_ == Left::kCandidates) {
    for (const Candidate& c : candidates_) processed_[c.id] = c.logit;
  } else {
    for (int i = 0; i < vocab_; ++i) {
      if (weights_[i] > 0.0f || request.params.min_p <= 0.0f) processed_[i] = drawn_[i];
    }
  }
  return logprob(processed_.data(), id, top);
}

}  // namespace spola
