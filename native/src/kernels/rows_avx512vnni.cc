// Activation functions and reductions over a row: the instances of rows_tile.h that gain from AVX-512.
#include "kernels/rows_tile.h"
#include "kernels/variants.h"
#include "kernels/vector_avx512vnni.h"

namespace spola::avx512vnni {

SPOLA_ACTIVATION_KERNELS(RowKernels<Vector>)

}  // namespace spola::avx512vnni
