// 8-bit codes times A16 activations: Q8_0, and the generic schemes of --precise.
//
// Products of int16 pairs by madd, exact in int32. Up to kFew rows codes are sign-extended in registers for every
// four of them; with more, 256 columns of a tile become int16 and f32 once for all rows of the call (panel.h).
#include "kernels/panel.h"
#include "kernels/row_groups.h"
#include "kernels/simd_avx2.h"
#include "kernels/variants.h"

namespace spola::avx2 {
namespace {

constexpr int kRows = 4;
constexpr int kFew = 2 * kRows;
constexpr int kPiece = 256;
constexpr int kPairBytes = kTileRows * 4;  // two int16 of all rows of a tile

// What a record holds. kNatural: a dword's bytes are columns 4j + 0, 1, 2, 3 and not in the order of i8s.
struct Halves {
  static constexpr int kGroup = kBlock, kCodes = i8s::kQs, kBytes = i8s::kBytes;
  static constexpr bool kMin = false, kNatural = false;
  static SPOLA_INLINE __m256 scale(const uint8_t* p, int h) { return load_half8(p + i8s::kD + h * 16); }
  static SPOLA_INLINE __m256 min(const uint8_t*, int) { return _mm256_setzero_ps(); }
};

template <int Group, bool Min>
struct Generic {
  static constexpr int kGroup = Group, kCodes = kFloatPlane * (Min ? 2 : 1), kBytes = kCodes + Group / 4 * kGroupBytes;
  static constexpr bool kMin = Min, kNatural = true;
  static SPOLA_INLINE __m256 scale(const uint8_t* p, int h) { return load_float8(p + h * 32); }
  static SPOLA_INLINE __m256 min(const uint8_t* p, int h) { return load_float8(p + kFloatPlane + h * 32); }
};

template <int MR>
struct RowsA16 {
  const int16_t* q[MR];

  SPOLA_INLINE RowsA16(const int16_t* first, long stride) {
#pragma GCC unroll 4
    for (int r = 0; r < MR; ++r) q[r] = first + r * stride;
  }
};

// sum += w * a for pairs of int16, 16 rows, columns q[r] + at and at + 1.
template <bool First, int MR>
SPOLA_INLINE void pair_add(__m256i (&sum)[MR][2], __m256i w0, __m256i w1, const int16_t* const (&q)[MR],
                           long at) {
#pragma GCC unroll 4
  for (int r = 0; r < MR; ++r) {
    const __m256i b = bcast4(q[r] + at);
    const __m256i p0 = _mm256_madd_epi16(w0, b), p1 = _mm256_madd_epi16(w1, b);
    sum[r][0] = First ? p0 : _mm256_add_epi32(sum[r][0], p0);
    SPOLA_PIN(sum[r][0]);
    sum[r][1] = First ? p1 : _mm256_add_epi32(sum[r][1], p1);
    SPOLA_PIN(sum[r][1]);
  }
}

// 4 codes per dword, in the order 0, 2, 1, 3: the even and the odd bytes, extended, are pairs of neighbours.
template <bool Natural>
SPOLA_INLINE __m256i load_codes(const uint8_t* p) {
  const __m256i w = load256(p);
  if constexpr (!Natural) return w;
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
  return _mm256_shuffle_epi8(w, order);
}

SPOLA_INLINE __m256i even_codes(__m256i w) { return _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8); }
SPOLA_INLINE __m256i odd_codes(__m256i w) { return _mm256_srai_epi16(w, 8); }

// Dot of 4 * Groups columns, codes as in the record.
template <int Groups, bool Natural, int MR>
SPOLA_INLINE void dot_codes(__m256i (&sum)[MR][2], const uint8_t* qs, const int16_t* const (&q)[MR], long at) {
#pragma GCC unroll 16
  for (int j = 0; j < Groups; ++j) {
    const __m256i w0 = load_codes<Natural>(qs + j * kGroupBytes),
                  w1 = load_codes<Natural>(qs + j * kGroupBytes + 32);
    if (j == 0) {
      pair_add<true>(sum, even_codes(w0), even_codes(w1), q, at);
    } else {
      pair_add<false>(sum, even_codes(w0), even_codes(w1), q, at + 4 * j);
    }
    pair_add<false>(sum, odd_codes(w0), odd_codes(w1), q, at + 4 * j + 2);
  }
}

// The sum of a group's int16 in each of eight parts.
template <int Group>
SPOLA_INLINE __m256i partial_sums(const int16_t* q) {
  const __m256i s = pair_sum(load256(q));
  if constexpr (Group == 16) return s;
  return _mm256_add_epi32(s, pair_sum(load256(q + 16)));
}

// The sum of a group, in all lanes, as f32.
template <int Group>
SPOLA_INLINE __m256 sum_codes(const int16_t* q) {
  const __m256i s = partial_sums<Group>(q);
  __m128i t = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
  t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
  t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1));
  return _mm256_cvtepi32_ps(_mm256_broadcastd_epi32(t));
}

