// Activation functions, norms, conversions and reductions over a row: the instances of rows_tile.h.
#include "kernels/rows_tile.h"
#include "kernels/variants.h"
#include "kernels/vector_avx2.h"

namespace spola::avx2 {

SPOLA_ROW_KERNELS(RowKernels<Vector>)

}  // namespace spola::avx2
