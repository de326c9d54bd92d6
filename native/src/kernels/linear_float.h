// F32, F16, BF16 and E4M3 weights times f32 activations on x86: one FMA per product, k ascending, S being the
// instruction set. For SIMD sources only (linear_dot.h says why).
//
// Rows that the registers hold meet the weights as they are stored. With more rows kPiece columns of a tile become
// f32 in the first-level cache once for all rows of the call, which then pass by in groups; between pieces the
// sums rest in `out`.
//
// S: F, kParts registers of a tile's 16 output rows, kRows activation rows that they hold, zero, load, store;
// add_product(acc, w, x), which does acc = fma(w, *x, acc); Fetch<MR>, which prefetches weights while MR rows read
// them.
// W: kColumn bytes a column, kRun columns that follow kHead bytes; W(run) and column(i, part) as f32; kRows rows that
// fit into the registers beside what it takes to convert them, and kFew, up to which calls of these are faster.
#pragma once

#include "kernels/panel.h"
#include "kernels/records.h"
#include "kernels/row_groups.h"

namespace spola {
namespace {

// Weights of a piece, as f32 already: nothing is fetched for them.
struct NoFetch {
  template <int Bytes>
  SPOLA_INLINE void fetch(const uint8_t*) const {}
};

template <class S>
struct FloatTile {
  using F = typename S::F;
  static constexpr int kParts = S::kParts, kLanes = kTileRows / S::kParts, kPiece = 256;

  template <int MR>
  using Sums = F[MR][kParts];

  // `kept`, where not null, is given the weights as f32.
  template <int MR, class W>
  static SPOLA_INLINE void column(Sums<MR>& acc, const W& w, int i, const float* x, long stride, float* kept) {
    F value[kParts];
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) {
      value[part] = w.column(i, part);
      if (kept) S::store(kept + part * kLanes, value[part]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < MR; ++r) S::add_product(acc[r], value, x + r * stride);
  }

  // n columns from `p` and x on.
  template <class W, int MR, bool Keep, class Fetch>
  static SPOLA_INLINE void columns(Sums<MR>& acc, const uint8_t* p, const float* x, long stride, long n,
                                   const Fetch& fetch, float* kept) {
    constexpr int kRunBytes = W::kHead + W::kRun * W::kColumn;
    const auto one = [&](const W& w, int i, long k) __attribute__((always_inline)) {
      column<MR>(acc, w, i, x + k, stride, Keep ? kept + k * kTileRows : nullptr);
    };
    long k = 0;
    for (; k + W::kRun <= n; k += W::kRun, p += kRunBytes) {
      const W w(p);
      if constexpr (W::kHead != 0) fetch.template fetch<W::kHead>(p);
      for (int i = 0; i < W::kRun; i += 4) {
        fetch.template fetch<4 * W::kColumn>(p + W::kHead + i * W::kColumn);
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) one(w, i + j, k + i + j);
      }
    }
#pragma GCC unroll 1
    for (; k < n; ++k, p += W::kColumn) one(W(p), 0, k);
  }

  template <int MR>
  static SPOLA_INLINE void store(const Sums<MR>& acc, float* out) {
#pragma GCC unroll 16
    for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 2
      for (int part = 0; part < kParts; ++part) {
        S::store(out + r * kTileRows + part * kLanes, acc[r][part]);
      }
    }
  }

