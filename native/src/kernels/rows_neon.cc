// Activation functions, norms, conversions and reductions over a row: the instances of rows_tile.h.
#include "kernels/rows_tile.h"
#include "kernels/variants.h"
#include "kernels/vector_neon.h"

namespace spola::neon {

SPOLA_ROW_KERNELS(RowKernels<Vector>)

}  // namespace spola::neon
