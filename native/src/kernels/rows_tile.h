// Activation functions, norms, conversions and reductions over a row, for every instruction set. See
// elementwise_scalar.cc, norm_scalar.cc and quantize_scalar.cc for what they do; math_tile.h for V and the rules.
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/math_tile.h"

namespace spola {
namespace {

template <class V>
struct RowKernels {
  using F = typename V::F;
  using M = Maths<V>;
  static constexpr int W = V::kWidth;

  static SPOLA_INLINE void silu_mul(const float* gate, const float* up, int n, float* y) {
    M::each(n, [&](auto step, long i) {
      const F g = step.load(gate + i);
      const F silu = V::div(g, V::add(V::set1(1.0f), M::exp(V::negate(g))));
      step.store(y + i, V::mul(silu, step.load(up + i)));
    });
  }

  static SPOLA_INLINE void gelu_tanh_mul(const float* gate, const float* up, int n, float* y) {
    M::each(n, [&](auto step, long i) {
      const F x = step.load(gate + i);
      const F cube = V::mul(V::set1(0.044715f), V::mul(x, x));
      const F u = V::mul(V::set1(0.7978845608f), V::fma(cube, x, x));
      const F h = V::mul(V::set1(0.5f), x);
      step.store(y + i, V::mul(V::fma(h, M::tanh(u), h), step.load(up + i)));
    });
  }

  static SPOLA_INLINE void gelu_mul(const float* gate, const float* up, int n, float* y) {
    M::each(n, [&](auto step, long i) {
      const F x = step.load(gate + i), h = V::mul(V::set1(0.5f), x);
      const F gelu = V::fma(h, M::erf(V::mul(V::set1(0.7071067812f), x)), h);
      step.store(y + i, V::mul(gelu, step.load(up + i)));
    });
  }

  static SPOLA_INLINE void f32_to_f16(const float* x, int n, uint16_t* y) {
    M::each(n, [&](auto step, long i) {
      const F v = step.load(x + i);
      if constexpr (step.kWhole) {
        V::store_half(y + i, v);
      } else {
        alignas(16) uint16_t last[W];
        V::store_half(last, v);
        for (long j = i; j < n; ++j) y[j] = last[j - i];
      }
    });
  }

  static SPOLA_INLINE void quantize_kv(const float* x, int n, int8_t* q, uint16_t* d) {
    for (long from = 0; from < n; from += kKvGroup, x += kKvGroup, q += kKvGroup, ++d) {
      const long count = n - from < kKvGroup ? n - from : kKvGroup;
      F most = V::zero();
      typename V::Mask endless = V::lanes(0, 0);  // of infinity less itself comes NaN
      M::each(count, [&](auto step, long i) {
        const F v = V::abs(step.load(x + i));
        endless = V::either(endless, V::unordered(V::sub(v, v)));
        most = V::max(most, v);
      });
      uint16_t halves[W];
      V::store_half(halves, V::set1(V::max_lane(most) / 127.0f));
      *d = V::any(endless) ? uint16_t{0x7e00} : halves[0];
      const float scale = V::load_half1(reinterpret_cast<const uint8_t*>(d));
      const bool usable = scale > 0.0f && scale < __builtin_inff();
      const F inverse = V::set1(usable ? 1.0f / scale : 0.0f);
      M::each(count, [&](auto step, long i) {
        const F v = usable ? V::round(V::mul(step.load(x + i), inverse)) : V::zero();
        const F code = V::max(V::set1(-127.0f), V::min_of(127.0f, v));
        if constexpr (step.kWhole) {
          V::store_i8(q + i, code);
        } else {
          alignas(16) int8_t last[W];
          V::store_i8(last, code);
          for (long j = i; j < count; ++j) q[j] = last[j - i];
        }
      });
    }
  }

  static SPOLA_INLINE void exp_many(const float* x, int n, float* y) {
    M::each(n, [&](auto step, long i) { step.store(y + i, M::exp(step.load(x + i))); });
  }

