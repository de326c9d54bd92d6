// Which instructions a linear kernel is made of, for every instruction set: what Kernels::mix runs on
// registers.
//
// Counted is what each activation row costs: products, what widens them, conversion, scales, zero points and
// mins. Not counted is what the rows of a call share or may share (loads, unpacking, scales of K-quants) and
// sums of A16 activations. For sources peak_ISA.cc only.
//
// I is an instruction set. Each of its functions does the products and the rest for so many columns, `rounds`
// times in several independent chains, and returns the multiply-adds:
//   f32(rounds)
//   a8<Bits, Zero, Min>(rounds)   32 columns of unsigned codes with a scale, and a zero point or a min
//   six(rounds)                   32 columns of Q6_K
//   codes<Group, Min>(rounds)     a group of int8 codes times A8
//   a16<Group, Min>(rounds)       a group of int8 codes times A16
#pragma once

#include "kernels/inline.h"
#include "kernels/table.h"

namespace spola {
namespace {

template <class I>
double mix_of_a16(Scheme scheme, long rounds) {
  switch (scheme) {
    case Scheme::kI8G16: return I::template a16<16, false>(rounds);
    case Scheme::kI8G16M: return I::template a16<16, true>(rounds);
    case Scheme::kI8G32M: return I::template a16<32, true>(rounds);
    case Scheme::kI8G64: return I::template a16<64, false>(rounds);
    default: return I::template a16<32, false>(rounds);  // kI8S and kI8G32
  }
}

template <class I>
double mix_of(Scheme scheme, ActFormat format, long rounds) {
  if (format == ActFormat::kF32) return I::f32(rounds);
  if (format == ActFormat::kA16) return mix_of_a16<I>(scheme, rounds);
  switch (scheme) {
    case Scheme::kU4S: return I::template a8<4, true, false>(rounds);
    case Scheme::kU5S: return I::template a8<5, true, false>(rounds);
    case Scheme::kU5SM:
    case Scheme::kU5K: return I::template a8<5, false, true>(rounds);
    case Scheme::kU6K: return I::six(rounds);
    case Scheme::kI8G16: return I::template codes<16, false>(rounds);
    case Scheme::kI8G16M: return I::template codes<16, true>(rounds);
    case Scheme::kI8G32: return I::template codes<32, false>(rounds);
    case Scheme::kI8G32M: return I::template codes<32, true>(rounds);
    default: return I::template a8<4, false, true>(rounds);  // kU4SM, kU4K, kU4Z64, kU4Z128
  }
}

}  // namespace
}  // namespace spola
