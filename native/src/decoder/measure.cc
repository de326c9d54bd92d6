#include "decoder/measure.h"

#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>
#include <stdexcept>

#include "base/arena.h"
#include "base/thread_pool.h"
#include "kernels/pack.h"
#include "kernels/row_groups.h"

namespace spola {
namespace {

constexpr int kMostRows = 4096;
constexpr int kPattern = 0x2c;  // in every byte: small finite scales, and codes that are not zero

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Activation rows in every format, all alike: the kernels' speed does not depend on values.
struct Rows {
  std::vector<float> f32, d8, s8, d16;
  std::vector<int8_t> q8;
  std::vector<int16_t> h8, q16;
  std::vector<uint8_t> groups;
  Activations a;

  Rows(const Kernels& kernels, ActFormat format, int m, int k) {
    const size_t n = static_cast<size_t>(m) * static_cast<size_t>(k);
    f32.assign(n, 0.25f);
    q8.assign(n, 3);
    q16.assign(n, 300);
    d8.assign(n / 32 + 1, 0.01f);
    s8.assign(n / 32 + 1, 0.96f);
    h8.assign(n / 16 + 2, 48);
    d16.assign(static_cast<size_t>(m), 0.001f);
    a.k = k;
    a.f32 = f32.data();
    a.q8 = q8.data();
    a.d8 = d8.data();
    a.s8 = s8.data();
    a.h8 = h8.data();
    a.q16 = q16.data();
    a.d16 = d16.data();
    if (format != ActFormat::kA8 || kernels.groups == 0 || m <= kernels.rows) return;
    groups.resize(grouped_bytes(static_cast<size_t>(m), static_cast<size_t>(k)));
    put_into_groups(a, m, kernels.rows, groups.data());
  }
};

// Multiply-adds per second of `threads` threads that all do work(rounds), which returns how many that were, one
// figure per pass.
std::vector<double> rates_of(const std::function<double(long)>& work, int threads, int passes) {
  constexpr double kSeconds = 0.001;  // short, so that some passes are not disturbed
  long rounds = 1000;
  for (double took = 0; took < kSeconds / 2 && rounds < (1L << 40);) {
    rounds *= 2;
    const double start = now();
    work(rounds);
    took = now() - start;
  }
  const std::shared_ptr<ThreadPool> pool = shared_pool(threads);
  std::vector<double> macs(static_cast<size_t>(threads));
  std::vector<double> rates;
  for (int pass = 0; pass < passes; ++pass) {
    const double start = now();
    pool->each([&](int worker) { macs[static_cast<size_t>(worker)] = work(2 * rounds); });
    rates.push_back(std::accumulate(macs.begin(), macs.end(), 0.0) / (now() - start));
  }
  return rates;
}

}  // namespace

std::vector<double> measure_peak(const Kernels& kernels, ActFormat format, int threads, int passes) {
  if (threads < 1 || threads > 1024 || passes < 1)
    throw std::invalid_argument("at least 1 thread and 1 pass, please");
  return rates_of([&](long rounds) { return kernels.peak(format, rounds); }, threads, passes);
}

std::vector<double> measure_mix(const Kernels& kernels, GgmlType type, bool precise, int passes) {
  const Scheme scheme = scheme_of(type, precise);
  if (scheme == Scheme::kCount) throw std::invalid_argument("the type is not known to the kernels");
  if (passes < 1) throw std::invalid_argument("at least 1 pass, please");
  const ActFormat format = act_format(scheme, precise);
  return rates_of([&](long rounds) { return kernels.mix(scheme, format, rounds); }, 1, passes);
}

LinearTime measure_linear(const Kernels& kernels, GgmlType type, bool precise, int rows, int cols, int m,
                          int passes) {
  const TypeShape shape = type_shape(type);
  const Scheme scheme = scheme_of(type, precise);
  if (shape.values == 0 || scheme == Scheme::kCount)
    throw std::invalid_argument("the type is not known to the kernels");
  if (rows < kTileRows || cols < 1 || cols % shape.values != 0 || m < 1 || m > kMostRows || passes < 1) {
    throw std::invalid_argument(
        "at least 16 rows, whole blocks of columns, 1 to 4096 activation rows, please");
  }
  LinearTime out{act_format(scheme, precise), packed_bytes(scheme, rows, cols), {}};
  const TileKernel kernel = kernels.tile[static_cast<int>(scheme)][static_cast<int>(out.format)];
  const size_t tile = tile_bytes(scheme, cols);
  Mapping weights(out.bytes, true);
  std::memset(weights.data(), kPattern, out.bytes);
  const Rows in(kernels, out.format, m, cols);
  float values[kMaxCallRows * kTileRows];
  for (int pass = 0; pass <= passes; ++pass) {
    const double start = now();
    for (size_t at = 0; at < out.bytes; at += tile) {
      Activations a = in.a;
      a.next = at + 2 * tile <= out.bytes ? weights.data() + at + tile : nullptr;
      for (int row = 0, n = 0; row < m; row += n, a.next = nullptr) {
        n = rows_of_call(a, kernels, out.format, row, m);
        kernel(weights.data() + at, a, row, n, values);
      }
    }
    if (pass > 0) out.seconds.push_back(now() - start);  // the first warms up
  }
  return out;
}

}  // namespace spola
