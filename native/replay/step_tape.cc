#include "step_tape.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace spola::replay {
namespace {

template <class T>
T at(const std::vector<Value>& items, size_t i) {
  return As<T>::from(items[i]);
}

Params params_of(const Value& v) {
  const std::vector<Value>& p = items_of(v, 12);
  Params out;
  out.temperature = at<float>(p, 0);
  out.greedy = at<bool>(p, 1);
  out.top_p = at<double>(p, 2);
  out.top_k = at<int64_t>(p, 3);
  out.min_p = at<float>(p, 4);
  out.repetition = at<float>(p, 5);
  out.presence = at<float>(p, 6);
  out.frequency = at<float>(p, 7);
  out.logprobs = at<int>(p, 8);
  out.prompt_logprobs = at<int>(p, 9);
  out.processed = at<bool>(p, 10);
  out.min_tokens = at<int>(p, 11);
  return out;
}

}  // namespace

const std::vector<int32_t>& TapedStep::kept_ids(const Value& v) {
  return ids.emplace_back(words_of<int32_t>(v));
}

RequestIn TapedStep::request(const Value& v) {
  const std::vector<Value>& t = items_of(v, 13);
  RequestIn r;
  r.id = at<int64_t>(t, 0);
  r.choice = at<int32_t>(t, 1);
  r.seed = at<uint64_t>(t, 2);
  const std::vector<int32_t>& known = kept_ids(t[3]);
  r.ids = known.data();
  r.n_ids = static_cast<int>(known.size());
  r.n_prompt = at<int>(t, 4);
  r.want = static_cast<Want>(at<int>(t, 5));
  r.problem = at<std::string>(t, 6);
  r.params = params_of(t[7]);
  for (const auto& [id, bias] : at<std::vector<std::tuple<int32_t, float>>>(t, 8)) {
    r.params.logit_bias.emplace_back(id, bias);
  }
  r.params.allowed = words_of<uint32_t>(t[9]);
  r.params.ends = words_of<int32_t>(t[10]);
  for (const Value& bad : items_of(t[11])) r.params.bad.push_back(words_of<int32_t>(bad));
  r.adapter = at<int>(t, 12);
  return r;
}

SliceIn TapedStep::slice(const Value& v) {
  const std::vector<Value>& t = items_of(v, 9);
  SliceIn s;
  s.id = at<int64_t>(t, 0);
  s.start = at<int>(t, 1);
  const std::vector<int32_t>& rows = kept_ids(t[2]);
  s.ids = rows.data();
  s.n = static_cast<int>(rows.size());
  for (const Value& table : items_of(t[3])) {
    const std::vector<int32_t>& blocks = kept_ids(table);
    s.tables.push_back({blocks.data(), static_cast<int>(blocks.size())});
  }
  s.n_head = at<int>(t, 4);
  s.n_drafts = at<int>(t, 5);
  const std::vector<int32_t>& targets = kept_ids(t[6]);
  s.targets = targets.data();
  s.n_targets = static_cast<int>(targets.size());
  if (t[7].tag != 'n') {
    const std::vector<uint32_t>& words = masks.emplace_back(words_of<uint32_t>(t[7]));
    s.masks = words.data();
    s.mask_words = static_cast<int64_t>(words.size());
  }
  s.proposals = at<int64_t>(t, 8);
  return s;
}

TapedStep::TapedStep(const Value& arguments) {
  const std::vector<Value>& a = items_of(arguments, 5);
  for (const Value& v : items_of(a[0])) step.fresh.push_back(request(v));
  step.gone = As<std::vector<int64_t>>::from(a[1]);
  for (const auto& [group, source, target] : at<std::vector<std::tuple<int, int, int>>>(a, 2)) {
    step.copies.push_back({group, source, target});
  }
  for (const auto& [group, block] : at<std::vector<std::tuple<int, int>>>(a, 3)) {
    step.zero.push_back({group, block});
  }
  for (const Value& v : items_of(a[4])) step.slices.push_back(slice(v));
}

void Comparison::number(double found, double want) {
  ++numbers;
  if (std::bit_cast<uint64_t>(found) == std::bit_cast<uint64_t>(want)) return;
  ++unequal;
  const double off = std::fabs(found - want);
  furthest = std::isnan(off) ? HUGE_VAL : std::max(furthest, off);
}

void Comparison::floats(const std::vector<float>& found, const Value& want) {
  if (want.tag == 'n') return same(found.empty());
  const std::vector<float> values = words_of<float>(want);
  same(found.size() == values.size());
  for (size_t i = 0; i < std::min(found.size(), values.size()); ++i) number(found[i], values[i]);
}

void Comparison::logprobs(const std::vector<LogprobOut>& found, const Value& want) {
  if (want.tag == 'n') return same(found.empty());
  const std::vector<Value>& entries = items_of(want);
  same(found.size() == entries.size());
  for (size_t i = 0; i < std::min(found.size(), entries.size()); ++i) {
    const std::vector<Value>& entry = items_of(entries[i], 3);
    const std::vector<Value>& top = items_of(entry[2]);
    same(found[i].id == int_of(entry[0]) && found[i].top.size() == top.size());
    number(found[i].logprob, float_of(entry[1]));
    for (size_t j = 0; j < std::min(found[i].top.size(), top.size()); ++j) {
      const std::vector<Value>& pair = items_of(top[j], 2);
      same(found[i].top[j].first == int_of(pair[0]));
      number(found[i].top[j].second, float_of(pair[1]));
    }
  }
}

void Comparison::output(const SliceOut& found, const Value& want) {
  const std::vector<Value>& w = items_of(want, 8);
  const auto recorded = As<std::vector<int32_t>>::from(w[0]);
  tokens += static_cast<long>(recorded.size());
  same(found.ids == recorded);
  same(found.accepted == int_of(w[1]));
  logprobs(found.logprobs, w[2]);
  same(found.scores.size() == (w[3].tag == 'n' ? 0 : items_of(w[3]).size()));
  for (size_t i = 0; i < std::min(found.scores.size(), w[3].items.size()); ++i) {
    number(found.scores[i], float_of(w[3].items[i]));
  }
  floats(found.vector, w[4]);
  floats(found.logits, w[5]);
  same(found.error == (w[6].tag == 'n' ? "" : bytes_of(w[6])));
  logprobs(found.prompt_logprobs, w[7]);
}

void Comparison::outputs(const std::vector<SliceOut>& found, const Value& recorded) {
  const std::vector<Value>& want = items_of(recorded);
  same(found.size() == want.size());
  for (size_t i = 0; i < std::min(found.size(), want.size()); ++i) output(found[i], want[i]);
}

}  // namespace spola::replay
