// What this processor, together with the operating system, can run.
#pragma once

namespace spola {

struct CpuFeatures {
  bool avx2 = false;        // AVX2, FMA and F16C, and the system saves the registers they need
  bool avx512vnni = false;  // AVX-512 F, BW, VL, DQ and VNNI, likewise
};

// Asks the processor; false everywhere on other architectures.
CpuFeatures probe_cpu();

}  // namespace spola