template <class Format>
struct Few {
  template <class N>
  static void rows(N, const uint8_t* p, const Activations& a, int row0, float* out) {
    constexpr int MR = N::value;
    const RowsA16<MR> rows(a.q16 + row0 * static_cast<long>(a.k), a.k);
    Accumulators<MR> acc(out);
    for (long k = 0; k < a.k; k += Format::kGroup, p += Format::kBytes) {
      prefetch<MR, Format::kBytes>(p);
      __m256i sum[MR][2];
      dot_codes<Format::kGroup / 4, Format::kNatural>(sum, p + Format::kCodes, rows.q, k);
      const __m256 scale[2] = {Format::scale(p, 0), Format::scale(p, 1)};
#pragma GCC unroll 4
      for (int r = 0; r < MR; ++r) {
        acc.fma(r, 0, scale[0], _mm256_cvtepi32_ps(sum[r][0]));
        acc.fma(r, 1, scale[1], _mm256_cvtepi32_ps(sum[r][1]));
        if constexpr (Format::kMin) {
          const __m256 s = sum_codes<Format::kGroup>(rows.q[r] + k);
          acc.fma(r, 0, Format::min(p, 0), s);
          acc.fma(r, 1, Format::min(p, 1), s);
        }
      }
    }
    acc.store_scaled(a.d16 + row0);
  }
};

template <class Format>
struct Many {
  static constexpr int kGroups = kPiece / Format::kGroup;

  struct Panel {
    alignas(64) uint8_t pairs[kPiece / 2][kPairBytes];
    alignas(64) float scale[kGroups][kTileRows];
    alignas(64) float min[Format::kMin ? kGroups : 1][kTileRows];
  };
  using Sums = float[Format::kMin ? kRows : 1][kGroups];  // of the activations of each group