  static SPOLA_INLINE float max_many(const float* x, int n) {
    const F lowest = V::set1(-__builtin_inff());
    F most = lowest;
    typename V::Mask nan = V::lanes(0, 0);
    M::each(n, [&](auto step, long i) {
      const F v = step.keep(step.load(x + i), lowest);
      nan = V::either(nan, V::unordered(v));
      most = V::max(most, v);
    });
    if (V::any(nan)) return __builtin_nanf("");
    return V::max_lane(most) + 0.0f;  // -0 becomes +0
  }

  static SPOLA_INLINE float sum_exp16(const float* x, int n, float shift) {
    const F m = V::set1(shift);
    return M::sum16(n, [&](auto step, long i, F lane) {
      return V::add(lane, step.keep(M::exp(V::sub(step.load(x + i), m)), V::zero()));
    });
  }

  static SPOLA_INLINE void rms_norm(const float* x, const float* w, float eps, int n, float* y) {
    const float squares = M::sum16(n, [&](auto step, long i, F lane) {
      const F v = step.load(x + i);
      return V::fma(v, v, lane);
    });
    const F r = V::set1(inverse_root(squares, n, eps));
    M::each(n, [&](auto step, long i) {
      step.store(y + i, V::mul(V::mul(step.load(x + i), r), step.load(w + i)));
    });
  }

  static SPOLA_INLINE void layer_norm(const float* x, const float* w, const float* b, float eps, int n,
                                      float* y) {
    const float sum =
        M::sum16(n, [&](auto step, long i, F lane) { return V::add(lane, step.load(x + i)); });
    const F mu = V::set1(sum / static_cast<float>(n));
    const float squares = M::sum16(n, [&](auto step, long i, F lane) {
      const F c = step.keep(V::sub(step.load(x + i), mu), V::zero());
      return V::fma(c, c, lane);
    });
    const F r = V::set1(inverse_root(squares, n, eps));
    M::each(n, [&](auto step, long i) {
      const F c = V::mul(V::sub(step.load(x + i), mu), r);
      step.store(y + i, V::fma(c, step.load(w + i), step.load(b + i)));
    });
  }

 private:
  // 1 / sqrt(sum / n + eps)
  static SPOLA_INLINE float inverse_root(float sum, int n, float eps) {
    return 1.0f / __builtin_sqrtf(sum / static_cast<float>(n) + eps);
  }
};

}  // namespace
}  // namespace spola

// Define the functions of a table (variants.h) in the namespace at hand. Rows that norms and conversions work
// on are so short that a second instruction set of one architecture need not have them.
#define SPOLA_ACTIVATION_KERNELS(...)                                                \
  void silu_mul(const float* gate, const float* up, int n, float* y) {               \
    __VA_ARGS__::silu_mul(gate, up, n, y);                                           \
  }                                                                                  \
  void gelu_tanh_mul(const float* gate, const float* up, int n, float* y) {          \
    __VA_ARGS__::gelu_tanh_mul(gate, up, n, y);                                      \
  }                                                                                  \
  void exp_many(const float* x, int n, float* y) { __VA_ARGS__::exp_many(x, n, y); } \
  float max_many(const float* x, int n) { return __VA_ARGS__::max_many(x, n); }      \
  float sum_exp16(const float* x, int n, float shift) { return __VA_ARGS__::sum_exp16(x, n, shift); }

#define SPOLA_ROW_KERNELS(...)                                                                  \
  SPOLA_ACTIVATION_KERNELS(__VA_ARGS__)                                                         \
  void gelu_mul(const float* gate, const float* up, int n, float* y) {                          \
    __VA_ARGS__::gelu_mul(gate, up, n, y);                                                      \
  }                                                                                             \
  void f32_to_f16(const float* x, int n, uint16_t* y) { __VA_ARGS__::f32_to_f16(x, n, y); }     \
  void quantize_kv(const float* x, int n, int8_t* q, uint16_t* d) {                             \
    __VA_ARGS__::quantize_kv(x, n, q, d);                                                       \
  }                                                                                             \
  void rms_norm(const float* x, const float* w, float eps, int n, float* y) {                   \
    __VA_ARGS__::rms_norm(x, w, eps, n, y);                                                     \
  }                                                                                             \
  void layer_norm(const float* x, const float* w, const float* b, float eps, int n, float* y) { \
    __VA_ARGS__::layer_norm(x, w, b, eps, n, y);                                                \
  }
