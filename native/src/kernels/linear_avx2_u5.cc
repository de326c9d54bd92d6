// 5-bit weights times A8 activations: Q5_0, Q5_1, Q5_K.
//
// As for 4 bits, but only four products fit in int16 (4 * 2 * 31 * 127 = 31496). Tiles are done in halves
// of 8 output rows, so that int16 chains and int32 sums fit in registers together.
#include "kernels/panel_avx2.h"
#include "kernels/variants.h"

namespace spola::avx2 {
namespace {

// Fifth bits of group J as 0 or 16 in each byte; bit J of byte b of a lane belongs to column 4J + b.
template <int J>
SPOLA_INLINE __m256i fifth_bits(__m256i plane) {
  const __m256i sixteen = _mm256_set1_epi8(16);
  if constexpr (J < 4) return _mm256_and_si256(_mm256_slli_epi32(plane, 4 - J), sixteen);
  return _mm256_and_si256(_mm256_srli_epi32(plane, J - 4), sixteen);
}

// Low (Shift 0) or high (Shift 4) nibbles of 8 rows of a group.
template <int Shift>
SPOLA_INLINE __m256i nibbles(const uint8_t* p) {
  __m256i w = load256(p);
  if constexpr (Shift != 0) w = _mm256_srli_epi16(w, Shift);
  return _mm256_and_si256(w, _mm256_set1_epi8(15));
}

// sum[r] (+)= dot of columns 4 First .. 4 First + 15; group First + i is the nibbles at qs + i groups.
template <int First, int Shift, int MR>
SPOLA_INLINE void dot16(__m256i (&sum)[MR], const uint8_t* qs, __m256i plane, const int8_t* const (&q)[MR],
                        long at) {
  __m256i chain[MR];
  chain_add<true>(chain, _mm256_or_si256(nibbles<Shift>(qs), fifth_bits<First>(plane)), q, at);
  chain_add<false>(chain, _mm256_or_si256(nibbles<Shift>(qs + kGroupBytes), fifth_bits<First + 1>(plane)), q,
                   at + 4);
  chain_add<false>(chain, _mm256_or_si256(nibbles<Shift>(qs + 2 * kGroupBytes), fifth_bits<First + 2>(plane)),
                   q, at + 8);
  chain_add<false>(chain, _mm256_or_si256(nibbles<Shift>(qs + 3 * kGroupBytes), fifth_bits<First + 3>(plane)),
                   q, at + 12);
#pragma GCC unroll 4
  for (int r = 0; r < MR; ++r) {
    sum[r] = First == 0 ? pair_sum(chain[r]) : _mm256_add_epi32(sum[r], pair_sum(chain[r]));
    SPOLA_PIN(sum[r]);
  }
}

// Dot of 32 columns: low nibbles 0..15, high nibbles 16..31 of four groups.
template <int MR>
SPOLA_INLINE void dot_split(__m256i (&sum)[MR], const uint8_t* qs, const uint8_t* plane,
                            const int8_t* const (&q)[MR], long at) {
  const __m256i bits = load256(plane);
  dot16<0, 0>(sum, qs, bits, q, at);
  dot16<4, 4>(sum, qs, bits, q, at + 16);
}

template <class N>
void u5s(N, const uint8_t* p, const Activations& a, int row0, float* out) {
  constexpr int MR = N::value;
  const RowsA8<MR> rows(a, row0);
  Accumulators<MR> acc(out);
  for (long b = 0; b < a.k / kBlock; ++b, p += u5s::kBytes) {
    prefetch<MR, u5s::kBytes>(p);
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      __m256i sum[MR];
      dot_split(sum, p + u5s::kQs + h * 32, p + u5s::kPlane + h * 32, rows.q, b * kBlock);
      const __m256 d = load_half8(p + u5s::kD + h * 16);
#pragma GCC unroll 4
      for (int r = 0; r < MR; ++r) {
        const __m256i zero = _mm256_madd_epi16(bcast4(rows.h[r] + b * 2), _mm256_set1_epi16(-16));
        const __m256 product = scaled(_mm256_add_epi32(sum[r], zero), d);
        acc.fma(r, h, product, _mm256_broadcast_ss(rows.d[r] + b));
      }
    }
  }
  acc.store();
}

// acc = fma(da, scale * float(sum), acc), then fma(min, s, acc), for half h.
template <int MR>
SPOLA_INLINE void add_scale_min(Accumulators<MR>& acc, int h, const __m256i (&sum)[MR], __m256 scale,
                                __m256 min, const RowsA8<MR>& rows, long b) {
#pragma GCC unroll 4
  for (int r = 0; r < MR; ++r) {
    const __m256 da = _mm256_broadcast_ss(rows.d[r] + b), s = _mm256_broadcast_ss(rows.s[r] + b);
    const __m256 t = _mm256_fmadd_ps(scaled(sum[r], scale), da, acc.get(r, h));
    acc.set(r, h, _mm256_fmadd_ps(min, s, t));
  }
}

template <class N>
void u5sm(N, const uint8_t* p, const Activations& a, int row0, float* out) {
  constexpr int MR = N::value;
  const RowsA8<MR> rows(a, row0);
  Accumulators<MR> acc(out);
  for (long b = 0; b < a.k / kBlock; ++b, p += u5sm::kBytes) {
    prefetch<MR, u5sm::kBytes>(p);
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      __m256i sum[MR];
      dot_split(sum, p + u5sm::kQs + h * 32, p + u5sm::kPlane + h * 32, rows.q, b * kBlock);
      add_scale_min(acc, h, sum, load_half8(p + u5sm::kD + h * 16), load_half8(p + u5sm::kM + h * 16), rows,
                    b);
    }
  }
  acc.store();
}