  // n columns from the record at p on; returns where they end.
  static SPOLA_NOINLINE const uint8_t* unpack(Panel& to, const uint8_t* p, int n) {
    for (int g = 0; g < n / Format::kGroup; ++g, p += Format::kBytes) {
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        _mm256_store_ps(to.scale[g] + h * 8, Format::scale(p, h));
        if constexpr (Format::kMin) _mm256_store_ps(to.min[g] + h * 8, Format::min(p, h));
#pragma GCC unroll 16
        for (int j = 0; j < Format::kGroup / 4; ++j) {
          const __m256i w = load_codes<Format::kNatural>(p + Format::kCodes + j * kGroupBytes + h * 32);
          uint8_t* const pair = to.pairs[g * (Format::kGroup / 2) + 2 * j] + h * 32;
          _mm256_store_si256(reinterpret_cast<__m256i*>(pair), even_codes(w));
          _mm256_store_si256(reinterpret_cast<__m256i*>(pair + kPairBytes), odd_codes(w));
        }
      }
    }
    return p;
  }

  // Sums of eight groups of one row at a time; of those beyond `groups` it reads nothing.
  static SPOLA_NOINLINE void sum_groups(const int16_t* q, int groups, float* to) {
    for (int g = 0; g < groups; g += 8, q += 8 * Format::kGroup) {
      __m256i s[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        s[i] = g + i < groups ? partial_sums<Format::kGroup>(q + i * Format::kGroup) : _mm256_setzero_si256();
      }
      const __m256i low = _mm256_hadd_epi32(_mm256_hadd_epi32(s[0], s[1]), _mm256_hadd_epi32(s[2], s[3]));
      const __m256i high = _mm256_hadd_epi32(_mm256_hadd_epi32(s[4], s[5]), _mm256_hadd_epi32(s[6], s[7]));
      const __m256i sum = _mm256_add_epi32(_mm256_permute2x128_si256(low, high, 0x20),
                                           _mm256_permute2x128_si256(low, high, 0x31));
      _mm256_storeu_ps(to + g, _mm256_cvtepi32_ps(sum));
    }
  }

  // Dot of a group's columns for the pairs at `w`.
  template <int MR>
  static SPOLA_INLINE void dot_pairs(__m256i (&sum)[MR][2], const uint8_t* w, const int16_t* const (&q)[MR], long at) {
#pragma GCC unroll 32
    for (int j = 0; j < Format::kGroup / 2; ++j, w += kPairBytes) {
      if (j == 0) {
        pair_add<true>(sum, load256(w), load256(w + 32), q, at);
      } else {
        pair_add<false>(sum, load256(w), load256(w + 32), q, at + 2 * j);
      }
    }
  }

  // The sums of MR rows go on with n columns.
  template <int MR>
  static SPOLA_NOINLINE void multiply(const Panel& panel, int n, const int16_t* first, long stride, const Sums& sums,
                                      float* out) {
    const RowsA16<MR> rows(first, stride);
    for (long g = 0; g < n / Format::kGroup; ++g) {
      __m256i sum[MR][2];
      dot_pairs(sum, panel.pairs[g * (Format::kGroup / 2)], rows.q, g * Format::kGroup);
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        const __m256 scale = _mm256_load_ps(panel.scale[g] + h * 8);
        const __m256 min = Format::kMin ? _mm256_load_ps(panel.min[g] + h * 8) : scale;
#pragma GCC unroll 4
        for (int r = 0; r < MR; ++r) {
          float* const p = out + r * kTileRows + h * 8;
          __m256 acc = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(sum[r][h]), _mm256_loadu_ps(p));
          if constexpr (Format::kMin) acc = _mm256_fmadd_ps(min, _mm256_castsi256_ps(bcast4(&sums[r][g])), acc);
          _mm256_storeu_ps(p, acc);
          // Without this GCC remembers what it stored and keeps a second copy on the stack.
          __asm__("" : "+m"(*reinterpret_cast<__m256_u*>(p)));
        }
      }
    }
  }

  static SPOLA_NOINLINE void rows(const uint8_t* tile, const Activations& a, int row0, int rows, float* out) {
    Panel panel;
    alignas(64) Sums sums;
    const RowGroups groups(rows, kRows);
    const long stride = a.k;
    for (int i = 0; i < rows * kTileRows; ++i) out[i] = 0;
    const auto begin = [&](const uint8_t* p, int n) { return unpack(panel, p, n); };
    const auto group = [&](int g, int k, int n) {
      const int row = groups.begin(g), size = groups.begin(g + 1) - row;
      const int16_t* const q = a.q16 + (row0 + row) * stride + k;
      if constexpr (Format::kMin) {
        for (int r = 0; r < size; ++r) sum_groups(q + r * stride, n / Format::kGroup, sums[r]);
      }
      with_rows_up_to<kRows>(size, [&](auto c) __attribute__((always_inline)) {
        multiply<decltype(c)::value>(panel, n, q, stride, sums, out + row * kTileRows);
      });
    };
    by_pieces(a, tile, kPiece, groups.count, begin, group);
    for (int i = 0; i < rows * kTileRows; ++i) out[i] *= a.d16[row0 + i / kTileRows];
  }
};

}  // namespace

#define SPOLA_A16_KERNEL(name, ...)                                                                   \
  namespace {                                                                                         \
  SPOLA_TILE_KERNEL(name##_by_calls, Few<__VA_ARGS__>::rows)                                          \
  }                                                                                                   \
  void name(const uint8_t* tile, const Activations& a, int row0, int rows, float* out) {              \
    if (rows > kFew) return Many<__VA_ARGS__>::rows(tile, a, row0, rows, out);                        \
    name##_by_calls(tile, a, row0, rows, out);                                                        \
  }

SPOLA_A16_KERNEL(tile_i8s_a16, Halves)
SPOLA_A16_KERNEL(tile_i8g16_a16, Generic<16, false>)
SPOLA_A16_KERNEL(tile_i8g16m_a16, Generic<16, true>)
SPOLA_A16_KERNEL(tile_i8g32_a16, Generic<32, false>)
SPOLA_A16_KERNEL(tile_i8g32m_a16, Generic<32, true>)
SPOLA_A16_KERNEL(tile_i8g64_a16, Generic<64, false>)

}  // namespace spola::avx2
