// Tile kernels: every instruction set against the scalar twin bit by bit, and the twin against f64.
#include "blocks_for_test.h"
#include "check.h"
#include "kernels/expand.h"
#include "kernels/pack.h"
#include "kernels/row_groups.h"

using namespace spola;
using blocks::Fill;

namespace {

// What the activations of a case look like.
enum class Rows { kRandom, kAllLow, kAllHigh, kAlternating };

// Activations in all formats, each at an address that is aligned to nothing but its own type.
class Inputs {
 public:
  Inputs(int k, int rows, Rows kind, size_t offset, check::Random& random)
      : f32_(size(rows, k, 1), offset),
        q8_(size(rows, k, 1), offset),
        d8_(size(rows, k, kBlock), offset),
        s8_(size(rows, k, kBlock), offset),
        h8_(size(rows, k, 16), offset),
        q16_(size(rows, k, 1), offset),
        d16_(size(rows, 1, 1), offset) {
    for (size_t i = 0; i < f32_.size(); ++i) f32_[i] = value(kind, i, random);
    act_ = {.k = k,
            .f32 = f32_.data(),
            .q8 = q8_.data(),
            .d8 = d8_.data(),
            .s8 = s8_.data(),
            .h8 = h8_.data(),
            .q16 = q16_.data(),
            .d16 = d16_.data()};
    if (k % kBlock != 0) return;
    const Kernels* scalar = scalar_kernels();
    for (int r = 0; r < rows; ++r) {
      const size_t at = size(r, k, 1), b = at / kBlock;
      CHECK(scalar->quantize_a8(&f32_[at], k, &q8_[at], &d8_[b], &s8_[b], &h8_[b * 2]));
      CHECK(scalar->quantize_a16(&f32_[at], k, &q16_[at], &d16_[static_cast<size_t>(r)]));
    }
  }
  const Activations& act() const { return act_; }

  // The value that the kernel sees, exactly.
  double seen(ActFormat format, int row, int col) const {
    const size_t at = size(row, act_.k, 1) + static_cast<size_t>(col);
    if (format == ActFormat::kF32) return act_.f32[at];
    if (format == ActFormat::kA8) return double(act_.q8[at]) * double(act_.d8[at / kBlock]);
    return double(act_.q16[at]) * double(act_.d16[row]);
  }

 private:
  static size_t size(int rows, int k, int per) {
    return static_cast<size_t>(rows) * static_cast<size_t>(k) / static_cast<size_t>(per);
  }

  static float value(Rows kind, size_t i, check::Random& random) {
    switch (kind) {
      case Rows::kAllLow: return -3.0f;
      case Rows::kAllHigh: return 3.0f;
      case Rows::kAlternating: return i % 3 == 0 ? -3.0f : 3.0f;
      default: return random.below(40) == 0 ? 0.0f : random.value();
    }
  }

