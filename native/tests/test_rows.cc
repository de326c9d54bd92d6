// Kernels over one row: quantizers, norms, element-wise functions, reductions.
#include "base/half.h"
#include "check.h"
#include "kernels/attention.h"
#include "kernels/row_groups.h"
#include "kernels/table.h"

using namespace spola;

namespace {

constexpr double kUnit = 0x1p-24;     // half a unit in the last place of 1: one rounding
constexpr double kExpError = 1.7e-7;  // peak relative error that Cephes states for its expf

constexpr int kLengths[] = {1, 2, 7, 8, 9, 15, 16, 17, 23, 24, 25, 31, 32, 33, 63, 64, 65, 100, 576, 1000};

std::vector<float> random_row(int n, check::Random& random) {
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = random.value();
  return x;
}

void check_a8(const std::vector<float>& x, bool finite) {
  const int k = static_cast<int>(x.size());
  struct Out {
    std::vector<int8_t> q;
    std::vector<float> d, s;
    std::vector<int16_t> h;
    bool ok;
  };
  const auto run = [&](const Kernels* kernels) {
    Out o{std::vector<int8_t>(x.size(), 99), std::vector<float>(x.size() / 32, 9.0f),
          std::vector<float>(x.size() / 32, 9.0f), std::vector<int16_t>(x.size() / 16, 99), false};
    o.ok = kernels->quantize_a8(x.data(), k, o.q.data(), o.d.data(), o.s.data(), o.h.data());
    return o;
  };
  const Out a = run(scalar_kernels());
  CHECK(a.ok == finite);
  for (const Kernels* kernels : check::variants()) {
    const Out b = run(kernels);
    CHECK(b.ok == finite && a.q == b.q && a.h == b.h);
    for (size_t i = 0; i < a.d.size(); ++i) CHECK(check::same(a.d[i], b.d[i]) && check::same(a.s[i], b.s[i]));
  }
  for (size_t i = 0; i < a.d.size(); ++i) {
    int sum = 0;
    for (size_t j = i * 32; j < i * 32 + 32; ++j) {
      sum += a.q[j];
      CHECK(a.q[j] >= -127);
      // Half a step, and the rounding of the scale.
      if (finite && a.d[i] > 0) CHECK(std::fabs(double(a.q[j]) * a.d[i] - x[j]) <= a.d[i] * 0.5001);
    }
    CHECK(a.h[i * 2] + a.h[i * 2 + 1] == sum && a.s[i] == a.d[i] * static_cast<float>(sum));
  }
}

void check_a16(const std::vector<float>& x, bool finite) {
  const int k = static_cast<int>(x.size());
  std::vector<int16_t> a(x.size() + 1, 99);
  float da = 9;
  CHECK(scalar_kernels()->quantize_a16(x.data(), k, a.data(), &da) == finite);
  for (const Kernels* kernels : check::variants()) {
    std::vector<int16_t> b(x.size() + 1, 99);
    float db = 9;
    CHECK(kernels->quantize_a16(x.data(), k, b.data(), &db) == finite);
    CHECK(a == b && check::same(da, db) && a.back() == 99);
  }
  for (size_t i = 0; finite && da > 0 && i < x.size(); ++i) {
    CHECK(std::fabs(double(a[i]) * da - x[i]) <= da * 0.51);  // q * 2^-24 adds up to 0.004 of a step
  }
}

void check_kv(const std::vector<float>& x) {
  const int n = static_cast<int>(x.size());
  const size_t groups = (x.size() + kKvGroup - 1) / kKvGroup;
  std::vector<int8_t> a(x.size() + 1, 99);
  std::vector<uint16_t> da(groups + 1, 99);
  scalar_kernels()->quantize_kv(x.data(), n, a.data(), da.data());
  CHECK(a.back() == 99 && da.back() == 99);
  for (const Kernels* kernels : check::variants()) {
    std::vector<int8_t> b(x.size() + 1, 99);
    std::vector<uint16_t> db(groups + 1, 99);
    kernels->quantize_kv(x.data(), n, b.data(), db.data());
    CHECK(a == b && da == db);
  }
  for (size_t g = 0; g < groups; ++g) {
    const size_t end = std::min(x.size(), (g + 1) * kKvGroup);
    const double scale = f16_to_f32(da[g]);
    float amax = 0;
    for (size_t i = g * kKvGroup; i < end; ++i) amax = std::isfinite(x[i]) ? std::max(amax, std::fabs(x[i])) : NAN;
    // What f16 scales cannot tell is not read as a number either.
    if (std::isnan(amax) || amax / 127.0f >= 65520.0f) CHECK(!std::isfinite(scale));
    if (!std::isfinite(scale)) continue;
    for (size_t i = g * kKvGroup; i < end; ++i) {
      CHECK(a[i] >= -127);
      // Half a step; an f16 scale is off by 2^-11 of itself, or by half the least one: 127 times that at most.
      CHECK(std::fabs(a[i] * scale - x[i]) <= scale * 0.5001 + 127 * (scale * 0x1p-11 + 0x1p-25));
    }
  }
}

// Rows of one block each, as an epilogue has them (two halves apart) and as rows of a buffer.
void check_group(const std::vector<float>& x, int rows) {
  for (size_t stride : {size_t{16}, size_t{48}}) {
    const float* high = x.data() + (stride == 16 ? x.size() / 2 : 16);
    const auto run = [&](const Kernels* kernels, uint32_t* bad) {
      std::vector<uint8_t> record(static_cast<size_t>(rows) * kRowBlockBytes + 8, 0xa5);  // and nothing beyond it
      *bad = kernels->quantize_group(x.data(), high, stride, rows, record.data());
      return record;
    };
    uint32_t want = 0, bad = 0;
    const std::vector<uint8_t> record = run(scalar_kernels(), &want);
    for (int r = 0; r < rows; ++r) {
      const size_t at = static_cast<size_t>(r) * stride;
      bool finite = true;
      for (size_t i = 0; i < 16; ++i) finite &= std::isfinite(x[at + i]) && std::isfinite(high[at + i]);
      CHECK(((want >> r) & 1u) == (finite ? 0u : 1u));
    }
    for (const Kernels* kernels : check::variants()) {
      if (!kernels->quantize_group) continue;
      CHECK(run(kernels, &bad) == record && bad == want);
    }
  }
}

void check_groups(check::Random& random) {
  for (int rows = 1; rows <= kMaxRows; ++rows) {
    const std::vector<float> x = random_row(rows * 48 + 32, random);
    check_group(x, rows);
    for (float special : {0.0f, -0.0f, 1e-45f, 0x1p-101f, 0x1p-100f, 3.4e38f, INFINITY, -INFINITY, NAN, -NAN}) {
      std::vector<float> y = x;
      for (int n = 0; n < 3; ++n) y[size_t(random.below(static_cast<int>(y.size())))] = special;
      check_group(y, rows);
      check_group(std::vector<float>(x.size(), special), rows);
    }
  }
}

void check_quantizers(check::Random& random) {
  for (int n : {1, 5, 8, 13, 31, 32, 33, 40, 64, 80, 96, 128, 256}) {
    const std::vector<float> x = random_row(n, random);
    check_kv(x);
    for (float special : {0.0f, -0.0f, 1e-45f, -1e-6f, 8e-6f, 3e-5f, 8.3e6f, 8.4e6f, -3.4e38f, INFINITY, -INFINITY,
                          NAN}) {
      std::vector<float> y = x;
      y[size_t(random.below(n))] = special;
      check_kv(y);
      std::fill(y.begin(), y.end(), special);
      check_kv(y);
    }
  }
  for (int k : {32, 64, 96, 576, 1024}) {
    const std::vector<float> x = random_row(k, random);
    check_a8(x, true);
    check_a16(x, true);
    for (float special : {0.0f, -0.0f, 1e-45f, -1e-38f, 0x1p-101f, 0x1p-100f, 3.4e38f, -3.4e38f}) {
      std::vector<float> y(x.size(), special);
      check_a8(y, true);
      check_a16(y, true);
      y = x;
      y[static_cast<size_t>(random.below(k))] = special;
      check_a8(y, true);
      check_a16(y, true);
    }
    for (float special : {INFINITY, -INFINITY, NAN, -NAN}) {
      std::vector<float> y = x;
      y[static_cast<size_t>(random.below(k))] = special;
      check_a8(y, false);
      check_a16(y, false);
    }
  }
  for (int k : {1, 7, 9, 33}) check_a16(random_row(k, random), true);
}

// Compares the instruction sets on a call that writes n floats; nothing is written past n.
template <class Call>
std::vector<float> check_equal(int n, Call call) {
  std::vector<float> a(static_cast<size_t>(n) + 8, -5.0f);
  call(*scalar_kernels(), a.data());
  for (const Kernels* kernels : check::variants()) {
    std::vector<float> b(a.size(), -5.0f);
    call(*kernels, b.data());
    for (size_t i = 0; i < a.size(); ++i) {
      CHECK_MSG(check::same(a[i], b[i]), "%s n %d at %zu: %a, twin %a", kernels->isa, n, i, double(b[i]),
                double(a[i]));
    }
  }
  for (size_t i = static_cast<size_t>(n); i < a.size(); ++i) CHECK(a[i] == -5.0f);
  return a;
}

std::vector<const Kernels*> all_tables() {
  std::vector<const Kernels*> out = check::variants();
  out.push_back(scalar_kernels());
  return out;
}

void check_norms(int n, check::Random& random) {
  const std::vector<float> x = random_row(n, random), w = random_row(n, random), b = random_row(n, random);
  const float eps = 1e-5f;
  double squares = 0, sum = 0, centred = 0;
  for (float v : x) squares += double(v) * v, sum += v;
  for (float v : x) centred += (v - sum / n) * (v - sum / n);
  const double root = 1 / std::sqrt(squares / n + double(eps)),
               spread = 1 / std::sqrt(centred / n + double(eps));
  const auto rms =
      check_equal(n, [&](const Kernels& k, float* y) { k.rms_norm(x.data(), w.data(), eps, n, y); });
  const auto layer = check_equal(
      n, [&](const Kernels& k, float* y) { k.layer_norm(x.data(), w.data(), b.data(), eps, n, y); });
  // sum16 adds n / 16 terms to a lane and then four levels; a few roundings more for what goes in and out.
  const double steps = n / 16 + 8;
  const double drift =
      steps * kUnit * std::sqrt(squares / n);  // of mu: mean |x| is at most the root mean square
  for (int i = 0; i < n; ++i) {
    const size_t j = static_cast<size_t>(i);
    const double want = x[j] * root * w[j];
    CHECK(std::fabs(rms[j] - want) <= steps * kUnit * std::fabs(want));
    const double c = std::fabs(x[j] - sum / n), gain = spread * std::fabs(w[j]);
    const double exact = (x[j] - sum / n) * spread * w[j] + b[j];
    // A common error of all c changes their squares' sum only in second order.
    const double relative = steps * kUnit + drift * spread * drift * spread;
    const double tolerance = gain * (drift + c * (relative + 3 * kUnit)) + kUnit * std::fabs(exact);
    CHECK_MSG(std::fabs(layer[j] - exact) <= tolerance * 1.01 + 1e-37, "n %d: %g, f64 %g, bound %g", n,
              double(layer[j]), exact, tolerance);
  }
  // In place.
  for (const Kernels* k : all_tables()) {
    std::vector<float> y = x;
    k->rms_norm(y.data(), w.data(), eps, n, y.data());
    CHECK(std::memcmp(y.data(), rms.data(), y.size() * 4) == 0);
  }
}

void check_gated(int n, check::Random& random) {
  std::vector<float> gate = random_row(n, random), up = random_row(n, random);
  for (float& g : gate) g *= 4;
  gate[static_cast<size_t>(random.below(n))] = random.symmetric(300);
  const auto silu =
      check_equal(n, [&](const Kernels& k, float* y) { k.silu_mul(gate.data(), up.data(), n, y); });
  const auto gelu =
      check_equal(n, [&](const Kernels& k, float* y) { k.gelu_tanh_mul(gate.data(), up.data(), n, y); });
  const auto exact =
      check_equal(n, [&](const Kernels& k, float* y) { k.gelu_mul(gate.data(), up.data(), n, y); });
  for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
    const double g = gate[i];
    // The polynomial of erf is off by 1.5e-7 at most (Abramowitz and Stegun); a dozen roundings beside it.
    const double x = 0.5 * g * (1 + std::erf(g / std::sqrt(2.0))) * up[i];
    CHECK(std::fabs(exact[i] - x) <= (1.5e-7 + kExpError + 12 * kUnit) * std::fabs(0.5 * g * up[i]) + 1e-34);
    const double s = g / (1 + std::exp(-g)) * up[i];  // roundings: sum, quotient, product
    CHECK(std::fabs(silu[i] - s) <= (kExpError + 3 * kUnit) * std::fabs(s) + 1e-34);
    const double e = 0.5 * g * (1 + std::tanh(0.7978845608 * (g + 0.044715 * g * g * g))) * up[i];
    // h * tanh + h cancels for negative x, so the error is relative to h: of exp, of four roundings in u
    // (whose slope through tanh is below 1), of three in tanh, of two after it.
    CHECK(std::fabs(gelu[i] - e) <= (kExpError + 9 * kUnit) * std::fabs(0.5 * g * up[i]) + 1e-34);
  }
  for (const Kernels* k : all_tables()) {  // output over an input
    std::vector<float> y = gate;
    k->silu_mul(y.data(), up.data(), n, y.data());
    CHECK(std::memcmp(y.data(), silu.data(), y.size() * 4) == 0);
    y = up;
    k->gelu_tanh_mul(gate.data(), y.data(), n, y.data());
    CHECK(std::memcmp(y.data(), gelu.data(), y.size() * 4) == 0);
    y = gate;
    k->gelu_mul(y.data(), up.data(), n, y.data());
    CHECK(std::memcmp(y.data(), exact.data(), y.size() * 4) == 0);
  }
}

