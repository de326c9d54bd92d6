// What the decoder is built of: threads, memory, the plan of attention, random numbers, sampling.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "base/arena.h"
#include "base/thread_pool.h"
#include "check.h"
#include "decoder/attention_plan.h"
#include "decoder/philox.h"
#include "decoder/sampler.h"
#include "decoder/self_check.h"

using namespace spola;

namespace {

// Every item is done once, by whoever takes it, and a stage sees all that the one before it wrote; also with
// far more workers than processors, some of which dawdle over an item or come late.
void check_stages(int threads, int calls, int stages, int sets) {
  ThreadPool pool(threads);
  const int count = 3 * threads + 1;
  std::vector<int> turn[2] = {std::vector<int>(size_t(count)), std::vector<int>(size_t(count))};
  std::vector<std::atomic<int>> done(static_cast<size_t>(count * sets));
  std::atomic<int> wrong{0};
  for (int call = 0; call < calls; ++call) {
    for (int& t : turn[1]) t = -1;
    for (auto& d : done) d = 0;
    pool.run(stages, [&](int worker, int stage) {
      if ((worker + stage + call) % 5 == 4) std::this_thread::yield();
      for (int set = 0; set < sets; ++set) {
        for (Range r; r = pool.claim(worker, stage, set, count), r.begin < r.end;) {
          for (int i = r.begin; i < r.end; ++i) {
            const int before = done[size_t(set * count + i)].fetch_add(1, std::memory_order_relaxed);
            wrong += before != stage || r.end > pool.end_of_range(i, count);
            if (set > 0) continue;
            for (int t : turn[(stage + 1) % 2]) wrong += t != stage - 1;
            turn[stage % 2][size_t(i)] = stage;
            if ((i + worker) % 7 == 6) std::this_thread::yield();
          }
        }
      }
      wrong += sets == 1 && pool.left(stage, count);
    });
    for (auto& d : done) wrong += d != stages;
    if (call % 8 == 7) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // workers sleep
  }
  CHECK(wrong == 0);
}

void check_each(int threads) {
  ThreadPool pool(threads);
  std::vector<int> calls(static_cast<size_t>(threads));
  for (int i = 0; i < 5; ++i) pool.each([&](int worker) { ++calls[size_t(worker)]; });
  for (int n : calls) CHECK(n == 5);
}

// Several callers of one pool take turns; whoever asks for as many workers has the same one while it lives.
void check_shared() {
  std::shared_ptr<ThreadPool> pool = shared_pool(3);
  CHECK(shared_pool(3) == pool && shared_pool(2) != pool && pool->size() == 3);
  std::atomic<int> wrong{0};
  const auto caller = [&] {
    for (int call = 0; call < 200; ++call) {
      std::vector<int> done(7);  // each item by one worker
      shared_pool(3)->run(1, [&](int worker, int stage) {
        for (Range r; r = pool->claim(worker, stage, 0, 7), r.begin < r.end;) {
          for (int i = r.begin; i < r.end; ++i) ++done[size_t(i)];
        }
      });
      for (int n : done) wrong += n != 1;
    }
  };
  std::thread others[] = {std::thread(caller), std::thread(caller)};
  caller();
  for (std::thread& t : others) t.join();
  CHECK(wrong == 0);
}

void check_shares() {
  for (int count : {0, 1, 7, 100}) {
    for (int parts : {1, 2, 3, 16}) {
      ThreadPool pool(parts);
      int next = 0;
      for (int p = 0; p < parts; ++p) {
        const Range r = share(count, p, parts);
        CHECK(r.begin == next && r.end >= r.begin && r.end - r.begin <= (count + parts - 1) / parts);
        for (int i = r.begin; i < r.end; ++i) CHECK(pool.end_of_range(i, count) == r.end);
        next = r.end;
      }
      CHECK(next == count);
    }
  }
}

void check_arena() {
  Arena arena(64 << 20, true);
  uint8_t* last = nullptr;
  for (size_t bytes : {size_t{1}, size_t{100}, size_t{20} << 20, size_t{3}, size_t{20} << 20}) {
    uint8_t* p = arena.allocate(bytes);
    CHECK(reinterpret_cast<uintptr_t>(p) % 64 == 0 && p > last);
    CHECK(p[0] == 0 && p[bytes - 1] == 0);
    std::memset(p, 7, bytes);
    last = p + bytes - 1;
  }
  bool refused = false;
  try {
    arena.allocate(size_t{30} << 20);
  } catch (const std::bad_alloc&) {
    refused = true;
  }
  CHECK(refused);
}

void check_copies() {
  KvPool pool({1, 1, 4, 4, 0, KvType::kF32, KvType::kF16}, 4, false);
  CHECK(pool.bytes() == 4u * 32 * (4 * 4 + 4 * 2));
  for (int b = 0; b < 4; ++b) pool.k(b, 0, 0)[5] = static_cast<uint8_t>(b + 1);
  pool.copy({{0, 1}, {1, 2}, {2, 0}});  // a cycle: only right when all are read first
  CHECK(pool.k(0, 0, 0)[5] == 3 && pool.k(1, 0, 0)[5] == 1 && pool.k(2, 0, 0)[5] == 2);
  pool.zero(3);
  CHECK(pool.k(3, 0, 0)[5] == 0);
  pool.poison(3);
  float k;
  std::memcpy(&k, pool.k(3, 0, 0), sizeof k);
  CHECK(std::isnan(k) && pool.k(0, 0, 0)[5] == 3);
  // int8: a byte each, and scales for groups of 32 dimensions, the last of one.
  const KvPool small({1, 2, 33, 64, 0, KvType::kI8, KvType::kI8}, 1, false);
  CHECK(small.bytes() == 2u * 32 * (33 + 2 * 2 + 64 + 2 * 2));
}

// Every segment of every row and KV head is computed once, into a record of its own.
void check_plan(int workers, int window, int spare, check::Random& random) {
  const KvShape shape{1, 1 + random.below(3), 8, 8, window, KvType::kF16, KvType::kF16};
  std::vector<RowSpan> spans(static_cast<size_t>(1 + random.below(5)));
  int rows = 0;
  for (RowSpan& s : spans) {
    s.position = random.below(3) == 0 ? 0 : random.below(1500);
    s.rows = random.below(2) == 0 ? 1 : 1 + random.below(300);
    rows += s.rows;
  }
  AttentionPlan plan;
  plan_attention(spans, shape, workers, spare, &plan);
  CHECK(int(plan.record.size()) == rows && int(plan.parts.size()) == rows);
  std::map<std::pair<int, int>, std::set<int>> segments;  // (row, head) -> segments
  std::map<std::pair<int, int>, std::set<int>> records;   // (row, head) -> records
  std::vector<int> position;
  for (const RowSpan& s : spans) {
    for (int i = 0; i < s.rows; ++i) position.push_back(s.position + i);
  }
  for (const AttentionItem& item : plan.items) {
    for (int r = 0; r < item.rows; ++r) {
      const auto key = std::make_pair(item.row + r, item.kv_head);
      CHECK(position[size_t(item.row + r)] == item.position + r && item.rows <= kQueryRows);
      CHECK(first_visible(shape, item.position + r) / kBlock == first_visible(shape, item.position) / kBlock);
      for (int s = 0; s < item.segments; ++s) CHECK(segments[key].insert(item.segment + s).second);
      CHECK(records[key].insert(item.record + r * item.stride).second);
    }
    CHECK((item.position + item.rows - 1) / kQueryRows == item.position / kQueryRows);
  }
  int used = 0;
  for (int r = 0; r < rows; ++r) {
    const int first = first_visible(shape, position[size_t(r)]) / kSegment,
              last = position[size_t(r)] / kSegment;
    for (int h = 0; h < shape.heads; ++h) {
      const std::set<int>& found = segments[{r, h}];
      CHECK(int(found.size()) == last - first + 1 && *found.begin() == first && *found.rbegin() == last);
      const std::set<int>& where = records[{r, h}];
      CHECK(*where.begin() == plan.record[size_t(r)] && int(where.size()) == plan.parts[size_t(r)]);
      CHECK(*where.rbegin() == plan.record[size_t(r)] + plan.parts[size_t(r)] - 1);
    }
    used += plan.parts[size_t(r)];
  }
  CHECK(used <= rows + spare);
}

// Known answers of the Random123 distribution: the first two words for keys and counters of zeros and ones.
void check_philox() {
  CHECK(uniform(0, 0, 0, Purpose::kTarget) ==
        static_cast<double>(((uint64_t{0x6627e8d5} << 32) | 0xe169c58d) >> 11) * 0x1p-53);
  std::set<double> seen;
  for (uint32_t i = 0; i < 64; ++i) {
    seen.insert(uniform(i, 1, 1, Purpose::kTarget));
    seen.insert(uniform(uint64_t{i + 1} << 32, 1, 1, Purpose::kTarget));
    seen.insert(uniform(7, i + 2, 1, Purpose::kTarget));
    seen.insert(uniform(7, 1, i + 2, Purpose::kTarget));
  }
  seen.insert(uniform(7, 1, 1, Purpose::kDraft));
  CHECK(seen.size() == 257);
}

// The definition, with a full sort and f64 sums as docs/numerics.md lays them down.
int32_t by_definition(const std::vector<float>& logits, const Params& p, double u) {
  const int n = int(logits.size());
  std::vector<float> l = logits;
  for (float& x : l) x /= p.temperature;
  std::vector<int> order(l.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return l[size_t(a)] > l[size_t(b)]; });
  std::vector<float> e(l.size());
  for (size_t i = 0; i < l.size(); ++i) e[i] = l[i] - l[size_t(order[0])];
  scalar_kernels()->exp_many(e.data(), n, e.data());
  double total = 0;
  const bool by_count = p.top_k > 0 && p.top_k < n;
  if (by_count) {
    order.resize(size_t(p.top_k));
    for (int i : order) total += e[size_t(i)];
  } else {
    for (int c = 0; c < n; c += 4096) {
      double sum = 0;
      for (int i = c; i < std::min(n, c + 4096); ++i) sum += e[size_t(i)];
      total += sum;
    }
  }
  if (p.top_p < 1) {
    double sum = 0;
    size_t keep = 0;
    while (keep < order.size() && sum < p.top_p * total) sum += e[size_t(order[keep++])];
    order.resize(std::max<size_t>(keep, 1));
  }
  std::erase_if(order, [&](int i) { return e[size_t(i)] < p.min_p; });
  std::sort(order.begin(), order.end());
  double all = 0, sum = 0;
  for (int i : order) all += e[size_t(i)];
  for (int i : order) {
    sum += e[size_t(i)];
    if (sum > u * all) return i;
  }
  return order.back();
}

