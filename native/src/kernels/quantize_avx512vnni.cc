// Blocks of f32 activations straight into the record of a group of rows (row_groups.h). What each row becomes is
// quantize_a8's (quantize_scalar.cc); here a lane is a row wherever there is one value per row.
#include "kernels/row_groups.h"
#include "kernels/simd_avx512vnni.h"
#include "kernels/variants.h"

namespace spola::avx512vnni {
namespace {

constexpr int kPairs = kRows / 2;

struct Max {
  static SPOLA_INLINE __m512i of(__m512i a, __m512i b) { return _mm512_max_epi32(a, b); }
};

struct Sum {
  static SPOLA_INLINE __m512i of(__m512i a, __m512i b) { return _mm512_add_epi32(a, b); }
};

// In each 128 bits: a's dwords reduced to one, then b's, c's and d's.
template <class Op>
SPOLA_INLINE __m512i within_quarters(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i ab = Op::of(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  const __m512i cd = Op::of(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  return Op::of(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
}

// a's four quarters reduced to one, then b's, twice.
template <class Op>
SPOLA_INLINE __m512i over_quarters(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i ab = Op::of(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
  const __m512i cd = Op::of(_mm512_shuffle_i32x4(c, d, 0x88), _mm512_shuffle_i32x4(c, d, 0xdd));
  return Op::of(_mm512_shuffle_i32x4(ab, cd, 0x88), _mm512_shuffle_i32x4(ab, cd, 0xdd));
}

// A row's block of a group: row r at lo + r * stride and hi + r * stride, those beyond `rows` as the last one.
struct Source {
  const float* lo;
  const float* hi;
  size_t stride;
  int rows;

  SPOLA_INLINE size_t at(int r) const { return static_cast<size_t>(r < rows ? r : rows - 1) * stride; }
  SPOLA_INLINE __m512 low(int r) const { return load_float16(lo + at(r)); }
  SPOLA_INLINE __m512 high(int r) const { return load_float16(hi + at(r)); }
};

// The largest |x| of each row, as bits.
SPOLA_INLINE __m512i largest(const Source& in) {
  const __m512i no_sign = _mm512_set1_epi32(0x7fffffff);
  __m512i m[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    m[r] = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(in.low(r)), no_sign),
                            _mm512_and_si512(_mm512_castps_si512(in.high(r)), no_sign));
  }
  const __m512i a = within_quarters<Max>(m[0], m[1], m[2], m[3]), b = within_quarters<Max>(m[4], m[5], m[6], m[7]);
  const __m512i c = within_quarters<Max>(m[8], m[9], m[10], m[11]);
  return over_quarters<Max>(a, b, c, c);
}

// The codes of rows 2 * pair and 2 * pair + 1.
SPOLA_INLINE __m512i codes_of(const Source& in, int pair, const float* inverse) {
  const int r = 2 * pair;
  const __m512 first = _mm512_set1_ps(inverse[r]), second = _mm512_set1_ps(inverse[r + 1]);
  const auto code = [](__m512 x, __m512 f) { return _mm512_cvtps_epi32(_mm512_mul_ps(x, f)); };
  const __m512i a = _mm512_packs_epi32(code(in.low(r), first), code(in.high(r), first));
  const __m512i b = _mm512_packs_epi32(code(in.low(r + 1), second), code(in.high(r + 1), second));
  // Packing works within quarters: dword 4 q + 2 i + h holds columns 4 q .. of half h of row i.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(order, _mm512_packs_epi16(a, b));
}

SPOLA_INLINE void store_pair(uint8_t* record, int pair, int rows, __m512i codes) {
  const int left = rows - 2 * pair;
  uint8_t* to = record + pair * 2 * kBlock;
  if (left >= 2) {
    _mm512_storeu_si512(to, codes);
  } else if (left == 1) {
    _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(to), _mm512_castsi512_si256(codes));
  }
}

// The sums of the low and the high halves of rows, of which codes[i] holds two.
struct Halves {
  __m512i low, high;
};

SPOLA_INLINE Halves sums(const __m512i (&codes)[kPairs]) {
  __m512i s[kPairs];
#pragma GCC unroll 8
  for (int i = 0; i < kPairs; ++i) {
    s[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), codes[i]);
  }
  // Quarters of a and b: low halves of the even rows, their high halves, those of the odd rows.
  const __m512i a = within_quarters<Sum>(s[0], s[1], s[2], s[3]), b = within_quarters<Sum>(s[4], s[5], s[4], s[5]);
  const __m512i low = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 16, 24, 17, 25, 16, 24, 17, 25);
  return {_mm512_permutex2var_epi32(a, low, b),
          _mm512_permutex2var_epi32(a, _mm512_add_epi32(low, _mm512_set1_epi32(4)), b)};
}

struct Planes {
  uint8_t* first;
  int rows;

