// What the decoder remembers of a request between steps: penalty counts, pooling sums, settings.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "decoder/step.h"

namespace spola {

struct Request {
  int64_t id = 0;
  int32_t choice = 0;
  uint64_t seed = 0;
  Want want = Want::kSample;
  Params params;
  std::string problem;
  int adapter = -1;
  int n_prompt = 0;
  int total = 0;                                // tokens named when the request came
  int known = 0;                                // tokens counted so far
  std::unordered_map<int32_t, int32_t> counts;  // occurrences in the output; 0: in the prompt only
  std::vector<double> sums;                     // of final hidden states, for want embed_mean
  int pooled = 0;                               // rows in `sums`
  std::vector<int32_t> output;                  // kept when there are bad sequences

  // Ids outside of the vocabulary have no logit to lower: they are not counted.
  Request(const RequestIn& in, int vocab)
      : id(in.id),
        choice(in.choice),
        seed(in.seed),
        want(in.want),
        params(in.params),
        problem(in.problem),
        adapter(in.adapter),
        n_prompt(in.n_prompt),
        total(in.n_ids),
        known(in.n_ids) {
    if (!params.bad.empty()) output.assign(in.ids + in.n_prompt, in.ids + in.n_ids);
    if (!params.counts_tokens()) return;
    for (int i = 0; i < in.n_ids; ++i) {
      if (in.ids[i] < 0 || in.ids[i] >= vocab) continue;
      counts[in.ids[i]] += i < in.n_prompt ? 0 : 1;
    }
  }

  // One more token of the output.
  void append(int32_t token) {
    ++known;
    if (params.counts_tokens()) ++counts[token];
    if (!params.bad.empty()) output.push_back(token);
  }
};

}  // namespace spola
