// Random activation rows in every format, and a matrix of random blocks of a type: for benchmarks.
#pragma once

#include <cstring>
#include <vector>

#include "base/arena.h"
#include "blocks_for_test.h"
#include "kernels/pack.h"
#include "kernels/row_groups.h"

namespace bench {

// `rows` rows of k columns.
struct Inputs {
  Inputs(int rows, int k)
      : f(size_t(rows) * size_t(k)),
        q8(f.size()),
        d8(f.size() / 32),
        s8(f.size() / 32),
        h8(f.size() / 16),
        q16(f.size()),
        d16(static_cast<size_t>(rows)) {
    check::Random random(5);
    for (float& x : f) x = random.value();
    for (int r = 0; r < rows; ++r) {
      const size_t at = size_t(r) * size_t(k);
      const spola::Kernels* scalar = spola::scalar_kernels();
      scalar->quantize_a8(&f[at], k, &q8[at], &d8[at / 32], &s8[at / 32], &h8[at / 16]);
      scalar->quantize_a16(&f[at], k, &q16[at], &d16[size_t(r)]);
    }
    act.k = k;
    act.f32 = f.data();
    act.q8 = q8.data();
    act.d8 = d8.data();
    act.s8 = s8.data();
    act.h8 = h8.data();
    act.q16 = q16.data();
    act.d16 = d16.data();
  }

  // Sets the groups of the first m rows in `a`, where kernels take them; they lie in `groups`.
  void group(const spola::Kernels& kernels, int m, std::vector<uint8_t>* groups, spola::Activations* a) const {
    if (kernels.groups == 0 || m <= kernels.rows) return;
    groups->resize(spola::grouped_bytes(static_cast<size_t>(m), static_cast<size_t>(act.k)));
    spola::put_into_groups(*a, m, kernels.rows, groups->data());
  }

  std::vector<float> f;
  std::vector<int8_t> q8;
  std::vector<float> d8, s8;
  std::vector<int16_t> h8, q16;
  std::vector<float> d16;
  spola::Activations act;
};

// Packs `tiles` tiles of k columns to `to`, all of the same sixteen random rows.
inline void fill_tiles(spola::GgmlType type, spola::Scheme scheme, int k, int tiles, uint8_t* to) {
  check::Random random(6);
  std::vector<std::vector<uint8_t>> source;
  const uint8_t* rows[spola::kTileRows];
  for (int i = 0; i < spola::kTileRows; ++i) {
    source.push_back(blocks::make_row(type, k, blocks::Fill::kTypical, random));
    rows[i] = source.back().data();
  }
  const size_t tile = spola::tile_bytes(scheme, k);
  spola::pack_tile(type, scheme, rows, k, to);
  for (int t = 1; t < tiles; ++t) std::memcpy(to + static_cast<size_t>(t) * tile, to, tile);
}

}  // namespace bench
