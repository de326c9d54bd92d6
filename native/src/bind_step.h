// Conversion of steps between Python tuples and plain data. See bind_step.cc for the layouts.
#pragma once

#include <nanobind/nanobind.h>

#include "decoder/decoder.h"

namespace spola {

// Tuples from Python in, tuples out; the interpreter is released while the step runs.
nanobind::list execute(Decoder& decoder, nanobind::list fresh, nanobind::list gone, nanobind::list copies,
                       nanobind::list zero, nanobind::list slices);

}  // namespace spola
