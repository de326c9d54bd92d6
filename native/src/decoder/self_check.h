// Compares the kernels of one instruction set with their scalar twins on small inputs: a few milliseconds.
//
// For the first use of an instruction set on a processor; the native tests compare far more.
#pragma once

#include <string>

#include "kernels/table.h"

namespace spola {

// Name of a kernel that gives other bits than its twin, or "" when all are equal.
std::string self_check(const Kernels& kernels);

}  // namespace spola
