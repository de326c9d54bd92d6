// What this processor, together with the operating system, can run.
#pragma once

namespace spola {

struct CpuFeatures {
  bool avx2 = false;        // AVX2, FMA and F16C, and the system saves the registers they need
  bool avx512vnni = false;  // AVX-512 F, BW, VL, DQ and VNNI, likewise
  bool neon_dotprod = false;  // arm64 with dot products of bytes (ARMv8.2 DotProd)
};

// Asks the processor, or the system where only that knows; false everywhere on other architectures.
CpuFeatures probe_cpu();

}  // namespace spola