void check_exp() {
  std::vector<float> x;
  for (float v = -90; v < 90; v += 0.0173f) x.push_back(v);
  for (float v :
       {0.0f, -0.0f, 1e-30f, -1e-30f, -87.33654f, 88.0f, 88.1f, 1e30f, -1e30f, INFINITY, -INFINITY, NAN}) {
    x.push_back(v);
  }
  x.push_back(std::nextafter(-87.33654f, -100.0f));
  const int n = static_cast<int>(x.size());
  const auto y = check_equal(n, [&](const Kernels& k, float* out) { k.exp_many(x.data(), n, out); });
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) {
      CHECK(std::isnan(y[i]));
      continue;
    }
    const double want = x[i] < -87.33654f ? 0 : std::exp(std::fmin(x[i], 88.0));
    CHECK_MSG(std::fabs(y[i] - want) <= kExpError * want + 0x1p-149, "exp(%g) = %g", double(x[i]),
              double(y[i]));
  }
}

void check_reductions(int n, check::Random& random) {
  std::vector<float> x = random_row(n, random);
  const Kernels* scalar = scalar_kernels();
  const float most = scalar->max_many(x.data(), n);
  bool member = false;
  for (float v : x) {
    CHECK(v <= most);
    member = member || v == most;
  }
  CHECK(member);
  const float sum = scalar->sum_exp16(x.data(), n, most);
  for (const Kernels* k : check::variants()) {
    CHECK(check::same(k->max_many(x.data(), n), most));
    CHECK(check::same(k->sum_exp16(x.data(), n, most), sum));
  }
  double want = 0, error = n * 1.2e-38;  // smaller terms count as 0
  for (float v : x) {
    const double d = double(v) - double(most), e = std::exp(d);
    want += e;
    error += e * (kExpError + kUnit * (n / 16 + 5 - d));  // rounding v - most by |d| kUnit
  }
  CHECK(std::fabs(sum - want) <= error);
  for (float special : {NAN, INFINITY, -INFINITY}) {
    x[static_cast<size_t>(random.below(n))] = special;
    for (const Kernels* k : check::variants()) {
      CHECK(check::same(k->max_many(x.data(), n), scalar->max_many(x.data(), n)));
    }
    if (std::isnan(special)) CHECK(std::isnan(scalar->max_many(x.data(), n)));
  }
  std::vector<float> zeros(static_cast<size_t>(n), -0.0f);
  zeros[static_cast<size_t>(random.below(n))] = n % 2 == 0 ? 0.0f : -0.0f;
  for (const Kernels* k : all_tables()) CHECK(std::bit_cast<uint32_t>(k->max_many(zeros.data(), n)) == 0);
}

