// The kernels one instruction set offers, as a table of functions chosen at run time.
//
// Everything here is single-threaded and works on ranges; threads, ops and memory are the decoder's.
// docs/numerics.md fixes the arithmetic: all tables give equal bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spola {

constexpr int kTileRows = 16;   // output rows of one packed tile: one SIMD lane per row
constexpr int kMaxRows = 12;    // activation rows of one micro-kernel call, in any table (see Kernels::rows)
constexpr int kMaxCallRows = 96;  // of one call that takes groups of rows, or groups them by itself
constexpr int kQueryRows = 32;  // query rows of one attention call
constexpr int kBlock = 32;      // values of k per activation block, tokens per KV block
constexpr int kSegment = 256;   // positions per attention partial

// How a matrix is packed: (bits, group along K, scale type, zero point). GGUF types are rows of this
// table; see pack.h for the record of each.
enum class Scheme : int32_t {
  kF32 = 0,
  kF16,
  kBF16,
  kE4M3,    // 8-bit floats, group 64, f32 scale
  kU4S,     // 4 bits, group 32, f16 scale, zero point 8           (Q4_0)
  kU4SM,    // 4 bits, group 32, f16 scale and min                 (Q4_1)
  kU5S,     // 5 bits, group 32, f16 scale, zero point 16          (Q5_0)
  kU5SM,    // 5 bits, group 32, f16 scale and min                 (Q5_1)
  kI8S,     // 8 bits, group 32, f16 scale                         (Q8_0)
  kU4K,     // 4 bits, group 32, 6-bit scales and mins of 256      (Q4_K)
  kU5K,     // 5 bits, group 32, 6-bit scales and mins of 256      (Q5_K)
  kU6K,     // 6 bits, group 16, int8 scales of 256, zero point 32 (Q6_K)
  kU4Z64,   // 4 bits, group 64, f16 scale and f16 zero point
  kU4Z128,  // 4 bits, group 128, f16 scale and f16 zero point
  kI8G16,   // int8 codes, group 16, f32 scale                     (Q3_K)
  kI8G16M,  // int8 codes, group 16, f32 scale and min             (Q2_K)
  kI8G32,   // int8 codes, group 32, f32 scale                     (IQ4_NL, IQ4_XS, MXFP4; precise mode)
  kI8G32M,  // int8 codes, group 32, f32 scale and min             (precise mode)
  kI8G64,   // int8 codes, group 64, f32 scale                     (a scale per row)
  kCount
};

// Which activations a scheme takes.
enum class ActFormat : int32_t { kF32 = 0, kA8, kA16 };

// Activations of up to all rows of a step, row-major. Only the members of the format in use are set.
// Row strides: f32 and a16 and a8 are k; d8, s8 are k / 32; h8 is k / 16; d16 is 1.
struct Activations {
  int k = 0;
  const float* f32 = nullptr;    // [rows][k]
  const int8_t* q8 = nullptr;    // [rows][k]
  const float* d8 = nullptr;     // [rows][k/32] scale
  const float* s8 = nullptr;     // [rows][k/32] scale * sum of q over the block
  const int16_t* h8 = nullptr;   // [rows][k/16] sum of q over half a block
  const int16_t* q16 = nullptr;  // [rows][k]
  const float* d16 = nullptr;    // [rows]
  // The tile that will be read after this one, of any scheme, or null: a kernel may have it fetched
  // meanwhile.
  const uint8_t* next = nullptr;
  // A8 once more, as groups of rows (row_groups.h), or null; and how many rows there are in all groups.
  const uint8_t* groups = nullptr;
  int grouped = 0;
};

// One tile: 16 output rows times `rows` (1..Kernels::rows, of f32 activations ..Kernels::float_rows, of int16
// ..Kernels::int16_rows) activation rows from `row0`, all of k. With Activations::groups, which goes with A8 only,
// `rows` is that of 1..Kernels::groups whole groups.
// out[r * 16 + j] is activation row r, output row j. `tile` points at the tile's first record.
using TileKernel = void (*)(const uint8_t* tile, const Activations& a, int row0, int rows, float* out);

// How many of `left` activation rows the next call takes when no call takes more than `most`: as even as can
// be.
inline int rows_of_call(int left, int most) {
  const int calls = (left + most - 1) / most;
  return (left + calls - 1) / calls;
}

struct AttentionArgs;  // attention.h

struct Kernels {
  const char* isa;
  int rows;    // most activation rows that a tile kernel takes: what its registers hold
  int groups;  // most groups of `rows` rows that a tile kernel takes; 0 where it makes no use of groups
  uint32_t group_schemes;  // bits by Scheme: whose A8 kernel reads nothing but groups where there are any
  int float_rows;  // most rows that a tile kernel takes of f32 activations, which it groups by itself
  int int16_rows;  // the same of int16 activations

  // linear.{cc}: indexed by [scheme][format]; null where the pair does not exist.
  TileKernel tile[static_cast<int>(Scheme::kCount)][3];

  // quantize. Return false when a value is not finite.
  bool (*quantize_a8)(const float* x, int k, int8_t* q, float* d, float* s, int16_t* h);
  // One A8 block of each of a group's rows into its record (row_groups.h): row r is 16 values at lo + r * stride and
  // 16 at hi + r * stride. Returns bits of the rows with a value that is not finite. Null where no
  // kernel reads groups alone.
  uint32_t (*quantize_group)(const float* lo, const float* hi, size_t stride, int rows, uint8_t* record);
  bool (*quantize_a16)(const float* x, int k, int16_t* q, float* d);

  // One row of K or V of a head for an int8 cache: codes, and an f16 scale for each kKvGroup of them.
  void (*quantize_kv)(const float* x, int n, int8_t* q, uint16_t* d);

  // norms
  void (*rms_norm)(const float* x, const float* w, float eps, int n, float* y);
  void (*layer_norm)(const float* x, const float* w, const float* b, float eps, int n, float* y);

  // element-wise
  void (*silu_mul)(const float* gate, const float* up, int n, float* y);       // may alias
  void (*gelu_tanh_mul)(const float* gate, const float* up, int n, float* y);  // may alias
  void (*gelu_mul)(const float* gate, const float* up, int n, float* y);       // may alias
  void (*f32_to_f16)(const float* x, int n, uint16_t* y);
  void (*exp_many)(const float* x, int n, float* y);

  // attention partial of one segment for the query heads of one KV head: see attention.h
  void (*attention_segment)(const AttentionArgs& args);
  void (*attention_merge)(const float* part, int v_dim, float* into);

  // rotary positions of one head: see rope.h
  void (*rope)(float* x, const float* cosine, const float* sine, int half, bool interleaved);

  // vocabulary
  float (*max_many)(const float* x, int n);                // NaN in, NaN out
  float (*sum_exp16)(const float* x, int n, float shift);  // sum16 of exp(x - shift)

  // Runs the instructions that kernels for `format` are made of on registers alone, `rounds` times; returns
  // the multiply-adds done. What linear kernels are measured against.
  double (*peak)(ActFormat format, long rounds);
  // The same with all that the kernel of `scheme` does for each activation row: its own ceiling (peak_mix.h).
  double (*mix)(Scheme scheme, ActFormat format, long rounds);
};

const Kernels* scalar_kernels();

// Names of the tables that are compiled in, best first ("scalar" last), ended by null.
const char* const* compiled_isas();

// The table `name`, or the best one this processor can run ("" or null). Returns null when `name` is unknown,
// not compiled in, or not supported by the processor.
const Kernels* select_kernels(const char* name);

}  // namespace spola