  check::Buffer<float> f32_;
  check::Buffer<int8_t> q8_;
  check::Buffer<float> d8_, s8_;
  check::Buffer<int16_t> h8_, q16_;
  check::Buffer<float> d16_;
  Activations act_;
};

struct Case {
  blocks::NamedType type;
  bool precise;
  int k, n;  // n: output rows in the tile, the others are padding
  Fill fill;
  Rows rows;
  size_t offset;  // elements past alignment
};

struct Tile {
  std::vector<std::vector<uint8_t>> source;
  check::Buffer<uint8_t> bytes;
};

Tile make_tile(const Case& c, Scheme scheme, check::Random& random) {
  Tile t{{}, check::Buffer<uint8_t>(tile_bytes(scheme, c.k), c.offset)};
  const uint8_t* rows[kTileRows] = {};
  for (int i = 0; i < c.n; ++i) t.source.push_back(blocks::make_row(c.type.type, c.k, c.fill, random));
  for (int i = 0; i < c.n; ++i) rows[i] = t.source[static_cast<size_t>(i)].data();
  CHECK(pack_tile(c.type.type, scheme, rows, c.k, t.bytes.data()));
  return t;
}

// Exact product of one output element, and the sum of the magnitudes of all terms the kernel adds up.
struct Exact {
  double value = 0, magnitude = 0;
};

Exact exact_product(const Case& c, ActFormat format, const std::vector<uint8_t>& row, const Inputs& in,
                    int r) {
  Exact e;
  const TypeShape shape = type_shape(c.type.type);
  const bool is_float = act_format(scheme_of(c.type.type, false), false) == ActFormat::kF32;
  const std::vector<float> floats = is_float ? blocks::decode(c.type.type, row, c.k) : std::vector<float>{};
  Expanded x;
  const int group = group_of(c.type.type);
  for (int k = 0; k < c.k; ++k) {
    const double a = in.seen(format, r, k);
    if (is_float) {
      const double w = floats[static_cast<size_t>(k)];
      e.value += w * a;
      e.magnitude += std::fabs(w * a);
      continue;
    }
    const int at = k % shape.values;
    if (at == 0) expand_block(c.type.type, row.data() + row_bytes(c.type.type, k), &x);
    const double scaled = double(x.scale[at / group]) * x.code[at];
    const double min = has_min(c.type.type) ? double(x.min[at / group]) : 0;
    e.value += (scaled + min) * a;
    e.magnitude += (std::fabs(scaled) + std::fabs(min)) * std::fabs(a);
  }
  return e;
}

// f32 roundings on the way of one term: at most two sums per group of 16 after it, and seven in its making
// (scale, scale * da, float(i), s twice, the final factor, the sum itself); each is 2^-24 of the magnitude.
// A subnormal scale * da is off by up to 2^-150, times an integer dot below 2^20.
double bound(const Case& c, const Exact& e) {
  const int group = group_of(c.type.type);
  const double roundings = (group == 0 || c.type.type == GgmlType::kE4M3 ? c.k : 2.0 * c.k / group) + 7;
  return roundings * 0x1p-24 * 1.001 * e.magnitude + roundings * 0x1p-130;
}

// How many rows a call is tried with: all that registers may hold, and some of many.
std::vector<int> calls_of(const Kernels& kernels, ActFormat format) {
  const int most = format == ActFormat::kF32   ? kernels.float_rows
                   : format == ActFormat::kA16 ? kernels.int16_rows
                                               : kernels.rows;
  std::vector<int> calls;
  for (int rows = 1; rows <= std::min(most, kMaxRows); ++rows) calls.push_back(rows);
  for (int rows : {13, 31, kMaxCallRows}) {
    if (rows <= most) calls.push_back(rows);
  }
  return calls;
}

void check_case(const Case& c, check::Random& random) {
  const Scheme scheme = scheme_of(c.type.type, c.precise);
  const ActFormat format = act_format(scheme, c.precise);
  const Tile tile = make_tile(c, scheme, random);
  const int most = (format == ActFormat::kA8 ? kMaxRows : kMaxCallRows) + 2;
  const Inputs in(c.k, most, c.rows, c.offset, random);
  const int s = static_cast<int>(scheme), f = static_cast<int>(format);
  const TileKernel twin = scalar_kernels()->tile[s][f];
  if (!CHECK(twin != nullptr)) return;
  float want[kMaxCallRows + 2][kTileRows];
  for (int r = 0; r < most; ++r) twin(tile.bytes.data(), in.act(), r, 1, want[r]);
  for (const Kernels* kernels : check::variants()) {
    for (int rows : calls_of(*kernels, format)) {
      const int row0 = c.k % 3 == 0 ? 2 : rows % 2 * 2;
      check::Buffer<float> got(static_cast<size_t>(rows + 1) * kTileRows, c.offset);
      for (size_t i = 0; i < got.size(); ++i) got[i] = -77.0f;
      if (!CHECK(kernels->tile[s][f] != nullptr)) return;
      kernels->tile[s][f](tile.bytes.data(), in.act(), row0, rows, got.data());
      for (int i = 0; i < (rows + 1) * kTileRows; ++i) {
        const float expected = i < rows * kTileRows ? want[row0 + i / kTileRows][i % kTileRows] : -77.0f;
        CHECK_MSG(check::same(got[static_cast<size_t>(i)], expected),
                  "%s %s precise %d k %d rows %d row0 %d at %d: %a, twin %a", kernels->isa, c.type.name,
                  c.precise, c.k, rows, row0, i, double(got[static_cast<size_t>(i)]), double(expected));
      }
    }
  }
  for (int lane = 0; lane < kTileRows; ++lane) {
    if (lane >= c.n) {
      CHECK(want[1][lane] == 0);
      continue;
    }
    const Exact e = exact_product(c, format, tile.source[static_cast<size_t>(lane)], in, 1);
    CHECK_MSG(std::fabs(want[1][lane] - e.value) <= bound(c, e),
              "%s precise %d k %d lane %d: %g, f64 %.9g, bound %g", c.type.name, c.precise, c.k, lane,
              double(want[1][lane]), e.value, bound(c, e));
  }
}

// Groups of rows, where a kernel takes them: every size of a group and every number of groups of a call.
void check_groups(const Case& c, check::Random& random) {
  const blocks::NamedType& t = c.type;
  const int k = c.k;
  const size_t offset = c.offset;
  const Scheme scheme = scheme_of(t.type, false);
  if (act_format(scheme, false) != ActFormat::kA8) return;
  const Tile tile = make_tile(c, scheme, random);
  const int s = static_cast<int>(scheme), f = static_cast<int>(ActFormat::kA8);
  const TileKernel twin = scalar_kernels()->tile[s][f];
  for (const Kernels* kernels : check::variants()) {
    if (kernels->groups == 0) continue;
    for (int rows : {kernels->rows + 1, 2 * kernels->rows, 3 * kernels->rows - 1, 7 * kernels->rows - 6}) {
      const Inputs in(k, rows, c.rows, offset, random);
      Activations a = in.act();
      std::vector<uint8_t> bytes(grouped_bytes(static_cast<size_t>(rows), static_cast<size_t>(k)));
      for (int r = rows - 1; r >= 0; --r) put_into_group(a, r, rows, kernels->rows, bytes.data());
      if (!CHECK(kernels->tile[s][f] != nullptr)) return;
      a.groups = bytes.data();
      a.grouped = rows;
      const RowGroups groups(rows, kernels->rows);
      for (int g = 0; g < groups.count; ++g) {
        CHECK(groups.of(groups.begin(g)) == g);
        const int end = std::min(groups.count, g + 1 + g % kernels->groups), row0 = groups.begin(g);
        const int n = groups.begin(end) - row0;
        check::Buffer<float> got(static_cast<size_t>(n + 1) * kTileRows, offset);
        for (size_t i = 0; i < got.size(); ++i) got[i] = -77.0f;
        kernels->tile[s][f](tile.bytes.data(), a, row0, n, got.data());
        for (int r = 0; r <= n; ++r) {
          float want[kTileRows];
          std::fill(want, want + kTileRows, -77.0f);
          if (r < n) twin(tile.bytes.data(), in.act(), row0 + r, 1, want);
          for (int j = 0; j < kTileRows; ++j) {
            const float x = got[static_cast<size_t>(r * kTileRows + j)];
            CHECK_MSG(check::same(x, want[j]), "%s %s k %d, group %d of %d rows, row %d: %a, twin %a",
                      kernels->isa, t.name, k, g, rows, r, double(x), double(want[j]));
          }
        }
      }
    }
  }
}

void check_type(const blocks::NamedType& t, bool precise, check::Random& random) {
  const int block = type_shape(t.type).values;
  const std::vector<int> lengths = block == 1    ? std::vector<int>{1, 3, 4, 7, 33, 64, 129, 258, 515}
                                   : block == 32 ? std::vector<int>{32, 64, 96, 160, 576}
                                   : block < 256 ? std::vector<int>{block, 3 * block, 9 * block}
                                                 : std::vector<int>{256, 512, 768};
  for (int k : lengths) {
    for (int n : {16, 5}) check_case({t, precise, k, n, Fill::kRandom, Rows::kRandom, 0}, random);
    check_case({t, precise, k, 16, Fill::kRandom, Rows::kRandom, 1}, random);
    check_case({t, precise, k, 16, Fill::kRandom, Rows::kRandom, 3}, random);
    const size_t offset = k % 3 == 0 ? 3 : 0;
    if (!precise) check_groups({t, precise, k, 16, Fill::kRandom, Rows::kRandom, offset}, random);
  }
  if (block == 1) return;
  for (Fill fill : {Fill::kLowest, Fill::kHighest, Fill::kRandom}) {
    for (Rows rows : {Rows::kAllLow, Rows::kAllHigh, Rows::kAlternating}) {
      check_case({t, precise, lengths[1], 16, fill, rows, 0}, random);
      if (!precise) check_groups({t, precise, lengths[1], 16, fill, rows, 0}, random);
    }
  }
}

}  // namespace

void test_linear() {
  check::Random random(2);
  for (const blocks::NamedType& t : blocks::kAll) {
    check_type(t, false, random);
    if (act_format(scheme_of(t.type, false), false) == ActFormat::kA8) check_type(t, true, random);
  }
  int pairs = 0;
  for (const auto& formats : scalar_kernels()->tile) {
    for (TileKernel kernel : formats) pairs += kernel != nullptr;
  }
  CHECK(pairs == 23);
  CHECK(select_kernels("scalar") == scalar_kernels());
  CHECK(select_kernels("neon9") == nullptr);
  for (const Kernels* k : check::variants()) {
    CHECK(k->rows >= 1 && k->rows <= kMaxRows);
    CHECK(k->float_rows >= k->rows && k->float_rows <= kMaxCallRows);
    CHECK(k->int16_rows >= k->rows && k->int16_rows <= kMaxCallRows);
  }
  CHECK(select_kernels("") != nullptr && select_kernels(nullptr) == select_kernels(""));
}