  // MR rows, all columns.
  template <class W, int MR>
  static SPOLA_NOINLINE void few(const uint8_t* tile, const Activations& a, int row0, float* out) {
    Sums<MR> acc;
#pragma GCC unroll 16
    for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 2
      for (int part = 0; part < kParts; ++part) acc[r][part] = S::zero();
    }
    columns<W, MR, false>(acc, tile, a.f32 + row0 * static_cast<long>(a.k), a.k, a.k,
                          typename S::template Fetch<MR>(a, tile), nullptr);
    store<MR>(acc, out);
  }

  // The sums of MR rows go on with n columns.
  template <class W, int MR, bool Keep>
  static SPOLA_NOINLINE void multiply(const uint8_t* p, const float* x, long stride, long n, float* out,
                                      float* kept) {
    Sums<MR> acc;
#pragma GCC unroll 16
    for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 2
      for (int part = 0; part < kParts; ++part) {
        acc[r][part] = S::load(out + r * kTileRows + part * kLanes);
      }
    }
    columns<W, MR, Keep>(acc, p, x, stride, n, NoFetch{}, kept);
    store<MR>(acc, out);
  }

  // n columns from `p` on as f32; returns where they end.
  template <class W>
  static SPOLA_NOINLINE const uint8_t* unpack(const uint8_t* p, int n, float* to) {
    for (int k = 0; k < n; k += W::kRun) {
      const W w(p);
      const int run = n - k < W::kRun ? n - k : W::kRun;
      for (int i = 0; i < run; ++i, to += kTileRows) {
#pragma GCC unroll 2
        for (int part = 0; part < kParts; ++part) S::store(to + part * kLanes, w.column(i, part));
      }
      p += W::kHead + run * W::kColumn;
    }
    return p;
  }

  // Any number of rows. The first group makes the panel from the weights as stored, where the registers allow.
  template <class W>
  static SPOLA_NOINLINE void many(const uint8_t* tile, const Activations& a, int row0, int rows, float* out) {
    constexpr bool kStored = W::kColumn == kTileRows * sizeof(float);  // as f32 already
    constexpr bool kApart = W::kRows < S::kRows;
    alignas(64) float panel[kStored ? 1 : kPiece * kTileRows];
    const RowGroups groups(rows, S::kRows);
    const long stride = a.k;
    const float* const x = a.f32 + row0 * stride;
    const uint8_t* piece;
    for (int i = 0; i < rows * kTileRows; i += kLanes) S::store(out + i, S::zero());
    const auto begin = [&](const uint8_t* p, int n) __attribute__((always_inline)) {
      piece = p;
      if constexpr (kApart) return unpack<W>(p, n, panel);
      return p + n * W::kColumn + n / W::kRun * W::kHead;
    };
    const auto group = [&](int g, int k, int n) __attribute__((always_inline)) {
      const int row = groups.begin(g);
      with_rows_up_to<S::kRows>(groups.begin(g + 1) - row, [&](auto count) __attribute__((always_inline)) {
        constexpr int MR = decltype(count)::value;
        const auto go_on = [&](auto function, const uint8_t* p) __attribute__((always_inline)) {
          function(p, x + row * stride + k, stride, n, out + row * kTileRows, panel);
        };
        if constexpr (!kApart && !kStored) {
          if (g == 0) return go_on(multiply<W, MR, true>, piece);
        }
        go_on(multiply<typename S::F32, MR, false>, kStored ? piece : reinterpret_cast<const uint8_t*>(panel));
      });
    };
    by_pieces(a, tile, kPiece, groups.count, begin, group);
  }

  // Rows of more than one call of `few`.
  template <class W>
  static SPOLA_NOINLINE void by_calls(const uint8_t* tile, const Activations& a, int row0, int rows, float* out) {
    Activations in = a;
    for (int r = 0, n = 0; r < rows; r += n, in.next = nullptr) {
      n = rows_of_call(rows - r, W::kRows);
      with_rows_up_to<W::kRows>(n, [&](auto c) __attribute__((always_inline)) {
        few<W, decltype(c)::value>(tile, in, row0 + r, out + r * kTileRows);
      });
    }
  }

  template <class W>
  static SPOLA_INLINE void rows(const uint8_t* tile, const Activations& a, int row0, int rows, float* out) {
    if (rows > W::kFew) return many<W>(tile, a, row0, rows, out);
    if (rows > W::kRows) return by_calls<W>(tile, a, row0, rows, out);
    with_rows_up_to<W::kRows>(rows, [&](auto c) __attribute__((always_inline)) {
      few<W, decltype(c)::value>(tile, a, row0, out);
    });
  }
};

}  // namespace
}  // namespace spola

#define SPOLA_FLOAT_KERNEL(name, S, W)                                                   \
  void name(const uint8_t* tile, const Activations& a, int row0, int rows, float* out) { \
    FloatTile<S>::rows<W>(tile, a, row0, rows, out);                                     \
  }
