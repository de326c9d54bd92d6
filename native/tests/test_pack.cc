// pack, unpack and decode of every type.
#include "base/half.h"
#include "blocks_for_test.h"
#include "check.h"
#include "kernels/pack.h"

using namespace spola;
using blocks::Fill;

namespace {

struct Matrix {
  std::vector<std::vector<uint8_t>> rows;
  std::vector<uint8_t> packed;
};

// Packs n random rows tile by tile.
Matrix make_matrix(GgmlType type, Scheme scheme, int n, int cols, check::Random& random) {
  Matrix m;
  for (int i = 0; i < n; ++i) m.rows.push_back(blocks::make_row(type, cols, Fill::kRandom, random));
  m.packed.resize(packed_bytes(scheme, n, cols));
  for (int t = 0; t * kTileRows < n; ++t) {
    const uint8_t* rows[kTileRows] = {};
    for (int i = 0; i < kTileRows && t * kTileRows + i < n; ++i) {
      rows[i] = m.rows[static_cast<size_t>(t * kTileRows + i)].data();
    }
    CHECK(pack_tile(type, scheme, rows, cols,
                    m.packed.data() + static_cast<size_t>(t) * tile_bytes(scheme, cols)));
  }
  return m;
}

void check_matrix(const blocks::NamedType& t, bool precise, int n, int cols, check::Random& random) {
  const Scheme scheme = scheme_of(t.type, precise);
  const Matrix m = make_matrix(t.type, scheme, n, cols, random);
  std::vector<float> got(static_cast<size_t>(cols));
  for (int i = 0; i < n; ++i) {
    const std::vector<uint8_t>& row = m.rows[static_cast<size_t>(i)];
    const std::vector<float> want = blocks::decode(t.type, row, cols);
    decode_row(scheme, m.packed.data(), i, cols, got.data());
    CHECK_MSG(std::memcmp(got.data(), want.data(), got.size() * 4) == 0, "%s row %d", t.name, i);
    std::vector<uint8_t> back(row.size(), 0xa5);
    if (is_lossless(scheme)) {
      CHECK(packed_bytes(scheme, kTileRows, cols) == row.size() * kTileRows);
      CHECK(unpack_row(scheme, m.packed.data(), i, cols, back.data()));
      CHECK_MSG(back == row, "%s row %d", t.name, i);
    } else {
      CHECK(!unpack_row(scheme, m.packed.data(), i, cols, back.data()));
    }
  }
}

// A non-finite scale or float anywhere in a row is found.
void check_refusal(const blocks::NamedType& t, bool precise, check::Random& random) {
  const int cols = 512;
  const Scheme scheme = scheme_of(t.type, precise);
  const TypeShape shape = type_shape(t.type);
  std::vector<uint8_t> tile(tile_bytes(scheme, cols));
  const auto packs = [&](const std::vector<uint8_t>& row) {
    const uint8_t* rows[kTileRows] = {};
    rows[11] = row.data();
    return pack_tile(t.type, scheme, rows, cols, tile.data());
  };
  std::vector<uint8_t> row = blocks::make_row(t.type, cols, Fill::kRandom, random);
  CHECK(packs(row));
  const size_t last = row.size() - static_cast<size_t>(shape.bytes);
  if (t.type == GgmlType::kMXFP4) {
    for (int e : {254, 255}) {
      row[last] = static_cast<uint8_t>(e);
      CHECK(!packs(row));
    }
    return;
  }
  int found = 0;  // bytes whose setting to an infinity or NaN pattern is refused
  for (int at = 0; at + 2 <= shape.bytes; ++at) {
    std::vector<uint8_t> bad = row;
    const uint16_t pattern = 0x7f80 | (t.type == GgmlType::kBF16 || t.type == GgmlType::kF32 ? 0 : 0x7c00);
    std::memcpy(&bad[last + static_cast<size_t>(at)], &pattern, 2);
    found += !packs(bad);
  }
  CHECK_MSG(found > 0, "%s", t.name);
}

// A row of int8 with one scale keeps -128, and a zero point that is no integer is taken as it is.
void check_other_formats() {
  uint8_t tile[e4m3::kBytes];
  const uint8_t* rows[kTileRows] = {};
  BlockI8C ints{0.5f, {}};
  ints.qs[3] = -128, ints.qs[4] = 127;
  rows[2] = reinterpret_cast<const uint8_t*>(&ints);
  CHECK(pack_tile(GgmlType::kI8C, scheme_of(GgmlType::kI8C, false), rows, 64, tile));
  float out[64];
  decode_row(Scheme::kI8G64, tile, 2, 64, out);
  CHECK(out[3] == -64.0f && out[4] == 63.5f && out[5] == 0);
  BlockU4Z64 zeros{f32_to_f16_bits(0.25f), f32_to_f16_bits(7.5f), {}};
  zeros.qs[17] = 0xf1;
  rows[2] = reinterpret_cast<const uint8_t*>(&zeros);
  CHECK(pack_tile(GgmlType::kU4Z64, Scheme::kU4Z64, rows, 64, tile));
  decode_row(Scheme::kU4Z64, tile, 2, 64, out);
  CHECK(out[0] == -1.875f && out[33] == -1.625f && out[49] == 1.875f);
  // The ends of E4M3, and that its NaN is refused.
  BlockE4M3 floats{2.0f, {}};
  floats.qs[0] = 0x01, floats.qs[1] = 0x7e, floats.qs[2] = 0x80, floats.qs[3] = 0xc0;
  rows[2] = reinterpret_cast<const uint8_t*>(&floats);
  CHECK(pack_tile(GgmlType::kE4M3, Scheme::kE4M3, rows, 64, tile));
  decode_row(Scheme::kE4M3, tile, 2, 64, out);
  CHECK(out[0] == 0x1p-8f && out[1] == 896.0f && out[2] == 0 && std::signbit(out[2]) && out[3] == -4.0f);
  for (int nan : {0x7f, 0xff}) {
    floats.qs[63] = static_cast<uint8_t>(nan);
    CHECK(!pack_tile(GgmlType::kE4M3, Scheme::kE4M3, rows, 64, tile));
  }
}

void check_halves() {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float f = f16_to_f32(static_cast<uint16_t>(h));
    const bool nan = (h & 0x7c00) == 0x7c00 && (h & 0x3ff) != 0;
    CHECK(std::isnan(f) == nan);
    CHECK(f32_to_f16_bits(f) == (nan ? h | 0x200 : h));
    CHECK(f16_finite(static_cast<uint16_t>(h)) == f32_finite(f));
    // By value: sign, exponent, mantissa.
    if (f32_finite(f)) {
      const int e = static_cast<int>(h >> 10 & 31), m = static_cast<int>(h & 0x3ff);
      const double v = e == 0 ? std::ldexp(m, -24) : std::ldexp(1024 + m, e - 25);
      CHECK(static_cast<double>(f) == (h & 0x8000 ? -v : v));
    }
    if (!f32_finite(f) || h == 0x7bff || h == 0xfbff) continue;
    // Half way to the next f16 goes to the even one, anything beyond to the next.
    const float next = f16_to_f32(static_cast<uint16_t>(h + 1));
    const float middle = (f + next) / 2;
    CHECK(f32_to_f16_bits(middle) == (h % 2 == 0 ? h : h + 1) || h == 0x7bff);
    CHECK(f32_to_f16_bits(std::nextafter(middle, f)) == h);
    CHECK(f32_to_f16_bits(std::nextafter(middle, next)) == h + 1);
  }
  CHECK(f32_to_f16_bits(65519.996f) == 0x7bff);
  CHECK(f32_to_f16_bits(65520.0f) == 0x7c00);
  CHECK(f32_to_f16_bits(-1e30f) == 0xfc00);
}

}  // namespace

void test_pack() {
  check::Random random(1);
  check_halves();
  check_other_formats();
  for (const blocks::NamedType& t : blocks::kAll) {
    for (bool precise : {false, true}) {
      const int block = type_shape(t.type).values;
      for (int n : {1, 16, 37}) {
        for (int blocks : {1, 3}) check_matrix(t, precise, n, block * blocks, random);
      }
      check_refusal(t, precise, random);
    }
  }
  CHECK(scheme_of(static_cast<GgmlType>(24), false) == Scheme::kCount);
  CHECK(type_shape(static_cast<GgmlType>(24)).values == 0);
}
