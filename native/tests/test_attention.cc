// Attention segments, their merge, and rope: every instruction set against the twin bit by bit, and f64.
#include "base/half.h"
#include "check.h"
#include "kernels/attention.h"

using namespace spola;

namespace {

constexpr double kUnit = 0x1p-24;
constexpr double kExpError = 1.7e-7;  // peak relative error of exp, see test_rows.cc

struct Case {
  int rows, heads, k_dim, v_dim, blocks, first_block;
  float softcap;
  KvType k_type, v_type;
};

// A set of blocks in which each row has its own
// first and last valid position. Everything that is not valid for any row is NaN.
class Problem {
 public:
  Problem(const Case& c, check::Random& random) : c_(c) {
    const int start = c.first_block * kBlock, end = start + c.blocks * kBlock;
    args_.q_stride = size_t(c.heads) * size_t(c.k_dim) + 3;
    q_.resize(size_t(c.rows) * args_.q_stride);
    for (float& x : q_) x = random.symmetric(0.5f);
    int lowest = end, highest = start;
    for (int r = 0; r < c.rows; ++r) {  // at least one valid position in the first and in the last block
      args_.low[r] = start + random.below(kBlock);
      args_.high[r] = end - random.below(kBlock);
      if (args_.high[r] <= args_.low[r]) args_.high[r] = args_.low[r] + 1;
      if (args_.low[r] < lowest) lowest = args_.low[r];
      if (args_.high[r] > highest) highest = args_.high[r];
    }
    for (int b = 0; b < c.blocks; ++b) {
      k_.emplace_back(kv_block_bytes(c.k_type, c.k_dim), 2);
      v_.emplace_back(kv_block_bytes(c.v_type, c.v_dim), 2);
      for (int t = 0; t < kBlock; ++t) {
        const int position = (c.first_block + b) * kBlock + t;
        const bool valid = position >= lowest && position < highest;
        for (int d = 0; d < c.k_dim; ++d) {
          store(k_.back(), c.k_type, size_t(d) * kBlock + size_t(t), valid ? random.value() : NAN);
        }
        for (int d = 0; d < c.v_dim; ++d) {
          store(v_.back(), c.v_type, size_t(t) * size_t(c.v_dim) + size_t(d), valid ? random.value() : NAN);
        }
        store_scales(k_.back(), c.k_type, c.k_dim, t, valid, random);
        store_scales(v_.back(), c.v_type, c.v_dim, t, valid, random);
      }
    }
    args_.q = q_.data();
    args_.rows = c.rows;
    args_.heads = c.heads;
    args_.k_dim = c.k_dim;
    args_.v_dim = c.v_dim;
    args_.softcap = c.softcap;
    args_.k_type = c.k_type;
    args_.v_type = c.v_type;
    args_.blocks = c.blocks;
    args_.first_block = c.first_block;
    for (int b = 0; b < c.blocks; ++b) args_.k[b] = k_[size_t(b)].data(), args_.v[b] = v_[size_t(b)].data();
    args_.out_stride = size_t(c.heads) * size_t(c.v_dim + 2) + 1;
  }

  std::vector<float> run(const Kernels& kernels, int row = -1) {
    AttentionArgs a = args_;
    std::vector<float> out(size_t(c_.rows) * args_.out_stride, -3.0f);
    a.out = out.data();
    if (row >= 0) {  // this row alone
      a.q += size_t(row) * args_.q_stride;
      a.out += size_t(row) * args_.out_stride;
      a.rows = 1;
      a.low[0] = args_.low[row];
      a.high[0] = args_.high[row];
    }
    kernels.attention_segment(a);
    return out;
  }

  const AttentionArgs& args() const { return args_; }
  float k(int position, int d) const {
    const int b = position / kBlock - c_.first_block;
    const int t = position % kBlock;
    return load(k_[size_t(b)], c_.k_type, size_t(d) * kBlock + size_t(t)) *
           scale(k_[size_t(b)], c_.k_type, c_.k_dim, d, t);
  }
  float v(int position, int d) const {
    const int b = position / kBlock - c_.first_block;
    const int t = position % kBlock;
    return load(v_[size_t(b)], c_.v_type, size_t(t) * size_t(c_.v_dim) + size_t(d)) *
           scale(v_[size_t(b)], c_.v_type, c_.v_dim, d, t);
  }
  float q(int r, int g, int d) const {
    return q_[size_t(r) * args_.q_stride + size_t(g) * size_t(c_.k_dim) + size_t(d)];
  }

