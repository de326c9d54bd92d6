// Steps and what came of them on a tape. The tuples are those of bind_step.cc.
#pragma once

#include <deque>
#include <vector>

#include "decoder/step.h"
#include "tape.h"

namespace spola::replay {

// A step, with the words that its pointers point to.
struct TapedStep {
  StepIn step;
  std::deque<std::vector<int32_t>> ids;
  std::deque<std::vector<uint32_t>> masks;

  explicit TapedStep(const Value& arguments);

 private:
  const std::vector<int32_t>& kept_ids(const Value& v);
  RequestIn request(const Value& v);
  SliceIn slice(const Value& v);
};

// How outputs compare with the recorded ones.
struct Comparison {
  long tokens = 0;
  long wrong = 0;  // tokens, ids of alternatives, counts, errors
  long numbers = 0;
  long unequal = 0;  // numbers whose bits differ
  double furthest = 0;

  void outputs(const std::vector<SliceOut>& found, const Value& recorded);

 private:
  void same(bool equal) { wrong += !equal; }
  void number(double found, double want);
  void floats(const std::vector<float>& found, const Value& want);
  void logprobs(const std::vector<LogprobOut>& found, const Value& want);
  void output(const SliceOut& found, const Value& want);
};

}  // namespace spola::replay
