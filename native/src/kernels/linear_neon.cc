// Linear kernels with NEON and dotprod: the instances of linear_dot_*.h.
#include "kernels/linear_dot_float.h"
#include "kernels/linear_dot_i8.h"
#include "kernels/linear_dot_u4.h"
#include "kernels/linear_dot_u5.h"
#include "kernels/linear_dot_u6.h"
#include "kernels/simd_neon.h"
#include "kernels/variants.h"

namespace spola::neon {

SPOLA_TILE_KERNEL(tile_u4s_a8, FourBits<Simd>::u4s)
SPOLA_TILE_KERNEL(tile_u4sm_a8, FourBits<Simd>::u4sm)
SPOLA_TILE_KERNEL(tile_u4k_a8, FourBits<Simd>::u4k)
SPOLA_TILE_KERNEL(tile_u5s_a8, FiveBits<Simd>::u5s)
SPOLA_TILE_KERNEL(tile_u5sm_a8, FiveBits<Simd>::u5sm)
SPOLA_TILE_KERNEL(tile_u5k_a8, FiveBits<Simd>::u5k)
SPOLA_TILE_KERNEL(tile_u6k_a8, SixBits<Simd>::u6k)
SPOLA_TILE_KERNEL(tile_i8s_a16, EightBits<Simd>::i8s)
SPOLA_TILE_KERNEL(tile_i8g16_a8, GenericCodes<Simd, 16, false>::a8)
SPOLA_TILE_KERNEL(tile_i8g16m_a8, GenericCodes<Simd, 16, true>::a8)
SPOLA_TILE_KERNEL(tile_i8g32_a8, GenericCodes<Simd, 32, false>::a8)
SPOLA_TILE_KERNEL(tile_i8g32m_a8, GenericCodes<Simd, 32, true>::a8)
SPOLA_TILE_KERNEL(tile_i8g16_a16, GenericCodes<Simd, 16, false>::a16)
SPOLA_TILE_KERNEL(tile_i8g16m_a16, GenericCodes<Simd, 16, true>::a16)
SPOLA_TILE_KERNEL(tile_i8g32_a16, GenericCodes<Simd, 32, false>::a16)
SPOLA_TILE_KERNEL(tile_i8g32m_a16, GenericCodes<Simd, 32, true>::a16)
SPOLA_TILE_KERNEL(tile_u4z64_a8, FourBits<Simd>::Zeros<2>::u4z)
SPOLA_TILE_KERNEL(tile_u4z128_a8, FourBits<Simd>::Zeros<4>::u4z)
SPOLA_TILE_KERNEL(tile_i8g64_a16, GenericCodes<Simd, 64, false>::a16)
SPOLA_TILE_KERNEL(tile_e4m3, ScaledFloats<Simd>::e4m3)
SPOLA_TILE_KERNEL(tile_f32, FloatWeights<Simd, Simd::F32>::tile)
SPOLA_TILE_KERNEL(tile_f16, FloatWeights<Simd, Simd::F16>::tile)
SPOLA_TILE_KERNEL(tile_bf16, FloatWeights<Simd, Simd::BF16>::tile)

}  // namespace spola::neon