 private:
  static void store(check::Buffer<uint8_t>& to, KvType type, size_t i, float x) {
    const uint16_t h = f32_to_f16_bits(x);
    if (type == KvType::kI8)  // what is not valid is told by its scale
      to.data()[i] = static_cast<uint8_t>(static_cast<int8_t>(std::isnan(x) ? -1 : int(x * 60) % 128));
    else if (type == KvType::kF16)
      std::memcpy(to.data() + i * 2, &h, 2);
    else
      std::memcpy(to.data() + i * 4, &x, 4);
  }
  static float load(const check::Buffer<uint8_t>& from, KvType type, size_t i) {
    if (type == KvType::kI8) return static_cast<float>(static_cast<int8_t>(from.data()[i]));
    uint16_t h;
    float f;
    if (type == KvType::kF16) return std::memcpy(&h, from.data() + i * 2, 2), f16_to_f32(h);
    std::memcpy(&f, from.data() + i * 4, 4);
    return f;
  }
  static size_t scale_index(int dim, int d, int t) {
    return size_t(dim) * kBlock / 2 + size_t(d / kKvGroup) * kBlock + size_t(t);
  }
  static void store_scales(check::Buffer<uint8_t>& to, KvType type, int dim, int t, bool valid,
                           check::Random& random) {
    if (type != KvType::kI8) return;
    for (int d = 0; d < dim; d += kKvGroup) {
      store(to, KvType::kF16, scale_index(dim, d, t), valid ? std::fabs(random.symmetric(0.02f)) : NAN);
    }
  }
  static float scale(const check::Buffer<uint8_t>& from, KvType type, int dim, int d, int t) {
    return type == KvType::kI8 ? load(from, KvType::kF16, scale_index(dim, d, t)) : 1.0f;
  }

