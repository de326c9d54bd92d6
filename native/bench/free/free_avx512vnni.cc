// Kernels in a free order with AVX-512 VNNI. See free.h.
#include "free/attention_free.h"
#include "kernels/panel_avx512vnni.h"
#include "kernels/vector_avx512vnni.h"

namespace spola::free_order {
namespace {

using namespace avx512vnni;

// One block of 32 columns, low and high nibbles in integer sums of their own.
template <bool Min>
SPOLA_INLINE void add_block(__m512& acc, const uint8_t* p, const RowsA8<1>& rows, long b) {
  constexpr int kQs = Min ? u4sm::kQs : u4s::kQs;
  const __m512i mask = _mm512_set1_epi8(15);
  __m512i low = _mm512_set1_epi32(kMagicBits), high = _mm512_setzero_si512();
  if constexpr (!Min) dot2(low, pair_of(-8, -8), rows.halves(0, b));
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i raw = load512(p + kQs + j * kGroupBytes);
    dot4(low, _mm512_and_si512(raw, mask), rows.codes(0, b * kBlock + 4 * j));
    dot4(high, _mm512_and_si512(_mm512_srli_epi16(raw, 4), mask), rows.codes(0, b * kBlock + 16 + 4 * j));
  }
  const __m512 scale = load_half16(p);
  acc = _mm512_fmadd_ps(scaled(_mm512_add_epi32(low, high), scale, origin_of(scale)), rows.scale(0, b), acc);
  if constexpr (Min) acc = _mm512_fmadd_ps(load_half16(p + u4sm::kM), rows.scaled_sum(0, b), acc);
}

// Blocks of even and odd numbers have sums of their own.
template <bool Min>
void one(const uint8_t* p, const Activations& a, int row0, int, float* out) {
  constexpr int kBytes = Min ? u4sm::kBytes : u4s::kBytes;
  const Ahead ahead(a, p);
  const RowsA8<1> rows(a, row0);
  __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
  long b = 0;
  for (; b + 2 <= rows.blocks; b += 2, p += 2 * kBytes) {
    ahead.fetch<2 * kBytes>(p);
    add_block<Min>(even, p, rows, b);
    add_block<Min>(odd, p + kBytes, rows, b + 1);
  }
  if (b < rows.blocks) add_block<Min>(even, p, rows, b);
  _mm512_storeu_ps(out, _mm512_add_ps(even, odd));
}

template <bool Min>
SPOLA_NOINLINE const uint8_t* unpack(Panel& to, const uint8_t* p, int blocks) {
  const __m512i mask = _mm512_set1_epi8(15);
  for (int b = 0; b < blocks; ++b, p += Min ? u4sm::kBytes : u4s::kBytes) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m512i raw = load512(p + (Min ? u4sm::kQs : u4s::kQs) + j * kGroupBytes);
      uint8_t* codes = to.codes[b] + j * kGroupBytes;
      _mm512_store_si512(codes, _mm512_and_si512(raw, mask));
      _mm512_store_si512(codes + 4 * kGroupBytes, _mm512_and_si512(_mm512_srli_epi16(raw, 4), mask));
    }
    store_scale(to, b, load_half16(p));
    if constexpr (Min) _mm512_store_ps(to.min[b], load_half16(p + u4sm::kM));
  }
  return p;
}

// Blocks of even and odd numbers have sums of their own, which meet at the end of a panel.
template <class Format>
SPOLA_NOINLINE void multiply_two(const Panel& panel, int blocks, const uint8_t* records, float* out) {
  GroupRecord<kManyRows> rows{records};
  __m512 even[kManyRows], odd[kManyRows];
  load_sums(even, out);
  clear(odd);
  long b = 0;
  for (; b + 2 <= blocks; b += 2) {
    Format::block(even, panel, b, rows);
    rows.p += rows.kBytes;
    Format::block(odd, panel, b + 1, rows);
    rows.p += rows.kBytes;
  }
  if (b < blocks) Format::block(even, panel, b, rows);
#pragma GCC unroll 16
  for (int r = 0; r < kManyRows; ++r) even[r] = _mm512_add_ps(even[r], odd[r]);
  store(even, out);
}

template <bool Min, class Format>
void many(const uint8_t* tile, const Activations& a, int row0, int rows, float* out) {
  Panel panel;
  const Ahead ahead(a, tile);
  const int blocks = a.k / kBlock;
  for (int i = 0; i < rows; ++i) _mm512_storeu_ps(out + i * kTileRows, _mm512_setzero_ps());
  for (int b = 0; b < blocks; b += kPanelBlocks) {
    const int some = blocks - b < kPanelBlocks ? blocks - b : kPanelBlocks;
    const uint8_t* fetched = tile;
    tile = unpack<Min>(panel, tile, some);
    for (; fetched < tile; fetched += 64) ahead.fetch<64>(fetched);
    for (int r = 0; r < rows; r += kManyRows) {
      const long before = static_cast<long>(row0 + r) * blocks + static_cast<long>(b) * kManyRows;
      multiply_two<Format>(panel, some, a.groups + before * kRowBlockBytes, out + r * kTileRows);
    }
  }
}

}  // namespace

const Kernels kAvx512vnni{"avx512vnni",
                          FreeAttention<Vector>::run,
                          rms_norm_free<Vector>,
                          one<false>,
                          one<true>,
                          many<false, Scaled<RowPlane::kZero8>>,
                          many<true, ScaledMin>};

}  // namespace spola::free_order
