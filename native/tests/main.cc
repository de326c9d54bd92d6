// Runs all native tests. Exit status 0 only if every check held.
#include <chrono>

#include "check.h"
#include "kernels/table.h"

namespace check {

Totals& totals() {
  static Totals t;
  return t;
}

std::vector<const spola::Kernels*> variants() {
  std::vector<const spola::Kernels*> out;
  for (const char* const* name = spola::compiled_isas(); *name; ++name) {
    const spola::Kernels* table = spola::select_kernels(*name);
    if (table && table != spola::scalar_kernels()) out.push_back(table);
  }
  return out;
}

bool expect(bool ok, const char* what, const char* file, int line) {
  Totals& t = totals();
  ++t.checks;
  if (ok) return true;
  if (++t.failures <= 20) std::fprintf(stderr, "%s:%d: %s\n", file, line, what);
  return false;
}

}  // namespace check

int main() {
  struct Suite {
    const char* name;
    void (*run)();
  };
  const Suite suites[] = {{"pack", test_pack},           {"linear", test_linear},   {"rows", test_rows},
                          {"attention", test_attention}, {"decoder", test_decoder}, {"free", test_free}, {"verify", test_verify}};
  for (const spola::Kernels* k : check::variants()) std::printf("against the twins: %s\n", k->isa);
  for (const Suite& s : suites) {
    const long before = check::totals().checks;
    const auto start = std::chrono::steady_clock::now();
    s.run();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::printf("%-9s %8ld checks %6.2f s\n", s.name, check::totals().checks - before, took.count());
  }
  const check::Totals t = check::totals();
  std::printf("%ld checks, %ld failed\n", t.checks, t.failures);
  return t.failures == 0 && t.checks > 0 ? 0 : 1;
}