void check_sampler(int vocab, check::Random& random) {
  std::vector<float> logits(static_cast<size_t>(vocab));
  const float spread = random.below(2) == 0 ? 0.5f : 4.0f;  // flat enough that a top-p needs thousands
  for (float& x : logits) x = random.symmetric(spread);
  if (random.below(3) == 0) {  // ties
    for (float& x : logits) x = std::round(x * 4) / 4;
  }
  Sampler sampler(select_kernels(""), vocab);
  for (int i = 0; i < 12; ++i) {
    RequestIn in;
    in.seed = random.bits();
    in.choice = random.below(3);
    in.params.temperature = random.below(2) == 0 ? 1.0f : 0.3f + random.unit();
    const int64_t counts[] = {0, 0, 1, 20, 1000, vocab};
    in.params.top_k = counts[random.below(6)];
    in.params.top_p = random.below(2) == 0 ? 1.0 : double(random.unit());
    in.params.min_p = random.below(3) == 0 ? 0.2f : 0.0f;
    const Request request(in, vocab);
    std::string error;
    const int position = random.below(1000);
    const double u = uniform(in.seed, uint32_t(position), uint32_t(in.choice), Purpose::kTarget);
    const int32_t want = by_definition(logits, in.params, u);
    CHECK(sampler.sample(logits.data(), request, position, nullptr, &error) == want && error.empty());
  }
  const LogprobOut out = sampler.logprob(logits.data(), 1, 20);
  double sum = 0;
  for (float x : logits) sum += std::exp(double(x));
  CHECK(std::fabs(out.logprob - (logits[1] - std::log(sum))) < 1e-5);
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return logits[size_t(a)] > logits[size_t(b)]; });
  CHECK(out.top.size() == size_t(std::min(20, vocab)));
  for (size_t i = 0; i < out.top.size(); ++i) CHECK(out.top[i].first == order[i]);
}

}  // namespace

