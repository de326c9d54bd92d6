// The kernels by instruction set, as select.cc puts them into tables. Declarations only.
#pragma once

#include "kernels/table.h"

#define SPOLA_DECLARE_TILES                                                                        \
  void tile_f32(const uint8_t* tile, const Activations& a, int row0, int rows, float* out);        \
  void tile_f16(const uint8_t* tile, const Activations& a, int row0, int rows, float* out);        \
  void tile_bf16(const uint8_t* tile, const Activations& a, int row0, int rows, float* out);       \
  void tile_u4s_a8(const uint8_t* tile, const Activations& a, int row0, int rows, float* out);     \
  void tile_u4sm_a8(const uint8_t* tile, const Activations& a, int row0, int rows, float* out);    \
  void tile_u5s_a8(const uint8_t* tile, const Activations& a, int row0, int rows, float* out);     \
  void tile_u5sm_a8(const uint8_t* tile, const Activations& a, int row0, int rows, float* out);    \
  void tile_u4k_a8(const uint8_t* tile, const Activations& a, int row0, int rows, float* out);     \
  void tile_u5k_a8(const uint8_t* tile, const Activations& a, int row0, int rows, float* out);     \
  void tile_u6k_a8(const uint8_t* tile, const Activations& a, int row0, int rows, float* out);     \
  void tile_i8g16_a8(const uint8_t* tile, const Activations& a, int row0, int rows, float* out);   \
  void tile_i8g16m_a8(const uint8_t* tile, const Activations& a, int row0, int rows, float* out);  \
  void tile_i8g32_a8(const uint8_t* tile, const Activations& a, int row0, int rows, float* out);   \
  void tile_i8g32m_a8(const uint8_t* tile, const Activations& a, int row0, int rows, float* out);  \
  void tile_i8s_a16(const uint8_t* tile, const Activations& a, int row0, int rows, float* out);    \
  void tile_i8g16_a16(const uint8_t* tile, const Activations& a, int row0, int rows, float* out);  \
  void tile_i8g16m_a16(const uint8_t* tile, const Activations& a, int row0, int rows, float* out); \
  void tile_i8g32_a16(const uint8_t* tile, const Activations& a, int row0, int rows, float* out);  \
  void tile_i8g32m_a16(const uint8_t* tile, const Activations& a, int row0, int rows, float* out);

// What GGUF has not.
#define SPOLA_DECLARE_OTHER_TILES                                                                 \
  void tile_e4m3(const uint8_t* tile, const Activations& a, int row0, int rows, float* out);      \
  void tile_u4z64_a8(const uint8_t* tile, const Activations& a, int row0, int rows, float* out);  \
  void tile_u4z128_a8(const uint8_t* tile, const Activations& a, int row0, int rows, float* out); \
  void tile_i8g64_a16(const uint8_t* tile, const Activations& a, int row0, int rows, float* out);

#define SPOLA_DECLARE_ROWS                                                                     \
  bool quantize_a8(const float* x, int k, int8_t* q, float* d, float* s, int16_t* h);          \
  bool quantize_a16(const float* x, int k, int16_t* q, float* d);                              \
  void quantize_kv(const float* x, int n, int8_t* q, uint16_t* d);                             \
  void rms_norm(const float* x, const float* w, float eps, int n, float* y);                   \
  void layer_norm(const float* x, const float* w, const float* b, float eps, int n, float* y); \
  void silu_mul(const float* gate, const float* up, int n, float* y);                          \
  void gelu_tanh_mul(const float* gate, const float* up, int n, float* y);                     \
  void gelu_mul(const float* gate, const float* up, int n, float* y);                          \
  void f32_to_f16(const float* x, int n, uint16_t* y);                                         \
  void exp_many(const float* x, int n, float* y);                                              \
  float max_many(const float* x, int n);                                                       \
  float sum_exp16(const float* x, int n, float shift);                                         \
  double peak(ActFormat format, long rounds);                                                  \
  double mix(Scheme scheme, ActFormat format, long rounds);

namespace spola::scalar {
SPOLA_DECLARE_TILES
SPOLA_DECLARE_OTHER_TILES
SPOLA_DECLARE_ROWS
uint32_t quantize_group(const float* lo, const float* hi, size_t stride, int rows, uint8_t* record);
}  // namespace spola::scalar

#if defined(SPOLA_HAVE_X86)
namespace spola::avx2 {
SPOLA_DECLARE_TILES
SPOLA_DECLARE_OTHER_TILES
SPOLA_DECLARE_ROWS
}  // namespace spola::avx2

// The others are AVX2's: there is nothing to gain on rows this short.
namespace spola::avx512vnni {
SPOLA_DECLARE_TILES
SPOLA_DECLARE_OTHER_TILES
void silu_mul(const float* gate, const float* up, int n, float* y);
void gelu_tanh_mul(const float* gate, const float* up, int n, float* y);
void exp_many(const float* x, int n, float* y);
float max_many(const float* x, int n);
float sum_exp16(const float* x, int n, float shift);
uint32_t quantize_group(const float* lo, const float* hi, size_t stride, int rows, uint8_t* record);
double peak(ActFormat format, long rounds);
double mix(Scheme scheme, ActFormat format, long rounds);
}  // namespace spola::avx512vnni
#endif

#if defined(SPOLA_HAVE_NEON)
namespace spola::neon {
SPOLA_DECLARE_TILES
SPOLA_DECLARE_OTHER_TILES
SPOLA_DECLARE_ROWS
}  // namespace spola::neon
#endif
