// Rejection mode: whatever the drafts are drawn from, single tokens and pairs come out as the target has
// them.
#include <array>
#include <cmath>

#include "check.h"
#include "decoder/philox.h"
#include "decoder/sampler.h"

using namespace spola;

namespace {

constexpr int kVocab = 6;
using Row = std::array<float, kVocab>;

int draw(const Row& weights, double u) {
  double total = 0, sum = 0;
  for (float w : weights) total += w;
  for (int i = 0; i < kVocab; ++i) {
    sum += weights[size_t(i)];
    if (sum > u * total) return i;
  }
  return kVocab - 1;
}

// The probabilities that settings make of logits, by their definition.
std::array<double, kVocab> target(const Row& logits, const Params& p) {
  std::array<double, kVocab> out{};
  double total = 0;
  for (int i = 0; i < kVocab; ++i) {
    int better = 0;
    for (int j = 0; j < kVocab; ++j) better += logits[size_t(j)] > logits[size_t(i)];
    if (p.greedy ? better > 0 : p.top_k > 0 && better >= p.top_k) continue;
    out[size_t(i)] = std::exp(double(logits[size_t(i)]) / double(p.greedy ? 1 : p.temperature));
    total += out[size_t(i)];
  }
  for (double& x : out) x /= total;
  return out;
}

struct Model {
  Row first, draft;                              // logits, and weights that drafts are drawn from
  std::array<Row, kVocab> second, second_draft;  // the same after each first token
};

Model make_model(check::Random& random) {
  Model m;
  const auto logits = [&](Row& row) {
    for (float& x : row) x = random.symmetric(2.0f);
  };
  const auto weights = [&](Row& row) {
    for (float& x : row) x = random.below(5) == 0 ? 0.0f : random.unit();
    row[size_t(random.below(kVocab))] += 0.5f;
  };
  logits(m.first);
  weights(m.draft);
  for (Row& row : m.second) logits(row);
  for (Row& row : m.second_draft) weights(row);
  return m;
}

// Two tokens by way of two drafts, as a step and what follows it would take them.
std::pair<int, int> speculate(Sampler& sampler, const Model& m, const Request& request, int* accepted) {
  std::string error;
  bool good = false;
  const int x1 = draw(m.draft, uniform(request.seed, 10, 0, Purpose::kDraft));
  const int y1 = sampler.verify(m.first.data(), request, 10, nullptr, x1, m.draft.data(), &good, &error);
  CHECK(error.empty() && (!good || y1 == x1));
  *accepted += good;
  const float* second = m.second[size_t(y1)].data();
  if (!good) return {y1, sampler.sample(second, request, 11, nullptr, &error)};
  const Row& q = m.second_draft[size_t(x1)];
  const int x2 = draw(q, uniform(request.seed, 11, 0, Purpose::kDraft));
  const int y2 = sampler.verify(second, request, 11, nullptr, x2, q.data(), &good, &error);
  *accepted += good;
  return {y1, y2};
}

double chi_square(const std::vector<double>& seen, const std::vector<double>& expected, int* cells) {
  double chi = 0, rest_seen = 0, rest = 0;
  *cells = 0;
  for (size_t i = 0; i < seen.size(); ++i) {
    if (expected[i] < 10) {
      rest_seen += seen[i], rest += expected[i];
      continue;
    }
    chi += (seen[i] - expected[i]) * (seen[i] - expected[i]) / expected[i];
    ++*cells;
  }
  if (rest <= 0) return rest_seen > 0 ? INFINITY : chi;
  return chi + (rest_seen - rest) * (rest_seen - rest) / std::max(rest, 1.0);
}

double bound(int cells) { return cells + 5 * std::sqrt(2.0 * cells) + 10; }

void check_distribution(const Params& params, check::Random& random) {
  constexpr int kDraws = 60000;
  Sampler sampler(select_kernels(""), kVocab);
  const Model m = make_model(random);
  std::vector<double> pairs(kVocab * kVocab), want_pairs(kVocab * kVocab), drafts(kVocab), want(kVocab);
  const auto p1 = target(m.first, params);
  int accepted = 0;
  for (int t = 0; t < kDraws; ++t) {
    RequestIn in;
    in.seed = uint64_t(t) * 977 + random.bits() % 2;
    in.params = params;
    const auto [y1, y2] = speculate(sampler, m, Request(in, kVocab), &accepted);
    ++pairs[size_t(y1 * kVocab + y2)];
    ++drafts[size_t(draw(m.draft, uniform(in.seed, 10, 0, Purpose::kDraft)))];
  }
  double alpha = 0, q_total = 0;
  for (float w : m.draft) q_total += w;
  for (int i = 0; i < kVocab; ++i) {
    const auto p2 = target(m.second[size_t(i)], params);
    for (int j = 0; j < kVocab; ++j)
      want_pairs[size_t(i * kVocab + j)] = kDraws * p1[size_t(i)] * p2[size_t(j)];
    want[size_t(i)] = kDraws * p1[size_t(i)];
    alpha += std::min(p1[size_t(i)], m.draft[size_t(i)] / q_total);
  }
  int cells = 0;
  const double chi = chi_square(pairs, want_pairs, &cells);
  CHECK(chi < bound(cells));
  // The first draft is accepted with probability 1 - TV(p, q); a second comes only after it.
  CHECK(accepted > kDraws * alpha - 5 * std::sqrt(kDraws) &&
        accepted < 2 * kDraws * alpha + 5 * std::sqrt(kDraws));
  // The drafts alone would not pass: the test can tell.
  if (alpha < 0.95) CHECK(!(chi_square(drafts, want, &cells) < bound(cells)) || cells < 2);
}

// Equal distributions accept everything; a draft that the target cannot give is never accepted.
void check_ends() {
  Sampler sampler(select_kernels(""), kVocab);
  const Row logits = {0, 1, 2, 3, -1, 0.5f};
  Row same;
  for (int i = 0; i < kVocab; ++i) same[size_t(i)] = std::exp(logits[size_t(i)]);
  std::string error;
  bool good = false;
  for (int t = 0; t < 2000; ++t) {
    RequestIn in;
    in.seed = uint64_t(t);
    const int x = draw(same, uniform(in.seed, 3, 0, Purpose::kDraft));
    CHECK(sampler.verify(logits.data(), Request(in, kVocab), 3, nullptr, x, same.data(), &good, &error) ==
              x &&
          good);
    in.params.top_k = 2;
    const int y =
        sampler.verify(logits.data(), Request(in, kVocab), 3, nullptr, 0, same.data(), &good, &error);
    CHECK(!good && (y == 2 || y == 3));
    const Row never = {0, 0, 0, 1, 0, 0};
    const int z =
        sampler.verify(logits.data(), Request(in, kVocab), 3, nullptr, 1, never.data(), &good, &error);
    CHECK(!good && z == 2);
  }
}

}  // namespace

void test_verify() {
  check::Random random(31);
  for (int i = 0; i < 4; ++i) {
    Params params;
    check_distribution(params, random);
    params.temperature = 0.5f;
    params.top_k = 3;
    check_distribution(params, random);
  }
  Params greedy;
  greedy.greedy = true;
  greedy.temperature = 0.0f;
  check_distribution(greedy, random);
  check_ends();
}