namespace {

void nothing(const uint8_t*, const Activations&, int, int, float*) {}

// A table passes its own check; one with a kernel that does nothing, or an inexact one, is found out by name.
void check_self_check() {
  for (const Kernels* kernels : check::variants()) {
    CHECK(self_check(*kernels).empty());
    for (int s = 0; s < static_cast<int>(Scheme::kCount); ++s) {
      for (int f = 0; f < 3; ++f) {
        if (!kernels->tile[s][f]) continue;
        Kernels broken = *kernels;
        broken.tile[s][f] = nothing;
        CHECK(self_check(broken).rfind("tile " + std::to_string(s) + "/" + std::to_string(f), 0) == 0);
      }
    }
    Kernels broken = *kernels;
    broken.silu_mul = broken.gelu_tanh_mul;
    CHECK(self_check(broken) == "silu_mul");
    broken = *kernels;
    broken.attention_merge = [](const float*, int, float*) {};
    CHECK(self_check(broken) == "attention");
    broken = *kernels;
    broken.quantize_a16 = [](const float*, int, int16_t*, float*) { return true; };
    CHECK(self_check(broken) == "quantize_a16");
  }
}

}  // namespace

void test_decoder() {
  check_self_check();
  check::Random random(5);
  for (int threads : {1, 2, 3, 7, 16}) {
    check_stages(threads, 16, threads > 3 ? 6 : 60, 1);
    check_stages(threads, 4, 6, 3);
    check_each(threads);
  }
  check_shares();
  check_shared();
  check_arena();
  check_copies();
  for (int i = 0; i < 60; ++i) {
    check_plan(1 + random.below(8), i % 3 == 0 ? 1 + random.below(700) : 0, i % 4 == 0 ? 3 : 1024, random);
  }
  check_philox();
  for (int vocab : {20, 255, 4096, 5000, 49152}) check_sampler(vocab, random);
}
