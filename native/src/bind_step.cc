// Steps from Python and back. Layouts of the tuples (backends/native/runner.py makes and reads them):
//   request  (id, choice, seed, ids, n_prompt, want, problem, (temperature, greedy, top_p, top_k, min_p,
//             repetition, presence, frequency, logprobs, prompt_logprobs, processed, min_tokens),
//             ((id, bias), ...), allowed, ends, (bad, ...), adapter)
//   slice    (id, start, ids, tables, n_head, n_drafts, targets, masks, proposals), as spola.core.step.Slice
//   output   (ids, accepted, logprobs, scores, vector, logits, error, prompt_logprobs), as SliceOutput there
// Ids, tables, targets, ends, bad: bytes of int32. Masks, allowed: bytes of uint32; allowed may be empty.

#include "bind_step.h"

#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

namespace nb = nanobind;

namespace spola {
namespace {

template <class T>
T get(nb::handle tuple, Py_ssize_t i) {
  return nb::cast<T>(tuple[i]);
}

// The 32-bit words of a bytes object. They live as long as the object.
template <class T>
const T* words(nb::handle object, int* count, const char* what) {
  if (!PyBytes_Check(object.ptr())) throw nb::type_error((std::string(what) + " must be bytes").c_str());
  const Py_ssize_t size = PyBytes_Size(object.ptr());
  if (size % 4 != 0 || size / 4 > INT32_MAX) {
    throw nb::value_error((std::string(what) + " is no whole number of 32-bit values").c_str());
  }
  *count = static_cast<int>(size / 4);
  return reinterpret_cast<const T*>(PyBytes_AsString(object.ptr()));
}

template <class T>
std::vector<T> copied(nb::handle object, const char* what) {
  int count = 0;
  const T* first = words<T>(object, &count, what);
  return {first, first + count};
}

RequestIn request_in(nb::handle t) {
  RequestIn r;
  r.id = get<int64_t>(t, 0);
  r.choice = get<int32_t>(t, 1);
  r.seed = get<uint64_t>(t, 2);
  r.ids = words<int32_t>(nb::object(t[3]), &r.n_ids, "RequestState.ids");
  r.n_prompt = get<int>(t, 4);
  const int want = get<int>(t, 5);
  if (want < 0 || want > static_cast<int>(Want::kLogits))
    throw nb::value_error("RequestState.want is not known");
  r.want = static_cast<Want>(want);
  r.problem = get<std::string>(t, 6);
  const nb::object p = t[7];
  r.params.temperature = get<float>(p, 0);
  r.params.greedy = get<bool>(p, 1);
  r.params.top_p = get<double>(p, 2);
  r.params.top_k = get<int64_t>(p, 3);
  r.params.min_p = get<float>(p, 4);
  r.params.repetition = get<float>(p, 5);
  r.params.presence = get<float>(p, 6);
  r.params.frequency = get<float>(p, 7);
  r.params.logprobs = get<int>(p, 8);
  r.params.prompt_logprobs = get<int>(p, 9);
  r.params.processed = get<bool>(p, 10);
  r.params.min_tokens = get<int>(p, 11);
  for (nb::handle pair : nb::object(t[8]))
    r.params.logit_bias.emplace_back(get<int32_t>(pair, 0), get<float>(pair, 1));
  r.params.allowed = copied<uint32_t>(nb::object(t[9]), "allowed");
  r.params.ends = copied<int32_t>(nb::object(t[10]), "RequestState.ends");
  r.adapter = get<int>(t, 12);
  for (nb::handle bad : nb::object(t[11])) r.params.bad.push_back(copied<int32_t>(bad, "RequestState.bad"));
  return r;
}

SliceIn slice_in(nb::handle t) {
  SliceIn s;
  s.id = get<int64_t>(t, 0);
  s.start = get<int>(t, 1);
  s.ids = words<int32_t>(nb::object(t[2]), &s.n, "Slice.ids");
  for (nb::handle table : nb::object(t[3])) {
    Table& out = s.tables.emplace_back();
    out.blocks = words<int32_t>(table, &out.count, "Slice.tables");
  }
  s.n_head = get<int>(t, 4);
  s.n_drafts = get<int>(t, 5);
  s.targets = words<int32_t>(nb::object(t[6]), &s.n_targets, "Slice.targets");
  const nb::object masks = t[7];
  if (!masks.is_none()) {
    int count = 0;
    s.masks = words<uint32_t>(masks, &count, "Slice.masks");
    s.mask_words = count;
  }
  s.proposals = get<int64_t>(t, 8);
  return s;
}

nb::object bytes_or_none(const std::vector<float>& values) {
  if (values.empty()) return nb::none();
  return nb::bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

nb::object logprob_out(const LogprobOut& l) {
  nb::list top;
  for (const auto& [id, logprob] : l.top) top.append(nb::make_tuple(id, logprob));
  return nb::make_tuple(l.id, l.logprob, nb::tuple(top));
}

nb::object logprobs_or_none(const std::vector<LogprobOut>& entries) {
  if (entries.empty()) return nb::none();
  nb::list list;
  for (const LogprobOut& l : entries) list.append(logprob_out(l));
  return nb::tuple(list);
}

nb::tuple slice_out(const SliceOut& s) {
  nb::list ids;
  for (int32_t id : s.ids) ids.append(id);
  nb::object scores = nb::none();
  if (!s.scores.empty()) {
    nb::list list;
    for (double score : s.scores) list.append(score);
    scores = nb::tuple(list);
  }
  nb::object error = nb::none();
  if (!s.error.empty()) error = nb::str(s.error.c_str());
  return nb::make_tuple(nb::tuple(ids), s.accepted, logprobs_or_none(s.logprobs), scores,
                        bytes_or_none(s.vector), bytes_or_none(s.logits), error,
                        logprobs_or_none(s.prompt_logprobs));
}

}  // namespace

nb::list execute(Decoder& decoder, nb::list fresh, nb::list gone, nb::list copies, nb::list zero,
                 nb::list slices) {
  StepIn step;
  for (nb::handle t : fresh) step.fresh.push_back(request_in(t));
  for (nb::handle id : gone) step.gone.push_back(nb::cast<int64_t>(id));
  for (nb::handle t : copies) step.copies.push_back({get<int>(t, 0), get<int>(t, 1), get<int>(t, 2)});
  for (nb::handle t : zero) step.zero.push_back({get<int>(t, 0), get<int>(t, 1)});
  for (nb::handle t : slices) step.slices.push_back(slice_in(t));
  std::vector<SliceOut> out;
  {
    nb::gil_scoped_release release;
    out = decoder.execute(step);
  }
  nb::list result;
  for (const SliceOut& s : out) result.append(slice_out(s));
  return result;
}

}  // namespace spola