  Case c_;
  AttentionArgs args_;
  std::vector<float> q_;
  std::vector<check::Buffer<uint8_t>> k_, v_;
};

// The result of one head in f64, and how far f32 may be from it. A score is off by k_dim + 2 roundings of
// its terms, one more for the scale of each group (a soft cap has slope at most 1 and adds tanh's error), a weight by exp's error and, per block,
// that of the correction; the sums over positions add one rounding per position.
void check_exact(const Case& c, const Problem& p, int r, int g, const float* out) {
  const int low = p.args().low[r], high = p.args().high[r];
  std::vector<double> s;
  double score_error = 0, top = -INFINITY;
  for (int t = low; t < high; ++t) {
    double sum = 0, magnitude = 0;
    for (int d = 0; d < c.k_dim; ++d) {
      sum += double(p.q(r, g, d)) * p.k(t, d);
      magnitude += std::fabs(double(p.q(r, g, d)) * p.k(t, d));
    }
    double error = (c.k_dim + 2 + (c.k_dim + kKvGroup - 1) / kKvGroup) * kUnit * magnitude;
    if (c.softcap != 0) {
      sum = c.softcap * std::tanh(sum / c.softcap);
      error += c.softcap * (kExpError + 6 * kUnit);
    }
    if (error > score_error) score_error = error;
    s.push_back(sum);
    if (sum > top) top = sum;
  }
  CHECK(std::fabs(out[0] - top) <= score_error);
  double total = 0;
  for (double& x : s) total += x = std::exp(x - top);
  // Rounding s - m costs |s - m| / 2^24, at most 88 of them before a weight is 0.
  const double weight = 2 * score_error + kExpError * (c.blocks + 1) + kUnit * (88 + 3 * c.blocks);
  const double relative = weight + kUnit * (high - low + 9);
  CHECK(std::fabs(out[1] * std::exp(out[0] - top) - total) <= relative * total * 1.01);
  for (int d = 0; d < c.v_dim; ++d) {
    double want = 0, magnitude = 0;
    for (int t = low; t < high; ++t) {
      want += s[size_t(t - low)] * p.v(t, d);
      magnitude += s[size_t(t - low)] * std::fabs(p.v(t, d));
    }
    CHECK(std::fabs(out[2 + d] * std::exp(out[0] - top) - want) <= relative * magnitude * 1.01 + 1e-30);
  }
}

void check_case(const Case& c, check::Random& random) {
  Problem p(c, random);
  const std::vector<float> want = p.run(*scalar_kernels());
  for (const Kernels* kernels : check::variants()) {
    const std::vector<float> got = p.run(*kernels);
    for (size_t i = 0; i < want.size(); ++i) {
      CHECK_MSG(check::same(want[i], got[i]), "%s rows %d heads %d k %d v %d blocks %d at %zu: %a, twin %a",
                kernels->isa, c.rows, c.heads, c.k_dim, c.v_dim, c.blocks, i, double(got[i]),
                double(want[i]));
    }
  }
  const size_t per_row = size_t(c.heads) * size_t(c.v_dim + 2);
  for (int r = 0; r < c.rows; r += c.rows > 4 ? 5 : 1) {
    const std::vector<float> alone = p.run(*select_kernels(""), r);
    const size_t at = size_t(r) * p.args().out_stride;
    CHECK(std::memcmp(&alone[at], &want[at], per_row * 4) == 0);
    CHECK(want[at + per_row] == -3.0f);  // the gap between rows
    for (int g = 0; g < c.heads; ++g) check_exact(c, p, r, g, &want[at + size_t(g) * size_t(c.v_dim + 2)]);
  }
}

void check_merge(int v_dim, check::Random& random) {
  std::vector<float> into(size_t(v_dim) + 3), part(size_t(v_dim) + 3);
  for (float& x : into) x = random.value();
  for (float& x : part) x = random.value();
  std::vector<float> a = into;
  scalar_kernels()->attention_merge(part.data(), v_dim, a.data());
  for (const Kernels* kernels : check::variants()) {
    std::vector<float> b = into;
    kernels->attention_merge(part.data(), v_dim, b.data());
    for (size_t i = 0; i < a.size(); ++i) CHECK(check::same(a[i], b[i]));
  }
  CHECK(a.back() == into.back());
  const double m = std::fmax(into[0], part[0]);
  for (size_t i = 1; i + 1 < a.size(); ++i) {
    const double x = into[i] * std::exp(into[0] - m), y = part[i] * std::exp(part[0] - m);
    // The difference of the maxima is rounded too, before exp.
    const double error = kExpError + kUnit * (3 + std::fabs(double(into[0]) - part[0]));
    CHECK(a[0] == float(m) && std::fabs(a[i] - (x + y)) <= (std::fabs(x) + std::fabs(y)) * error);
  }
}

void check_rope(int half, bool interleaved, check::Random& random) {
  const size_t n = static_cast<size_t>(half);
  std::vector<float> c(n), s(n), x(n * 2 + 5);
  for (int i = 0; i < half; ++i) {
    const double angle = random.unit() * 100;
    c[size_t(i)] = float(std::cos(angle));
    s[size_t(i)] = float(std::sin(angle));
  }
  for (float& v : x) v = random.value();
  std::vector<float> a = x;
  scalar_kernels()->rope(a.data(), c.data(), s.data(), half, interleaved);
  for (const Kernels* kernels : check::variants()) {
    std::vector<float> b = x;
    kernels->rope(b.data(), c.data(), s.data(), half, interleaved);
    for (size_t i = 0; i < x.size(); ++i) CHECK(check::same(a[i], b[i]));
  }
  for (size_t i = 0; i < x.size(); ++i) {
    if (i >= size_t(half) * 2) CHECK(a[i] == x[i]);
  }
  for (int i = 0; i < half; ++i) {
    const size_t p = size_t(interleaved ? 2 * i : i), o = interleaved ? p + 1 : p + size_t(half),
                 j = size_t(i);
    const double u = double(x[p]) * c[j] - double(x[o]) * s[j], v = double(x[p]) * s[j] + double(x[o]) * c[j];
    const double magnitude = std::fabs(x[p]) + std::fabs(x[o]);  // two roundings each
    CHECK(std::fabs(a[p] - u) <= 2 * kUnit * magnitude && std::fabs(a[o] - v) <= 2 * kUnit * magnitude);
  }
}

}  // namespace

void test_attention() {
  check::Random random(4);
  const int dims[][2] = {{64, 64}, {128, 128}, {80, 80}, {96, 40}, {8, 8}, {36, 20}, {5, 13}, {256, 64}};
  const int group_sizes[] = {1, 2, 3, 4, 7};
  int turn = 0;
  for (const auto& dim : dims) {
    for (int rows : {1, 2, 3, 4, 7, 13, kQueryRows}) {
      for (int repeat = 0; repeat < (rows < 5 ? 2 : 1); ++repeat) {
        const int heads = group_sizes[turn++ % 5];
        const int blocks = 1 + random.below(kSegment / kBlock);
        const int first = random.below(kSegment / kBlock - blocks + 1);
        const float cap = random.below(3) == 0 ? 5.0f : 0.0f;
        const auto type = [&] { return static_cast<KvType>(random.below(3)); };
        check_case({rows, heads, dim[0], dim[1], blocks, first, cap, type(), type()}, random);
      }
    }
  }
  for (int v_dim : {1, 7, 8, 13, 64, 80, 128}) check_merge(v_dim, random);
  for (int half : {1, 3, 4, 7, 8, 12, 16, 17, 32, 40, 64}) {
    for (bool interleaved : {false, true}) check_rope(half, interleaved, random);
  }
}
