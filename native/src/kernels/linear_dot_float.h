// F32, F16, BF16 and E4M3 weights times f32 activations: one FMA per product, k ascending. See linear_dot.h.
#pragma once

#include "kernels/linear_dot.h"

namespace spola {
namespace {

template <class S, class W>
struct FloatWeights {
  // Columns before the next part: a tile of one part is read once, a tile of more in pieces that stay in L1.
  static constexpr long kPiece = S::kParts == 1 ? 1L << 30 : 32;

  template <class N>
  static void tile(N, const uint8_t* p, const Activations& a, int row0, float* out) {
    constexpr int MR = N::value;
    const Ahead ahead(a, p);
    const long stride = a.k;
    const float* x = a.f32 + row0 * stride;
    for (long from = 0; from < stride; from += kPiece) {
      const long to = stride - from < kPiece ? stride : from + kPiece;
#pragma GCC unroll 4
      for (int part = 0; part < S::kParts; ++part) {
        typename S::F acc[MR];
#pragma GCC unroll 16
        for (int r = 0; r < MR; ++r) {
          acc[r] = from == 0 ? S::zero() : S::load_float(out + r * kTileRows + part * S::kLanes);
        }
        columns(acc, p, part, x, stride, from, to, ahead);
#pragma GCC unroll 16
        for (int r = 0; r < MR; ++r) S::store(out + r * kTileRows + part * S::kLanes, acc[r]);
      }
    }
  }

  template <int MR>
  static SPOLA_INLINE void columns(typename S::F (&acc)[MR], const uint8_t* p, int part, const float* x,
                                   long stride, long from, long to, const Ahead& ahead) {
    constexpr int kColumn = W::kSize * kTileRows;
    p += from * kColumn + part * S::kLanes * W::kSize;
    long k = from;
    for (; k + 4 <= to; k += 4, p += 4 * kColumn) {
      if (part == 0) ahead.fetch<4 * kColumn>(p);
      const typename S::template Four<MR> four(x + k, stride);
      unrolled<4>([&](auto i) { S::template fma_rows<i.value>(acc, W::load(p + i.value * kColumn), four); });
    }
    for (; k < to; ++k, p += kColumn) {
      const auto w = W::load(p);
#pragma GCC unroll 16
      for (int r = 0; r < MR; ++r) acc[r] = S::fma(w, x[r * stride + k], acc[r]);
    }
  }
};

// 8-bit floats with a scale per row. A power of two in the scale instead of the code changes no bit of their
// product.
template <class S>
struct ScaledFloats {
  template <class N>
  static void e4m3(N, const uint8_t* p, const Activations& a, int row0, float* out) {
    constexpr int MR = N::value;
    const Ahead ahead(a, p);
    const long stride = a.k;
    const float* x = a.f32 + row0 * stride;
    for (long k = 0; k < stride; k += e4m3::kCols, p += e4m3::kBytes) {
      ahead.fetch<e4m3::kBytes>(p);
#pragma GCC unroll 4
      for (int part = 0; part < S::kParts; ++part) {
        const float* scales = reinterpret_cast<const float*>(p + e4m3::kScale) + part * S::kLanes;
        const auto scale = S::mul(S::load_float(scales), 256.0f);
        typename S::F acc[MR];
#pragma GCC unroll 16
        for (int r = 0; r < MR; ++r) {
          acc[r] = k == 0 ? S::zero() : S::load_float(out + r * kTileRows + part * S::kLanes);
        }
        const uint8_t* codes = p + e4m3::kQs + part * S::kLanes;
        for (long i = 0; i < e4m3::kCols; i += 4, codes += 4 * kTileRows) {
          const typename S::template Four<MR> four(x + k + i, stride);
          unrolled<4>([&](auto j) {
            const auto w = S::mul(S::load_e4m3(codes + j.value * kTileRows), scale);
            S::template fma_rows<j.value>(acc, w, four);
          });
        }
#pragma GCC unroll 16
        for (int r = 0; r < MR; ++r) S::store(out + r * kTileRows + part * S::kLanes, acc[r]);
      }
    }
  }
};

}  // namespace
}  // namespace spola
