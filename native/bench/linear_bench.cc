// Speed of the tile kernels on one thread, in GMAC/s. Not a test: run it on a quiet machine.
//
//   spola_linear_bench [isa [N [K]]]     default: best instruction set, 2048 x 2048
//
// Activation rows go to each tile as those of the decoder do, in groups where a kernel takes them. Best of
// several passes.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "blocks_for_test.h"
#include "kernels/pack.h"
#include "kernels/row_groups.h"

using namespace spola;

namespace {

constexpr int kMostRows = 64;

struct Inputs {
  explicit Inputs(int k)
      : f(size_t(kMostRows) * size_t(k)),
        q8(f.size()),
        d8(f.size() / 32),
        s8(f.size() / 32),
        h8(f.size() / 16),
        q16(f.size()),
        d16(kMostRows) {
    check::Random random(5);
    for (float& x : f) x = random.value();
    for (int r = 0; r < kMostRows; ++r) {
      const size_t at = size_t(r) * size_t(k);
      scalar_kernels()->quantize_a8(&f[at], k, &q8[at], &d8[at / 32], &s8[at / 32], &h8[at / 16]);
      scalar_kernels()->quantize_a16(&f[at], k, &q16[at], &d16[size_t(r)]);
    }
    act = {k, f.data(), q8.data(), d8.data(), s8.data(), h8.data(), q16.data(), d16.data(), nullptr};
  }
  std::vector<float> f;
  std::vector<int8_t> q8;
  std::vector<float> d8, s8;
  std::vector<int16_t> h8, q16;
  std::vector<float> d16;
  Activations act;
};

// Seconds of one pass over the matrix with m activation rows.
double pass(const Kernels& kernels, TileKernel kernel, const check::Buffer<uint8_t>& packed, size_t tile,
            const Activations& a, int m) {
  float out[kMaxCallRows * kTileRows];
  const auto start = std::chrono::steady_clock::now();
  for (size_t t = 0; t + tile <= packed.size(); t += tile) {
    Activations rows_in = a;
    rows_in.next = t + 2 * tile <= packed.size() ? packed.data() + t + tile : nullptr;
    for (int r = 0, rows = 0; r < m; r += rows, rows_in.next = nullptr) {
      rows = rows_of_call(a, kernels, r, m);
      kernel(packed.data() + t, rows_in, r, rows, out);
    }
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The first m rows, grouped in `room` where the decoder would group them.
Activations grouped(const Kernels& kernels, ActFormat format, Activations a, int m,
                    std::vector<uint8_t>* room) {
  if (format != ActFormat::kA8 || kernels.groups == 0 || m <= kernels.rows) return a;
  room->resize(grouped_bytes(size_t(m), size_t(a.k)));
  for (int r = 0; r < m; ++r) put_into_group(a, r, m, kernels.rows, room->data());
  a.groups = room->data();
  a.grouped = m;
  return a;
}

void measure(const Kernels& kernels, const blocks::NamedType& type, bool precise, int n, const Inputs& in) {
  const Scheme scheme = scheme_of(type.type, precise);
  const ActFormat format = act_format(scheme, precise);
  const TileKernel kernel = kernels.tile[int(scheme)][int(format)];
  const int k = in.act.k;
  const size_t tile = tile_bytes(scheme, k);
  check::Buffer<uint8_t> packed(packed_bytes(scheme, n, k), 0);
  check::Random random(6);
  std::vector<std::vector<uint8_t>> source;
  const uint8_t* rows[kTileRows];
  for (int i = 0; i < kTileRows; ++i)
    source.push_back(blocks::make_row(type.type, k, blocks::Fill::kTypical, random));
  for (int i = 0; i < kTileRows; ++i) rows[i] = source[size_t(i)].data();
  for (size_t t = 0; t + tile <= packed.size(); t += tile)
    pack_tile(type.type, scheme, rows, k, packed.data() + t);
  std::printf("%-7s %-5s", type.name,
              format == ActFormat::kF32  ? "f32"
              : format == ActFormat::kA8 ? "a8"
                                         : "a16");
  for (int m : {1, 2, 4, 8, 12, 64}) {
    double best = 1e9;
    std::vector<uint8_t> room;
    const Activations act = grouped(kernels, format, in.act, m, &room);
    for (int i = 0; i < 12; ++i) {
      const double t = pass(kernels, kernel, packed, tile, act, m);
      if (t < best) best = t;
    }
    const double macs = double(n) * k * m;
    std::printf(" %7.1f", macs / best / 1e9);
    if (m == 1) std::printf(" (%5.1f GB/s)", double(packed.size()) / best / 1e9);
  }
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  const Kernels* kernels = select_kernels(argc > 1 ? argv[1] : "");
  const int n = argc > 2 ? std::atoi(argv[2]) : 2048, k = argc > 3 ? std::atoi(argv[3]) : 2048;
  if (kernels == nullptr || n < kTileRows || k < 256 || k % 256 != 0) {
    std::fprintf(stderr, "usage: spola_linear_bench [isa [N [K, a multiple of 256]]]\n");
    return 2;
  }
  std::printf("%s, N %d, K %d, GMAC/s\n%-13s %7s %14s %7s %7s %7s %7s\n", kernels->isa, n, k, "", "m=1", "",
              "2", "4", "8", "12 / 64");
  const Inputs in(k);
  for (const blocks::NamedType& t : blocks::kAll) {
    measure(*kernels, t, false, n, in);
    if (scheme_of(t.type, true) != scheme_of(t.type, false)) measure(*kernels, t, true, n, in);
  }
}
