// The benchmark's kernels that are free of the rules of invariance: equal to the library's within rounding.
#include "base/half.h"
#include "check.h"
#include "free/attention_pair.h"
#include "free/linear_pair.h"

using namespace spola;

namespace {

constexpr double kUnit = 0x1p-24;
constexpr double kExpError = 1.7e-7;  // peak relative error of exp, see test_rows.cc

// Values are within 1, queries within 0.5: a score is off by at most k_dim + 2 roundings of the sum of its
// terms' magnitudes, and a weight by twice that, in either order.
void check_attention(const Kernels& kernels, ThreadPool& pool, const free_order::AttentionCase& of) {
  free_order::AttentionPair pair(kernels, *free_order::find(kernels.isa), pool, of);
  pair.ours();
  const std::vector<float> want = pair.result();
  pair.free();
  int longest = 0;
  for (const auto& [start, n] : of.slices) longest = std::max(longest, start + n);
  const double score = (of.dim + 2) * kUnit * of.dim * 0.5;
  const double limit = 2 * (2 * score + kExpError * (longest / kBlock + 3) + kUnit * (longest + 100));
  bool near = true;  // not of the largest: that would pass over a NaN
  double worst = 0, largest = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double size = std::fabs(double(want[i])), off = std::fabs(double(want[i]) - pair.result()[i]);
    near = near && off <= limit;
    worst = std::max(worst, off);
    largest = std::max(largest, size);
  }
  CHECK_MSG(near && largest > 20 * limit, "%s %d heads %d positions: off by %g, limit %g, largest %g",
            kernels.isa, of.heads, longest, worst, limit, largest);
}

// How far apart two sums in different order may be, for each of the rows that fill_tiles makes: each float sum
// has at most three roundings for a block of 32 columns. `row` of `in` is the activation row.
std::vector<double> limits_of(GgmlType type, int cols, const bench::Inputs& in, int row) {
  check::Random random(6);  // as fill_tiles has it
  std::vector<double> limits;
  const size_t first = size_t(row) * size_t(cols);
  for (int i = 0; i < kTileRows; ++i) {
    const std::vector<uint8_t> source = blocks::make_row(type, cols, blocks::Fill::kTypical, random);
    double sum = 0;
    for (int b = 0; b < cols / kBlock; ++b) {
      uint16_t d, m = 0;
      const bool min = type == GgmlType::kQ4_1;
      const uint8_t* block = source.data() + size_t(b) * type_shape(type).bytes;
      std::memcpy(&d, block, 2);
      if (min) std::memcpy(&m, block + 2, 2);
      double x = 0;
      const size_t at = first / kBlock + size_t(b);
      for (size_t j = 0; j < kBlock; ++j) x += std::abs(int(in.q8[at * kBlock + j])) * double(in.d8[at]);
      sum += (std::fabs(f16_to_f32(d)) * (min ? 15 : 8) + std::fabs(f16_to_f32(m))) * x;
    }
    limits.push_back(2 * (3 * cols / kBlock + 2) * kUnit * sum);
  }
  return limits;
}

void check_linear(const Kernels& kernels, ThreadPool& pool, GgmlType type, int cols) {
  free_order::LinearPair pair(kernels, *free_order::find(kernels.isa), pool, type, {{64, cols}, {32, cols}}, 2);
  pair.ours();
  const std::vector<float> want = pair.result();
  const std::vector<double> limits = limits_of(type, cols, bench::Inputs(1, cols), 0);
  const auto same = [&](const char* what) {
    for (size_t row = 0; row < 32; ++row) {
      const double limit = limits[row % kTileRows], off = std::fabs(double(want[row]) - pair.result()[row]);
      CHECK_MSG(off <= limit, "%s %s %d columns: off by %g, limit %g", kernels.isa, what, cols, off, limit);
    }
  };
  pair.free();
  same("one row");
  pair.split();
  same("split");
}

void check_many(const Kernels& kernels, GgmlType type, int cols, int rows) {
  const free_order::Kernels& free = *free_order::find(kernels.isa);
  if (!free.many_u4s) return;
  free_order::ManyPair pair(kernels, free, type, {32, cols}, rows);
  pair.ours();
  const std::vector<float> want = pair.result();
  pair.free();
  const bench::Inputs in(rows, cols);
  for (int r = 0; r < rows; ++r) {
    const std::vector<double> limits = limits_of(type, cols, in, r);
    for (int i = 0; i < 32; ++i) {
      const size_t at = size_t((i / kTileRows * rows + r) * kTileRows + i % kTileRows);
      const double off = std::fabs(double(want[at]) - pair.result()[at]), limit = limits[size_t(i % kTileRows)];
      CHECK_MSG(off <= limit, "%s %d rows %d columns: off by %g, limit %g", kernels.isa, rows, cols, off, limit);
    }
  }
}

void check_norm(const free_order::Kernels& free, int n, check::Random& random) {
  std::vector<float> x(static_cast<size_t>(n)), w(x.size()), y(x.size());
  double squares = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = random.value(), w[i] = random.value();
    squares += double(x[i]) * x[i];
  }
  free.rms_norm(x.data(), w.data(), 1e-5f, n, y.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = x[i] / std::sqrt(squares / n + 1e-5) * w[i];
    CHECK(std::fabs(y[i] - want) <= std::fabs(want) * kUnit * (n / 2.0 + 8));
  }
}

}  // namespace

void test_free() {
  check::Random random(9);
  for (const Kernels* kernels : check::variants()) {
    const free_order::Kernels* free = free_order::find(kernels->isa);
    if (!free) continue;
    for (int n : {5, 64, 100, 576}) check_norm(*free, n, random);
    for (GgmlType type : {GgmlType::kQ4_0, GgmlType::kQ4_1}) {
      for (int rows : {16, 48, 56}) check_many(*kernels, type, 288, rows);
    }
    for (int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      for (const auto& [heads, kv] : {std::pair{9, 3}, {4, 4}, {8, 2}, {2, 1}}) {
        check_attention(*kernels, pool, {heads, kv, 64, 2, {{300, 1}}});
        check_attention(*kernels, pool, {heads, kv, 64, 1, {{0, 1}, {31, 1}, {129, 1}}});
        check_attention(*kernels, pool, {heads, kv, 64, 1, {{0, 40}}});
        check_attention(*kernels, pool, {heads, kv, 64, 1, {{270, 65}}});
      }
      for (GgmlType type : {GgmlType::kQ4_0, GgmlType::kQ4_1}) {
        check_linear(*kernels, pool, type, 64);
        check_linear(*kernels, pool, type, 576);
      }
    }
  }
}
