#include "decoder/self_check.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/align.h"
#include "kernels/attention.h"
#include "kernels/records.h"
#include "kernels/row_groups.h"

namespace spola {
namespace {

constexpr int kColumns = 512;  // two records of the widest schemes
constexpr int kRow = 77;       // whole vectors and a tail for every instruction set

// SplitMix64.
class Random {
 public:
  uint64_t bits() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  float value() { return static_cast<float>(static_cast<int64_t>(bits()) >> 40) * 0x1p-22f; }  // -2 .. 2

 private:
  uint64_t state_ = 1;
};

std::vector<float> values(Random& random, int n) {
  std::vector<float> out(static_cast<size_t>(n));
  for (float& x : out) x = random.value();
  return out;
}

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Bytes at the start of a record that are floating-point scales.
int scale_bytes(Scheme scheme) {
  switch (scheme) {
    case Scheme::kU4S:
    case Scheme::kU5S:
    case Scheme::kI8S:
    case Scheme::kU6K: return kHalfPlane;
    case Scheme::kU4SM:
    case Scheme::kU5SM:
    case Scheme::kU4K:
    case Scheme::kU5K:
    case Scheme::kU4Z64:
    case Scheme::kU4Z128: return 2 * kHalfPlane;
    case Scheme::kE4M3:
    case Scheme::kI8G16:
    case Scheme::kI8G64:
    case Scheme::kI8G32: return kFloatPlane;
    case Scheme::kI8G16M:
    case Scheme::kI8G32M: return 2 * kFloatPlane;
    default: return record_shape(scheme).bytes;  // floats and nothing else
  }
}

// A tile of random codes. Without bit 6 of its bytes no scale is infinite or NaN.
std::vector<uint8_t> random_tile(Scheme scheme, Random& random) {
  const RecordShape shape = record_shape(scheme);
  std::vector<uint8_t> tile(static_cast<size_t>(kColumns / shape.cols * shape.bytes));
  for (uint8_t& b : tile) b = static_cast<uint8_t>(random.bits());
  for (size_t at = 0; at < tile.size(); at += static_cast<size_t>(shape.bytes)) {
    for (int i = 0; i < scale_bytes(scheme); ++i) tile[at + static_cast<size_t>(i)] &= 0xbf;
  }
  return tile;
}

// Activation rows in every format, by the scalar quantizers.
struct Inputs {
  std::vector<float> f32, d8, s8, d16;
  std::vector<int8_t> q8;
  std::vector<int16_t> h8, q16;
  Activations a;

