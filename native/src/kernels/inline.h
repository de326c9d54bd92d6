// The macros that all SIMD sources and their templates share.
#pragma once

#define SPOLA_INLINE inline __attribute__((always_inline))
#define SPOLA_NOINLINE __attribute__((noinline))
