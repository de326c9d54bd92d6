// Speed of the tile kernels on one thread, in GMAC/s. Not a test: run it on a quiet machine.
//
//   spola_linear_bench [isa [N [K]]]     default: best instruction set, 2048 x 2048
//
// Activation rows are grouped for every tile as the decoder groups them. Best of several passes.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "inputs.h"

using namespace spola;

namespace {

constexpr int kMostRows = 64;

// Seconds of one pass over the matrix with m activation rows.
double pass(const Kernels& kernels, TileKernel kernel, ActFormat format, const check::Buffer<uint8_t>& packed,
            size_t tile, const Activations& a, int m) {
  float out[kMaxCallRows * kTileRows];
  const auto start = std::chrono::steady_clock::now();
  for (size_t t = 0; t + tile <= packed.size(); t += tile) {
    Activations rows_in = a;
    rows_in.next = t + 2 * tile <= packed.size() ? packed.data() + t + tile : nullptr;
    for (int r = 0, rows = 0; r < m; r += rows, rows_in.next = nullptr) {
      rows = rows_of_call(a, kernels, format, r, m);
      kernel(packed.data() + t, rows_in, r, rows, out);
    }
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Multiply-adds a second of the kernel's own instructions on registers: the best of some passes.
double ceiling(const Kernels& kernels, Scheme scheme, ActFormat format) {
  double best = 0;
  long rounds = 100;
  for (int pass = 0; pass < 12;) {
    const auto start = std::chrono::steady_clock::now();
    const double macs = kernels.mix(scheme, format, rounds);
    const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (took < 1e-3) {
      rounds *= 2;
      continue;
    }
    best = std::fmax(best, macs / took);
    ++pass;
  }
  return best;
}

void measure(const Kernels& kernels, const blocks::NamedType& type, bool precise, int n,
             const bench::Inputs& in) {
  const Scheme scheme = scheme_of(type.type, precise);
  const ActFormat format = act_format(scheme, precise);
  const TileKernel kernel = kernels.tile[int(scheme)][int(format)];
  const int k = in.act.k;
  const size_t tile = tile_bytes(scheme, k);
  check::Buffer<uint8_t> packed(packed_bytes(scheme, n, k), 0);
  bench::fill_tiles(type.type, scheme, k, int(packed.size() / tile), packed.data());
  std::printf("%-7s %-5s", type.name,
              format == ActFormat::kF32  ? "f32"
              : format == ActFormat::kA8 ? "a8"
                                         : "a16");
  std::vector<uint8_t> groups;
  for (int m : {1, 2, 4, 8, 12, 64}) {
    double best = 1e9;
    Activations a = in.act;
    if (format == ActFormat::kA8) in.group(kernels, m, &groups, &a);
    for (int i = 0; i < 12; ++i) {
      const double t = pass(kernels, kernel, format, packed, tile, a, m);
      if (t < best) best = t;
    }
    const double macs = double(n) * k * m;
    std::printf(" %7.1f", macs / best / 1e9);
    if (m == 1) std::printf(" (%5.1f GB/s)", double(packed.size()) / best / 1e9);
  }
  std::printf(" %7.1f\n", ceiling(kernels, scheme, format) / 1e9);
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
              "2", "4", "8", "12 / 64 / on registers");
  const bench::Inputs in(kMostRows, k);
  for (const blocks::NamedType& t : blocks::kAll) {
    measure(*kernels, t, false, n, in);
    if (scheme_of(t.type, true) != scheme_of(t.type, false)) measure(*kernels, t, true, n, in);
  }
}