  Inputs(int rows, Random& random)
      : f32(values(random, rows * kColumns)),
        d8(f32.size() / kBlock),
        s8(d8.size()),
        d16(static_cast<size_t>(rows)),
        q8(f32.size()),
        h8(d8.size() * 2),
        q16(f32.size()) {
    const Kernels* scalar = scalar_kernels();
    for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
      const size_t at = r * kColumns, b = at / kBlock;
      scalar->quantize_a8(&f32[at], kColumns, &q8[at], &d8[b], &s8[b], &h8[b * 2]);
      scalar->quantize_a16(&f32[at], kColumns, &q16[at], &d16[r]);
    }
    a.k = kColumns;
    a.f32 = f32.data();
    a.q8 = q8.data();
    a.d8 = d8.data();
    a.s8 = s8.data();
    a.h8 = h8.data();
    a.q16 = q16.data();
    a.d16 = d16.data();
  }
};

// All rows of `in` as the decoder would have them, A8 in groups, against the twin's `want`.
bool many_agree(const Kernels& kernels, TileKernel kernel, ActFormat format, const std::vector<uint8_t>& tile,
                const Inputs& in, int rows, const std::vector<float>& want) {
  std::vector<uint8_t> groups(grouped_bytes(static_cast<size_t>(rows), kColumns));
  Activations a = in.a;
  if (format == ActFormat::kA8 && kernels.groups > 0) put_into_groups(a, rows, kernels.rows, groups.data());
  std::vector<float> got(want.size());
  for (int row = 0, n = 0; row < rows; row += n) {
    n = rows_of_call(a, kernels, format, row, rows);
    kernel(tile.data(), a, row, n, got.data() + static_cast<size_t>(row) * kTileRows);
  }
  return same(got, want);
}

std::string check_tiles(const Kernels& kernels, Random& random) {
  const Kernels* scalar = scalar_kernels();
  constexpr int kMost = 2 * kMaxRows - 1;  // a full group and a smaller one, whatever a group is
  const Inputs in(kMost, random);
  for (int s = 0; s < static_cast<int>(Scheme::kCount); ++s) {
    const std::vector<uint8_t> tile = random_tile(static_cast<Scheme>(s), random);
    for (int f = 0; f < 3; ++f) {
      if (!scalar->tile[s][f]) continue;
      const std::string name = "tile " + std::to_string(s) + "/" + std::to_string(f);
      if (!kernels.tile[s][f]) return name;
      std::vector<float> want(static_cast<size_t>(kMost * kTileRows));
      for (int r = 0; r < kMost; ++r)
        scalar->tile[s][f](tile.data(), in.a, r, 1, &want[size_t(r) * kTileRows]);
      for (int rows : {1, (kernels.rows + 1) / 2, kernels.rows}) {
        std::vector<float> got = want;
        std::fill(got.begin(), got.begin() + rows * kTileRows, -1.0f);
        kernels.tile[s][f](tile.data(), in.a, 0, rows, got.data());
        if (!same(got, want)) return name + " of " + std::to_string(rows) + " rows";
      }
      if (!many_agree(kernels, kernels.tile[s][f], static_cast<ActFormat>(f), tile, in, kMost, want)) {
        return name + " of many rows";
      }
    }
  }
  return "";
}

// Whether a call that writes n floats gives equal bits with both tables.
template <class Call>
bool equal(const Kernels& kernels, int n, Call call) {
  std::vector<float> a(static_cast<size_t>(n)), b(a.size());
  call(*scalar_kernels(), a.data());
  call(kernels, b.data());
  return same(a, b);
}

std::string check_rows(const Kernels& kernels, Random& random) {
  const std::vector<float> x = values(random, kRow), w = values(random, kRow), b = values(random, kRow);
  const auto differs = [&](auto call) { return !equal(kernels, kRow, call); };
  if (differs([&](const Kernels& k, float* y) { k.rms_norm(x.data(), w.data(), 1e-5f, kRow, y); }))
    return "rms_norm";
  if (differs(
          [&](const Kernels& k, float* y) { k.layer_norm(x.data(), w.data(), b.data(), 1e-5f, kRow, y); }))
    return "layer_norm";
  if (differs([&](const Kernels& k, float* y) { k.silu_mul(x.data(), w.data(), kRow, y); }))
    return "silu_mul";
  if (differs([&](const Kernels& k, float* y) { k.gelu_tanh_mul(x.data(), w.data(), kRow, y); }))
    return "gelu_tanh_mul";
  if (differs([&](const Kernels& k, float* y) { k.exp_many(x.data(), kRow, y); })) return "exp_many";
  if (differs(
          [&](const Kernels& k, float* y) { k.f32_to_f16(x.data(), kRow, reinterpret_cast<uint16_t*>(y)); }))
    return "f32_to_f16";
  if (differs([&](const Kernels& k, float* y) {
        y[0] = k.max_many(x.data(), kRow);
        y[1] = k.sum_exp16(x.data(), kRow, y[0]);
      }))
    return "max_many or sum_exp16";
  for (bool interleaved : {false, true}) {
    if (differs([&](const Kernels& k, float* y) {
          std::copy(x.begin(), x.end(), y);
          k.rope(y, w.data(), b.data(), 37, interleaved);
        }))
      return "rope";
  }
  return "";
}

// One block of all rows of a full group and of a smaller one.
bool group_agrees(const Kernels& kernels, Random& random) {
  const std::vector<float> x = values(random, kernels.rows * kColumns);
  for (int rows : {kernels.rows, kernels.rows / 2}) {
    const auto record = [&](const Kernels& k) {
      std::vector<uint8_t> bytes(static_cast<size_t>(rows) * kRowBlockBytes);
      k.quantize_group(x.data(), x.data() + kBlock / 2, kColumns, rows, bytes.data());
      return bytes;
    };
    if (!same(record(kernels), record(*scalar_kernels()))) return false;
  }
  return true;
}

std::string check_quantizers(const Kernels& kernels, Random& random) {
  const std::vector<float> x = values(random, kColumns);
  const Inputs in(1, random);
  Inputs other = in;
  float d16 = 0;
  kernels.quantize_a8(in.f32.data(), kColumns, other.q8.data(), other.d8.data(), other.s8.data(),
                      other.h8.data());
  kernels.quantize_a16(in.f32.data(), kColumns, other.q16.data(), &d16);
  if (!same(in.q8, other.q8) || !same(in.d8, other.d8) || !same(in.s8, other.s8) || !same(in.h8, other.h8)) {
    return "quantize_a8";
  }
  if (kernels.quantize_group && !group_agrees(kernels, random)) return "quantize_group";
  if (!same(in.q16, other.q16) || d16 != in.d16[0]) return "quantize_a16";
  const auto kv = [&](const Kernels& k) {
    std::vector<int8_t> q(kRow);
    std::vector<uint16_t> d(ceil_div(kRow, kKvGroup));
    k.quantize_kv(x.data(), kRow, q.data(), d.data());
    q.insert(q.end(), reinterpret_cast<int8_t*>(d.data()), reinterpret_cast<int8_t*>(d.data() + d.size()));
    return q;
  };
  return same(kv(kernels), kv(*scalar_kernels())) ? "" : "quantize_kv";
}

// `bytes` of cache: the values in f32 or f16, or codes and scales made of them.
std::vector<uint8_t> stored(KvType type, const std::vector<float>& x, size_t bytes) {
  std::vector<uint16_t> half(x.size());
  scalar_kernels()->f32_to_f16(x.data(), static_cast<int>(x.size()), half.data());
  std::vector<uint8_t> out(bytes);
  if (type != KvType::kI8) {
    std::memcpy(out.data(), type == KvType::kF32 ? static_cast<const void*>(x.data()) : half.data(), bytes);
    return out;
  }
  // Bytes of halves serve as codes, and again as scales, without the bit that makes them large.
  const size_t block = kv_block_bytes(type, 64), codes = size_t{64} * kBlock;
  for (size_t i = 0; i < bytes; ++i) {
    out[i] = static_cast<uint8_t>(half[i % half.size()]);
    if (i % block >= codes) out[i] &= 0x3f;
  }
  return out;
}

std::string check_attention(const Kernels& kernels, Random& random) {
  constexpr int kHeads = 3, kDim = 64, kRows = 5, kBlocks = 2;
  const std::vector<float> q = values(random, kRows * kHeads * kDim),
                           k = values(random, kBlocks * kBlock * kDim),
                           v = values(random, kBlocks * kBlock * kDim);
  for (KvType type : {KvType::kF16, KvType::kF32, KvType::kI8}) {
    const size_t size = kv_block_bytes(type, kDim);
    const std::vector<uint8_t> keys = stored(type, k, kBlocks * size), vectors = stored(type, v, kBlocks * size);
    AttentionArgs a;
    a.q = q.data();
    a.q_stride = kHeads * kDim;
    a.rows = kRows;
    a.heads = kHeads;
    a.k_dim = a.v_dim = kDim;
    a.k_type = a.v_type = type;
    a.blocks = kBlocks;
    for (int b = 0; b < kBlocks; ++b) {
      a.k[b] = keys.data() + size_t(b) * size;
      a.v[b] = vectors.data() + size_t(b) * size;
    }
    for (int r = 0; r < kRows; ++r) a.low[r] = 0, a.high[r] = kBlock + 20 + r;
    const int record = kDim + 2;
    a.out_stride = static_cast<size_t>(kHeads * record);
    if (!equal(kernels, kRows * kHeads * record, [&](const Kernels& table, float* y) {
          a.out = y;
          table.attention_segment(a);
          table.attention_merge(y + record, kDim, y);
        })) {
      return "attention";
    }
  }
  return "";
}

}  // namespace

std::string self_check(const Kernels& kernels) {
  Random random;
  for (const auto check : {check_tiles, check_rows, check_quantizers, check_attention}) {
    std::string name = check(kernels, random);
    if (!name.empty()) return name;
  }
  return "";
}

}  // namespace spola