// Sub-block n (0: low nibbles, 1: high) of a pair.
template <int Shift, int MR>
SPOLA_INLINE void sub_block(Accumulators<MR>& acc, const uint8_t* pair, const float* scale, const float* min,
                            const RowsA8<MR>& rows, long b) {
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    const __m256i bits = load256(pair + (Shift != 0 ? kGroupBytes : 0) + h * 32);
    const uint8_t* qs = pair + u5k::kPlanes + h * 32;
    __m256i sum[MR];
    dot16<0, Shift>(sum, qs, bits, rows.q, b * kBlock);
    dot16<4, Shift>(sum, qs + 4 * kGroupBytes, bits, rows.q, b * kBlock + 16);
    add_scale_min(acc, h, sum, _mm256_load_ps(scale + h * 8), _mm256_load_ps(min + h * 8), rows, b);
  }
}

template <class N>
void u5k(N, const uint8_t* p, const Activations& a, int row0, float* out) {
  constexpr int MR = N::value;
  const RowsA8<MR> rows(a, row0);
  Accumulators<MR> acc(out);
  KScales scales;
  for (long b = 0; b < a.k / kBlock; b += 8, p += u5k::kBytes) {
    prefetch<MR, u5k::kPairs>(p);
    scales.load(p);
    for (long i = 0; i < 4; ++i) {
      const uint8_t* pair = p + u5k::kPairs + i * u5k::kPairBytes;
      prefetch<MR, u5k::kPairBytes>(pair);
      sub_block<0>(acc, pair, scales.scale[i * 2], scales.min[i * 2], rows, b + i * 2);
      sub_block<4>(acc, pair, scales.scale[i * 2 + 1], scales.min[i * 2 + 1], rows, b + i * 2 + 1);
    }
  }
  acc.store();
}

// The bytes of groups First .. First + 3, whose nibbles are at qs, for 8 rows.
template <int First, int Shift>
SPOLA_INLINE void unpack4(const uint8_t* qs, __m256i plane, uint8_t* to) {
  unrolled<First + 4, First>([&](auto j) __attribute__((always_inline)) {
    const long at = (j.value - First) * kGroupBytes;
    const __m256i code = _mm256_or_si256(nibbles<Shift>(qs + at), fifth_bits<j.value>(plane));
    _mm256_store_si256(reinterpret_cast<__m256i*>(to + at), code);
  });
}

SPOLA_INLINE void unpack_split(const uint8_t* qs, const uint8_t* plane, uint8_t* to) {
#pragma GCC unroll 2
  for (int h = 0; h < 64; h += 32) {
    const __m256i bits = load256(plane + h);
    unpack4<0, 0>(qs + h, bits, to + h);
    unpack4<4, 4>(qs + h, bits, to + 4 * kGroupBytes + h);
  }
}

struct ManyU5S : FiveBits<RowPlane::kZero16, false> {
  static SPOLA_NOINLINE const uint8_t* unpack(Panel& to, const uint8_t* p, int blocks) {
    for (int b = 0; b < blocks; ++b, p += u5s::kBytes) {
      unpack_split(p + u5s::kQs, p + u5s::kPlane, to.codes[b]);
      store_half_planes(to, b, p + u5s::kD);
    }
    return p;
  }
};

struct ManyU5SM : FiveBits<RowPlane::kCount, true> {
  static SPOLA_NOINLINE const uint8_t* unpack(Panel& to, const uint8_t* p, int blocks) {
    for (int b = 0; b < blocks; ++b, p += u5sm::kBytes) {
      unpack_split(p + u5sm::kQs, p + u5sm::kPlane, to.codes[b]);
      store_half_planes(to, b, p + u5sm::kD);
      store_mins(to, b, p + u5sm::kM);
    }
    return p;
  }
};

struct ManyU5K : FiveBits<RowPlane::kCount, true> {
  static SPOLA_NOINLINE const uint8_t* unpack(Panel& to, const uint8_t* p, int) {
    store_kscales(to, p);
    for (int i = 0; i < 4; ++i) {
      const uint8_t* pair = p + u5k::kPairs + i * u5k::kPairBytes;
      sub_block_bytes<0>(pair, to.codes[2 * i]);
      sub_block_bytes<4>(pair, to.codes[2 * i + 1]);
    }
    return p + u5k::kBytes;
  }

 private:
  template <int Shift>
  static SPOLA_INLINE void sub_block_bytes(const uint8_t* pair, uint8_t* to) {
#pragma GCC unroll 2
    for (int h = 0; h < 64; h += 32) {
      const __m256i bits = load256(pair + (Shift != 0 ? kGroupBytes : 0) + h);
      const uint8_t* qs = pair + u5k::kPlanes + h;
      unpack4<0, Shift>(qs, bits, to + h);
      unpack4<4, Shift>(qs + 4 * kGroupBytes, bits, to + 4 * kGroupBytes + h);
    }
  }
};

}  // namespace

SPOLA_PANEL_KERNEL(tile_u5s_a8, u5s, ManyU5S)
SPOLA_PANEL_KERNEL(tile_u5sm_a8, u5sm, ManyU5SM)
SPOLA_PANEL_KERNEL(tile_u5k_a8, u5k, ManyU5K)

}  // namespace spola::avx2
