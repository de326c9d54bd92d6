// exp, tanh, erf, loops over rows and the sixteen-lane sum of docs/numerics.md, for every instruction set.
//
// V is a vector of kWidth floats (vector_ISA.h). For SIMD sources only: everything is internal to its source
// file and no standard library is used, as an inline function compiled for one instruction set could be the
// copy the linker keeps for everybody.
#pragma once

#include "kernels/inline.h"

namespace spola {
namespace {

template <class V>
struct Maths {
  using F = typename V::F;
  static constexpr int W = V::kWidth;

  static SPOLA_INLINE F exp(F x) {
    const F limited = V::min_of(88.0f, x);
    const F n = V::round(V::mul(limited, V::set1(1.44269504f)));
    F r = V::fma(n, V::set1(-0.693359375f), limited);
    r = V::fma(n, V::set1(2.12194440e-4f), r);
    F p = V::set1(1.9875691500e-4f);
    p = V::fma(p, r, V::set1(1.3981999507e-3f));
    p = V::fma(p, r, V::set1(8.3334519073e-3f));
    p = V::fma(p, r, V::set1(4.1665795894e-2f));
    p = V::fma(p, r, V::set1(1.6666665459e-1f));
    p = V::fma(p, r, V::set1(5.0000001201e-1f));
    const F y = V::add(V::fma(p, V::mul(r, r), r), V::set1(1.0f));
    return V::zero_below(x, -87.33654f, V::mul(y, V::power_of_two(n)));
  }

  static SPOLA_INLINE F tanh(F x) {
    const F one = V::set1(1.0f), twice = V::mul(V::set1(2.0f), V::abs(x));
    const F e = exp(V::min_of(40.0f, twice));
    return V::with_sign(V::sub(one, V::div(V::set1(2.0f), V::add(e, one))), x);
  }

  static SPOLA_INLINE F erf(F x) {
    const F one = V::set1(1.0f), a = V::abs(x);
    const F t = V::div(one, V::fma(V::set1(0.3275911f), a, one));
    F p = V::set1(1.061405429f);
    p = V::fma(p, t, V::set1(-1.453152027f));
    p = V::fma(p, t, V::set1(1.421413741f));
    p = V::fma(p, t, V::set1(-0.284496736f));
    p = V::fma(p, t, V::set1(0.254829592f));
    const F e = exp(V::negate(V::mul(a, a)));
    return V::with_sign(V::sub(one, V::mul(V::mul(p, t), e)), x);
  }

  // A step of a loop over a row: a whole vector, or the last n values of the row, all other lanes left alone.
  struct Whole {
    static constexpr bool kWhole = true;
    SPOLA_INLINE F load(const float* p) const { return V::load(p); }
    SPOLA_INLINE void store(float* p, F x) const { V::store(p, x); }
    SPOLA_INLINE F keep(F x, F) const { return x; }
  };
  struct Rest {
    static constexpr bool kWhole = false;
    int n;  // 1 .. W - 1
    SPOLA_INLINE F load(const float* p) const { return V::load_first(p, n); }  // zeros beyond
    SPOLA_INLINE void store(float* p, F x) const { V::store_first(p, n, x); }
    SPOLA_INLINE F keep(F x, F other) const { return V::select(V::lanes(0, n), x, other); }
  };

  // Calls body(step, i) for n values.
  template <class Body>
  static SPOLA_INLINE void each(long n, Body body) {
    long i = 0;
    for (; i + W <= n; i += W) body(Whole{}, i);
    if (i < n) body(Rest{static_cast<int>(n - i)}, i);
  }

  // sum16 of term(step, i, lane sums before) -> lane sums after.
  template <class Term>
  static SPOLA_INLINE float sum16(long n, Term term) {
    constexpr int kParts = 16 / W;
    F lane[kParts];
#pragma GCC unroll 4
    for (int j = 0; j < kParts; ++j) lane[j] = V::zero();
    long i = 0;
    for (; i + 16 <= n; i += 16) {
#pragma GCC unroll 4
      for (int j = 0; j < kParts; ++j) lane[j] = term(Whole{}, i + j * W, lane[j]);
    }
#pragma GCC unroll 4
    for (int j = 0; j < kParts; ++j) {
      const long left = n - i - j * W;
      if (left >= W) {
        lane[j] = term(Whole{}, i + j * W, lane[j]);
      } else if (left > 0) {
        lane[j] = term(Rest{static_cast<int>(left)}, i + j * W, lane[j]);
      }
    }
    return V::tree16(lane);
  }
};

}  // namespace
}  // namespace spola