void check_half_store(check::Random& random) {
  std::vector<float> x;
  for (int i = 0; i < 20003; ++i) x.push_back(std::bit_cast<float>(static_cast<uint32_t>(random.bits())));
  for (uint32_t h = 0; h < 0x10000; h += 7) {
    const float f = f16_to_f32(static_cast<uint16_t>(h));
    for (float v : {f, std::nextafter(f, 0.0f), std::nextafter(f, 1e30f), f * 1.0004883f}) x.push_back(v);
  }
  for (int n : {1, 7, 8, 13, static_cast<int>(x.size())}) {
    std::vector<uint16_t> a(x.size() + 1, 7);
    scalar_kernels()->f32_to_f16(x.data(), n, a.data());
    CHECK(a[static_cast<size_t>(n)] == 7);
    for (const Kernels* kernels : check::variants()) {
      std::vector<uint16_t> b(x.size() + 1, 7);
      kernels->f32_to_f16(x.data(), n, b.data());
      CHECK(a == b);
    }
    for (int i = 0; i < n; ++i)
      CHECK(a[static_cast<size_t>(i)] == f32_to_f16_bits(x[static_cast<size_t>(i)]));
  }
}

// Every kernel has a mix of instructions, and the multiply-adds that it says it does are whole columns of tiles.
void check_mixes() {
  for (const Kernels* kernels : check::variants()) {
    for (int s = 0; s < static_cast<int>(Scheme::kCount); ++s) {
      for (int f = 0; f < 3; ++f) {
        if (!kernels->tile[s][f]) continue;
        const double one = kernels->mix(static_cast<Scheme>(s), static_cast<ActFormat>(f), 1);
        CHECK(one > 0 && std::fmod(one, 16) == 0);
        CHECK(kernels->mix(static_cast<Scheme>(s), static_cast<ActFormat>(f), 7) == 7 * one);
      }
    }
  }
}

}  // namespace

void test_rows() {
  check_mixes();
  check::Random random(3);
  check_quantizers(random);
  check_groups(random);
  check_exp();
  check_half_store(random);
  for (int n : kLengths) {
    for (int repeat = 0; repeat < 3; ++repeat) {
      check_norms(n, random);
      check_gated(n, random);
      check_reductions(n, random);
    }
  }
}
