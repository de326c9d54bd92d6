// The one macro that all SIMD sources and their templates share.
#pragma once

#define SPOLA_INLINE inline __attribute__((always_inline))