  SPOLA_INLINE void store(RowPlane i, __m512i values) const {
    _mm512_mask_storeu_epi32(first + static_cast<int>(i) * rows * 4, static_cast<__mmask16>((1u << rows) - 1), values);
  }
};

// magic - zero * sum
SPOLA_INLINE __m512i start_less(__m512i sum, int shift) {
  return _mm512_sub_epi32(_mm512_set1_epi32(kMagicBits), _mm512_slli_epi32(sum, shift));
}

// Rows with a value that is not finite have no codes.
SPOLA_NOINLINE void clear_rows(uint8_t* record, uint32_t rows) {
  for (int r = 0; rows >> r; ++r) {
    if ((rows >> r) & 1u) _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(record + r * kBlock), _mm256_setzero_si256());
  }
}

}  // namespace

uint32_t quantize_group(const float* lo, const float* hi, size_t stride, int rows, uint8_t* record) {
  const Source in{lo, hi, stride, rows};
  const __m512i bits = largest(in);
  const __mmask16 endless = _mm512_cmpge_epi32_mask(bits, _mm512_set1_epi32(0x7f800000));
  const __mmask16 scaled = _mm512_cmp_ps_mask(_mm512_castsi512_ps(bits), _mm512_set1_ps(0x1p-100f), _CMP_GE_OQ) & ~endless;
  const __m512 amax = _mm512_maskz_mov_ps(scaled, _mm512_castsi512_ps(bits));
  alignas(64) float inverse[kTileRows];
  _mm512_store_ps(inverse, _mm512_maskz_div_ps(scaled, _mm512_set1_ps(127.0f), amax));
  const __m512 d = _mm512_div_ps(amax, _mm512_set1_ps(127.0f));
  __m512i codes[kPairs];
#pragma GCC unroll 8
  for (int i = 0; i < kPairs; ++i) {
    codes[i] = codes_of(in, i, inverse);
    store_pair(record, i, rows, codes[i]);
  }
  Halves h = sums(codes);
  const uint32_t bad = endless & ((1u << rows) - 1);
  if (__builtin_expect(bad != 0, 0)) {
    clear_rows(record, bad);
    h.low = _mm512_maskz_mov_epi32(static_cast<__mmask16>(~endless), h.low);
    h.high = _mm512_maskz_mov_epi32(static_cast<__mmask16>(~endless), h.high);
  }
  const __m512i both = _mm512_add_epi32(h.low, h.high);
  const Planes planes{record + rows * kBlock, rows};
  planes.store(RowPlane::kScale, _mm512_castps_si512(d));
  planes.store(RowPlane::kScaledSum, _mm512_castps_si512(_mm512_mul_ps(d, _mm512_cvtepi32_ps(both))));
  planes.store(RowPlane::kZero8, start_less(both, 3));
  planes.store(RowPlane::kZero16, start_less(both, 4));
  planes.store(RowPlane::kHalf0, start_less(h.low, 5));
  planes.store(RowPlane::kHalf1, start_less(h.high, 5));
  return bad;
}

}  // namespace spola::avx512vnni
