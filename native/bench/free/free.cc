#include "free/free.h"

#include <cstring>
#include <initializer_list>

namespace spola::free_order {

const Kernels* find(const char* isa) {
#if defined(SPOLA_HAVE_X86)
  for (const Kernels* kernels : {&kAvx512vnni, &kAvx2}) {
    if (std::strcmp(kernels->isa, isa) == 0) return kernels;
  }
#endif
  (void)isa;
  return nullptr;
}

}  // namespace spola::free_order
