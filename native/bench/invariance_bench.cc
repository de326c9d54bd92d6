// What the rules of invariance cost: the library's kernels beside kernels that are free of them, with the
// threads and shapes of a decoder's step. Not a test: run it on a quiet machine.
//
//   spola_invariance_bench [isa [threads [seconds]]]     default: best instruction set, 2 threads, 3 s a line
//
// Each line of output is a JSON object: model, op, at, ours_s and free_s (medians of alternating passes over
// all layers) and free_over_ours with the quartiles of the ratios of neighbouring passes.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "free/attention_pair.h"
#include "free/linear_pair.h"

using namespace spola;

namespace {

struct ModelShape {
  const char* name;
  GgmlType type;
  int hidden, heads, kv_heads, dim, mlp, layers;
};
constexpr ModelShape kModels[] = {{"smollm2", GgmlType::kQ4_1, 576, 9, 3, 64, 1536, 30},
                                  {"1b", GgmlType::kQ4_0, 2048, 32, 8, 64, 8192, 16}};

// What a line is about.
struct Line {
  const char* model;
  std::string op, at;
};

struct Bench {
  const Kernels* kernels;
  const free_order::Kernels* free;
  ThreadPool pool;
  double seconds;  // of each line
};

using Call = std::function<void()>;

double time_of(const Call& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

// Alternates, and who is first alternates too.
void compare(const Bench& bench, const Line& line, const Call& ours, const Call& free) {
  ours(), free();  // warm up
  std::vector<double> a, b, ratio;
  for (double spent = 0; spent < bench.seconds || a.size() < 9; spent += a.back() + b.back()) {
    const bool first = a.size() % 2 == 0;
    double x = first ? time_of(ours) : 0;
    b.push_back(time_of(free));
    if (!first) x = time_of(ours);
    a.push_back(x);
    ratio.push_back(b.back() / x);
  }
  std::printf("{\"model\": \"%s\", \"op\": \"%s\", \"at\": \"%s\", \"isa\": \"%s\", \"passes\": %zu, "
              "\"ours_s\": %.3e, \"free_s\": %.3e, \"free_over_ours\": %.3f, \"quartiles\": [%.3f, %.3f]}\n",
              line.model, line.op.c_str(), line.at.c_str(), bench.kernels->isa, a.size(), quantile(a, 0.5),
              quantile(b, 0.5), quantile(ratio, 0.5), quantile(ratio, 0.25), quantile(ratio, 0.75));
  std::fflush(stdout);
}

void attention(Bench& bench, const ModelShape& m) {
  const auto of = [&](const char* at, std::vector<std::pair<int, int>> slices) {
    free_order::AttentionPair pair(*bench.kernels, *bench.free, bench.pool,
                                   {m.heads, m.kv_heads, m.dim, m.layers, std::move(slices)});
    compare(bench, {m.name, "attention", at}, [&] { pair.ours(); }, [&] { pair.free(); });
  };
  of("decode 1 at 144", {{144, 1}});
  of("decode 16 at 144", std::vector<std::pair<int, int>>(16, {144, 1}));
  of("decode 1 at 2064", {{2064, 1}});
  of("prefill 512", {{0, 512}});
  of("prefill 2048", {{768, 512}});  // in the middle of its steps of 512
}

void linear(Bench& bench, const ModelShape& m) {
  const int qkv = (m.heads + 2 * m.kv_heads) * m.dim;
  free_order::LinearPair pair(*bench.kernels, *bench.free, bench.pool, m.type,
                              {{qkv, m.hidden},
                               {m.hidden, m.heads * m.dim},
                               {2 * m.mlp, m.hidden},
                               {m.hidden, m.mlp}},
                              m.layers);
  compare(bench, {m.name, "matrices", "decode 1"}, [&] { pair.ours(); }, [&] { pair.free(); });
  compare(bench, {m.name, "matrices, K split", "decode 1"}, [&] { pair.ours(); }, [&] { pair.split(); });
}

// 512 output rows of the matrix that reads the residual stream.
void many(Bench& bench, const ModelShape& m) {
  if (!bench.free->many_u4s) return;
  for (int rows : {16, 48}) {
    free_order::ManyPair pair(*bench.kernels, *bench.free, m.type, {512, m.hidden}, rows);
    const Line line{m.name, "matrices", std::to_string(rows) + " rows"};
    compare(bench, line, [&] { pair.ours(); }, [&] { pair.free(); });
  }
}

// Norm and quantization of rows that are in the first-level cache.
void norm(Bench& bench, const ModelShape& m) {
  constexpr int kTimes = 2000;
  const bench::Inputs in(1, m.hidden);
  std::vector<float> y(in.f.size());
  std::vector<int8_t> q(y.size());
  std::vector<float> d(y.size() / 32), s(d.size());
  std::vector<int16_t> h(y.size() / 16);
  const auto rows = [&](auto norm) {
    return [&, norm] {
      for (int i = 0; i < kTimes; ++i) {
        norm(in.f.data(), in.f.data(), 1e-5f, m.hidden, y.data());
        bench.kernels->quantize_a8(y.data(), m.hidden, q.data(), d.data(), s.data(), h.data());
      }
    };
  };
  compare(bench, {m.name, "norm and quantize", "2000 rows"}, rows(bench.kernels->rms_norm),
          rows(bench.free->rms_norm));
}

}  // namespace

int main(int argc, char** argv) {
  const Kernels* kernels = select_kernels(argc > 1 ? argv[1] : "");
  const int threads = argc > 2 ? std::atoi(argv[2]) : 2;
  const double seconds = argc > 3 ? std::atof(argv[3]) : 3.0;
  const free_order::Kernels* free = kernels ? free_order::find(kernels->isa) : nullptr;
  if (free == nullptr || threads < 1 || !(seconds > 0)) {
    std::fprintf(stderr, "usage: spola_invariance_bench [avx512vnni | avx2 [threads [seconds per line]]]\n");
    return 2;
  }
  Bench bench{kernels, free, ThreadPool(threads), seconds};
  for (const ModelShape& m : kModels) {
    norm(bench, m);
    attention(bench, m);
    linear(bench, m);
    many(bench, m);
  }
}
