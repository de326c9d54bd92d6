// The table of each instruction set, and the choice between them.
#include <cstring>
#include <initializer_list>

#include "base/cpu.h"
#include "kernels/attention.h"
#include "kernels/rope.h"
#include "kernels/table.h"
#include "kernels/variants.h"

namespace spola {

namespace {

// Fill a Kernels from the namespace of one instruction set.
#define SPOLA_FILL_TILES(table, isa_name)                                \
  const auto tile_at = [&](Scheme s, ActFormat f) -> TileKernel& {       \
    return table.tile[static_cast<int>(s)][static_cast<int>(f)];         \
  };                                                                     \
  tile_at(Scheme::kF32, ActFormat::kF32) = isa_name::tile_f32;           \
  tile_at(Scheme::kF16, ActFormat::kF32) = isa_name::tile_f16;           \
  tile_at(Scheme::kBF16, ActFormat::kF32) = isa_name::tile_bf16;         \
  tile_at(Scheme::kU4S, ActFormat::kA8) = isa_name::tile_u4s_a8;         \
  tile_at(Scheme::kU4SM, ActFormat::kA8) = isa_name::tile_u4sm_a8;       \
  tile_at(Scheme::kU5S, ActFormat::kA8) = isa_name::tile_u5s_a8;         \
  tile_at(Scheme::kU5SM, ActFormat::kA8) = isa_name::tile_u5sm_a8;       \
  tile_at(Scheme::kI8S, ActFormat::kA16) = isa_name::tile_i8s_a16;       \
  tile_at(Scheme::kU4K, ActFormat::kA8) = isa_name::tile_u4k_a8;         \
  tile_at(Scheme::kU5K, ActFormat::kA8) = isa_name::tile_u5k_a8;         \
  tile_at(Scheme::kU6K, ActFormat::kA8) = isa_name::tile_u6k_a8;         \
  tile_at(Scheme::kI8G16, ActFormat::kA8) = isa_name::tile_i8g16_a8;     \
  tile_at(Scheme::kI8G16M, ActFormat::kA8) = isa_name::tile_i8g16m_a8;   \
  tile_at(Scheme::kI8G32, ActFormat::kA8) = isa_name::tile_i8g32_a8;     \
  tile_at(Scheme::kI8G32M, ActFormat::kA8) = isa_name::tile_i8g32m_a8;   \
  tile_at(Scheme::kI8G16, ActFormat::kA16) = isa_name::tile_i8g16_a16;   \
  tile_at(Scheme::kI8G16M, ActFormat::kA16) = isa_name::tile_i8g16m_a16; \
  tile_at(Scheme::kI8G32, ActFormat::kA16) = isa_name::tile_i8g32_a16;   \
  tile_at(Scheme::kI8G32M, ActFormat::kA16) = isa_name::tile_i8g32m_a16

#define SPOLA_FILL_OTHER_TILES(isa_name)                               \
  tile_at(Scheme::kE4M3, ActFormat::kF32) = isa_name::tile_e4m3;       \
  tile_at(Scheme::kU4Z64, ActFormat::kA8) = isa_name::tile_u4z64_a8;   \
  tile_at(Scheme::kU4Z128, ActFormat::kA8) = isa_name::tile_u4z128_a8; \
  tile_at(Scheme::kI8G64, ActFormat::kA16) = isa_name::tile_i8g64_a16

#define SPOLA_FILL_ROWS(table, isa_name)                  \
  table.quantize_a8 = isa_name::quantize_a8;              \
  table.quantize_a16 = isa_name::quantize_a16;            \
  table.quantize_kv = isa_name::quantize_kv;              \
  table.rms_norm = isa_name::rms_norm;                    \
  table.layer_norm = isa_name::layer_norm;                \
  table.silu_mul = isa_name::silu_mul;                    \
  table.gelu_tanh_mul = isa_name::gelu_tanh_mul;          \
  table.gelu_mul = isa_name::gelu_mul;                    \
  table.f32_to_f16 = isa_name::f32_to_f16;                \
  table.exp_many = isa_name::exp_many;                    \
  table.attention_segment = attention_segment_##isa_name; \
  table.attention_merge = attention_merge_##isa_name;     \
  table.rope = rope_##isa_name;                           \
  table.max_many = isa_name::max_many;                    \
  table.sum_exp16 = isa_name::sum_exp16;                  \
  table.peak = isa_name::peak;                            \
  table.mix = isa_name::mix

Kernels make_scalar() {
  Kernels table{};
  table.isa = "scalar";
  table.rows = table.float_rows = table.int16_rows = 4;
  SPOLA_FILL_TILES(table, scalar);
  SPOLA_FILL_OTHER_TILES(scalar);
  SPOLA_FILL_ROWS(table, scalar);
  table.quantize_group = scalar::quantize_group;
  return table;
}

#if defined(SPOLA_HAVE_X86)
Kernels make_avx2() {
  Kernels table{};
  table.isa = "avx2";
  table.rows = 4;
  table.groups = 16;
  table.float_rows = table.int16_rows = table.rows * table.groups;
  SPOLA_FILL_TILES(table, avx2);
  SPOLA_FILL_OTHER_TILES(avx2);
  SPOLA_FILL_ROWS(table, avx2);
  return table;
}

constexpr uint32_t bits_of(std::initializer_list<Scheme> schemes) {
  uint32_t bits = 0;
  for (Scheme s : schemes) bits |= 1u << static_cast<int>(s);
  return bits;
}

Kernels make_avx512vnni() {
  Kernels table = make_avx2();
  table.isa = "avx512vnni";
  table.rows = table.int16_rows = 12;
  table.groups = 8;
  table.group_schemes = bits_of({Scheme::kU4S, Scheme::kU4SM, Scheme::kU4K, Scheme::kU5S, Scheme::kU5SM, Scheme::kU5K,
                                 Scheme::kU6K});
  table.float_rows = 4 * table.rows;
  SPOLA_FILL_TILES(table, avx512vnni);
  SPOLA_FILL_OTHER_TILES(avx512vnni);
  table.quantize_group = avx512vnni::quantize_group;
  table.silu_mul = avx512vnni::silu_mul;
  table.gelu_tanh_mul = avx512vnni::gelu_tanh_mul;
  table.exp_many = avx512vnni::exp_many;
  table.max_many = avx512vnni::max_many;
  table.sum_exp16 = avx512vnni::sum_exp16;
  table.peak = avx512vnni::peak;
  table.mix = avx512vnni::mix;
  table.attention_segment = attention_segment_avx512vnni;
  table.attention_merge = attention_merge_avx512vnni;
  return table;
}

const Kernels* avx2_kernels() {
  static const Kernels table = make_avx2();
  return &table;
}

const Kernels* avx512vnni_kernels() {
  static const Kernels table = make_avx512vnni();
  return &table;
}
#endif

#if defined(SPOLA_HAVE_NEON)
const Kernels* neon_kernels() {
  static const Kernels table = [] {
    Kernels neon{};
    neon.isa = "neon";
    neon.rows = neon.float_rows = neon.int16_rows = 8;
    SPOLA_FILL_TILES(neon, neon);
    SPOLA_FILL_OTHER_TILES(neon);
    SPOLA_FILL_ROWS(neon, neon);
    return neon;
  }();
  return &table;
}
#endif

// One instruction set: what the processor must have, and its table.
struct Level {
  const char* name;
  bool (*usable)(const CpuFeatures& cpu);
  const Kernels* (*table)();
};

// Best first.
constexpr Level kLevels[] = {
#if defined(SPOLA_HAVE_X86)
    {"avx512vnni", [](const CpuFeatures& cpu) { return cpu.avx2 && cpu.avx512vnni; }, avx512vnni_kernels},
    {"avx2", [](const CpuFeatures& cpu) { return cpu.avx2; }, avx2_kernels},
#endif
#if defined(SPOLA_HAVE_NEON)
    {"neon", [](const CpuFeatures& cpu) { return cpu.neon_dotprod; }, neon_kernels},
#endif
    {"scalar", [](const CpuFeatures&) { return true; }, scalar_kernels},
};

}  // namespace

const Kernels* scalar_kernels() {
  static const Kernels table = make_scalar();
  return &table;
}

const char* const* compiled_isas() {
  constexpr size_t kCount = sizeof kLevels / sizeof kLevels[0];
  static const char* names[kCount + 1] = {};
  for (size_t i = 0; i < kCount; ++i) names[i] = kLevels[i].name;
  return names;
}

const Kernels* select_kernels(const char* name) {
  const bool any = name == nullptr || *name == '\0';
  const CpuFeatures cpu = probe_cpu();
  for (const Level& level : kLevels) {
    if (any ? level.usable(cpu) : std::strcmp(name, level.name) == 0) {
      return level.usable(cpu) ? level.table() : nullptr;
    }
  }
  return nullptr;
}

}  // namespace spola
