// What one step is given and gives: the C++ side of spola.core.step, as plain data.
//
// Pointers are the caller's and must live until Decoder::execute returns.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace spola {

enum class Want : int32_t { kSample = 0, kScore, kEmbedLast, kEmbedMean, kLogits };

struct Params {
  float temperature = 1.0f;
  bool greedy = false;
  double top_p = 1.0;
  int64_t top_k = 0;  // below 1: off
  float min_p = 0.0f;
  float repetition = 1.0f;
  float presence = 0.0f;
  float frequency = 0.0f;
  int logprobs = -1;         // alternatives per token; -1: none asked for
  int prompt_logprobs = -1;  // the same of prompt tokens
  bool processed = false;    // log-probabilities of generated tokens are of the distribution drawn from
  int min_tokens = 0;        // of output before an id of `ends` can be drawn
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::vector<uint32_t> allowed;          // a bit per id, as a mask; empty: all ids
  std::vector<int32_t> ends;              // sorted
  std::vector<std::vector<int32_t>> bad;  // sequences that the output must not complete

  bool counts_tokens() const { return repetition != 1.0f || presence != 0.0f || frequency != 0.0f; }
};

struct RequestIn {
  int64_t id = 0;
  int32_t choice = 0;
  uint64_t seed = 0;
  const int32_t* ids = nullptr;
  int n_ids = 0;
  int n_prompt = 0;
  Params params;
  Want want = Want::kSample;
  int adapter = -1;     // as Decoder::add_adapter gave it; -1: none
  std::string problem;  // not empty: every slice of the request ends with this error
};

struct Table {
  const int32_t* blocks = nullptr;
  int count = 0;
};

// Head rows are the last n_head rows. Of a sampling slice the first n_targets of them have the prompt token
// that follows; the others are drawn from.
struct SliceIn {
  int64_t id = 0;
  int start = 0;
  const int32_t* ids = nullptr;
  int n = 0;
  std::vector<Table> tables;  // one per KV group
  int n_head = 0;
  int n_drafts = 0;
  const int32_t* targets = nullptr;
  int n_targets = 0;
  const uint32_t* masks = nullptr;  // [n_head - n_targets][ceil(vocab / 32)] or null
  int64_t mask_words = 0;           // words in all
  // What Decoder::hold got the drafts' distributions as; 0: match mode. Without drafts: the row is drawn as a
  // draft, and what it was drawn from is held under this handle, after the rows held before.
  int64_t proposals = 0;
};

struct CopyIn {
  int group, source, target;
};

struct ZeroIn {
  int group, block;
};

struct StepIn {
  std::vector<RequestIn> fresh;
  std::vector<int64_t> gone;
  std::vector<CopyIn> copies;
  std::vector<ZeroIn> zero;
  std::vector<SliceIn> slices;
};

struct LogprobOut {
  int32_t id = 0;
  double logprob = 0.0;
  std::vector<std::pair<int32_t, double>> top;
};

struct SliceOut {
  std::vector<int32_t> ids;
  int accepted = 0;
  std::vector<LogprobOut> logprobs;
  std::vector<LogprobOut> prompt_logprobs;
  std::vector<double> scores;
  std::vector<float> vector;
  std::vector<float> logits;
  std::string error;
};

}  // namespace spola
