// A recording of the calls that built and ran a decoder (tools/tape.py writes it), as values in memory.
//
// A value is a tag and little-endian content: n nothing; i int64; f float64; s uint64 length and bytes;
// t uint64 count and values. A file is the line "spola tape 1" and tuples (name, arguments, result).
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace spola::replay {

struct Value {
  char tag = 'n';
  int64_t i = 0;
  double f = 0;
  std::string_view s;  // into the file
  std::vector<Value> items;
};

// All calls of a file, in order. The views live as long as `file`. Throws std::runtime_error on what is no
// tape.
std::vector<Value> read_tape(std::string_view file);

// The tuple items of v, `count` of them (-1: any number). Throws std::runtime_error if v is something else.
const std::vector<Value>& items_of(const Value& v, int count = -1);
// The bytes of v.
std::string_view bytes_of(const Value& v);
int64_t int_of(const Value& v);
double float_of(const Value& v);

// The 32-bit words of v, in a copy, as they need not be aligned in the file.
template <class T>
std::vector<T> words_of(const Value& v) {
  static_assert(sizeof(T) == 4);
  const std::string_view bytes = bytes_of(v);
  if (bytes.size() % 4 != 0) throw std::runtime_error("tape: not a whole number of 32-bit values");
  std::vector<T> out(bytes.size() / 4);
  bytes.copy(reinterpret_cast<char*>(out.data()), bytes.size());
  return out;
}

// v as an argument of type T: numbers, strings, vectors and tuples of these.
template <class T>
struct As {
  static T from(const Value& v) {
    if constexpr (std::is_same_v<T, std::string>) {
      return std::string(bytes_of(v));
    } else if constexpr (std::is_floating_point_v<T>) {
      return static_cast<T>(float_of(v));
    } else {
      static_assert(std::is_integral_v<T>);
      return static_cast<T>(int_of(v));
    }
  }
};

template <class T>
struct As<std::vector<T>> {
  static std::vector<T> from(const Value& v) {
    std::vector<T> out;
    for (const Value& item : items_of(v)) out.push_back(As<T>::from(item));
    return out;
  }
};

template <class... T>
struct As<std::tuple<T...>> {
  static std::tuple<T...> from(const Value& v) {
    return from(items_of(v, sizeof...(T)), std::index_sequence_for<T...>());
  }

 private:
  template <size_t... I>
  static std::tuple<T...> from(const std::vector<Value>& items, std::index_sequence<I...>) {
    return {As<T>::from(items[I])...};
  }
};

// function(target, arguments...), the arguments taken from `arguments`.
template <class Target, class R, class... A>
R invoke(R (*function)(Target&, A...), Target& target, const Value& arguments) {
  using Arguments = std::tuple<std::remove_cv_t<std::remove_reference_t<A>>...>;
  const auto call = [&](const auto&... a) { return function(target, a...); };
  return std::apply(call, As<Arguments>::from(arguments));
}

// The same for a member function.
template <class Target, class R, class... A>
R invoke(R (Target::*function)(A...), Target& target, const Value& arguments) {
  using Arguments = std::tuple<std::remove_cv_t<std::remove_reference_t<A>>...>;
  const auto call = [&](const auto&... a) { return (target.*function)(a...); };
  return std::apply(call, As<Arguments>::from(arguments));
}

}  // namespace spola::replay
