// Choosing a token from a row of logits: the "Sampling" section of docs/numerics.md.
//
// Results equal the definition over a full sort; candidates are selected, never all sorted unless a top-p
// needs it. One object per worker (it holds scratch memory). Logits are finite: the decoder has checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "decoder/request.h"
#include "kernels/table.h"

namespace spola {

struct Candidate {
  float logit;
  int32_t id;
  float weight;
};

class Sampler {
 public:
  Sampler(const Kernels* kernels, int vocab) : kernels_(kernels), vocab_(vocab) {}

  // The token at `position` of `request`; -1 with `error` set when nothing can be chosen.
  // `mask` has one bit per id, or is null.
  int32_t sample(const float* logits, const Request& request, int position, const uint32_t* mask,
                 std::string* error);

  // Rejection mode: `draft` if it is accepted, else a token from what the target has more of than `q`, the
  // distribution that the draft was drawn from (weights of all ids, finite, not all zero). Over such drafts
  // the result is distributed as sample()'s. Leviathan et al., arXiv 2211.17192.
  int32_t verify(const float* logits, const Request& request, int position, const uint32_t* mask,
                 int32_t draft, const float* q, bool* accepted, std::string* error);

  // A draft for `position`, by the random number of drafts; the weights of all ids that it was drawn with are
  // appended to `q`. -1 with `error` set when nothing can be chosen.
  int32_t propose(const float* logits, const Request& request, int position, const uint32_t* mask,
                  std::vector<float>* q, std::string* error);

  // ln of the sum of exp(logits).
  double log_sum_exp(const float* logits);

  // Log-probability of `id` and of the `top` likeliest ids.
  LogprobOut logprob(const float* logits, int32_t id, int top);

  // The same under the distribution that the last call of sample() or verify() had as its target; for a
  // greedy request, that after its penalties. `request` and the logits must be as they were then.
  LogprobOut drawn_logprob(const Request& request, int32_t id, int top);

 private:
  bool survivors(const float* logits, const Request& request, int position, const uint32_t* mask,
                 std::string* error);
  int32_t draw(double u) const;
  void spread();
  const float* adjust(const float* logits, const Request& request, int position, const uint32_t* mask);
  void restrict(const Request& request, int position, const uint32_t* mask);
  void best(const float* logits, int64_t count);
  int32_t largest(const float* logits, float top) const;
  bool narrow(const float* logits, float top, const Params& params);
  void weigh(float top);
  double chunked_total(const float* logits, float top);
  void trim(float min_p);
  void weigh_all(const float* logits, float top, float min_p);
  int32_t draw_candidates(double u) const;
  int32_t draw_all(double u) const;

  const Kernels* kernels_;
  int vocab_;
  std::vector<float> adjusted_;
  std::vector<float> processed_;
  std::vector<double> target_;  // probabilities, for verify()
  std::vector<double> residual_;
  const float* drawn_ = nullptr;  // what is drawn from, before top-k, top-p and min-p
  enum class Left { kBest, kCandidates, kWeights } left_ = Left::kBest;  // what says which ids are left
  int32_t best_ = 0;
  double total_ = 0.0;  // sum of the weights left, in id order
  std::vector<float> weights_;
  std::vector<double> before_;  // running sum at the start of each chunk
  std::vector<Candidate> candidates_;
};

}  // namespace spola
