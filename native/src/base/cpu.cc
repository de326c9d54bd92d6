// Probe through CPUID and XGETBV on x86-64; on arm64, where these registers are the kernel's, through what it
// hands to every process. Compiled for the baseline, so it runs anywhere.
#include "base/cpu.h"

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace spola {

#if defined(__x86_64__)

namespace {

// Register state that the system saves at a context switch (XCR0).
uint64_t enabled_state() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

constexpr uint32_t bit(int n) { return 1u << n; }

}  // namespace

CpuFeatures probe_cpu() {
  CpuFeatures out;
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return out;
  const bool osxsave = c & bit(27), avx = c & bit(28), fma = c & bit(12), f16c = c & bit(29);
  if (!osxsave || !avx || (enabled_state() & 6) != 6) return out;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return out;
  out.avx2 = (b & bit(5)) && fma && f16c;
  const bool f = b & bit(16), dq = b & bit(17), bw = b & bit(30), vl = b & bit(31), vnni = c & bit(11);
  // Bits 5 to 7: mask registers and the upper halves and second sixteen of the vector registers.
  out.avx512vnni = f && dq && bw && vl && vnni && (enabled_state() & 0xe6) == 0xe6;
  return out;
}

#elif defined(__aarch64__) && defined(__linux__)

CpuFeatures probe_cpu() {
  constexpr unsigned long kAsimdDp = 1ul << 20;  // HWCAP_ASIMDDP, which old headers lack
  CpuFeatures out;
  out.neon_dotprod = (getauxval(AT_HWCAP) & kAsimdDp) != 0;
  return out;
}

#elif defined(__aarch64__) && defined(__APPLE__)

CpuFeatures probe_cpu() {
  int has = 0;
  size_t size = sizeof has;
  CpuFeatures out;
  out.neon_dotprod = sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, nullptr, 0) == 0 && has != 0;
  return out;
}

#else

CpuFeatures probe_cpu() { return {}; }

#endif

}  // namespace spola
