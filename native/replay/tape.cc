#include "tape.h"

#include <cstring>

namespace spola::replay {
namespace {

constexpr std::string_view kMagic = "spola tape 1\n";
constexpr int kDeepest = 16;

class Reader {
 public:
  explicit Reader(std::string_view file) : left_(file) {}

  bool done() const { return left_.empty(); }

  std::string_view take(size_t n) {
    if (n > left_.size()) throw std::runtime_error("tape: it ends early");
    const std::string_view out = left_.substr(0, n);
    left_.remove_prefix(n);
    return out;
  }

  Value value(int depth = 0) {
    if (depth > kDeepest) throw std::runtime_error("tape: values nested too deeply");
    Value v;
    v.tag = take(1)[0];
    switch (v.tag) {
      case 'n': break;
      case 'i': v.i = number<int64_t>(); break;
      case 'f': v.f = number<double>(); break;
      case 's': v.s = take(number<uint64_t>()); break;
      case 't':
        for (uint64_t n = number<uint64_t>(); n > 0; --n) v.items.push_back(value(depth + 1));
        break;
      default: throw std::runtime_error("tape: a value of no known kind");
    }
    return v;
  }

 private:
  template <class T>
  T number() {
    T x;
    std::memcpy(&x, take(sizeof x).data(), sizeof x);
    return x;
  }

  std::string_view left_;
};

[[noreturn]] void wrong(const char* wanted, const Value& v) {
  throw std::runtime_error(std::string("tape: ") + wanted + " expected, a value of kind " + v.tag + " found");
}

}  // namespace

std::vector<Value> read_tape(std::string_view file) {
  Reader reader(file);
  if (file.substr(0, kMagic.size()) != kMagic) throw std::runtime_error("tape: not a recording of spola");
  reader.take(kMagic.size());
  std::vector<Value> calls;
  while (!reader.done()) calls.push_back(reader.value());
  return calls;
}

const std::vector<Value>& items_of(const Value& v, int count) {
  if (v.tag != 't') wrong("a tuple", v);
  if (count >= 0 && v.items.size() != static_cast<size_t>(count)) {
    throw std::runtime_error("tape: a tuple of " + std::to_string(v.items.size()) + " values, " +
                             std::to_string(count) + " expected");
  }
  return v.items;
}

std::string_view bytes_of(const Value& v) {
  if (v.tag != 's') wrong("bytes", v);
  return v.s;
}

int64_t int_of(const Value& v) {
  if (v.tag != 'i') wrong("an integer", v);
  return v.i;
}

double float_of(const Value& v) {
  if (v.tag == 'i') return static_cast<double>(v.i);
  if (v.tag != 'f') wrong("a number", v);
  return v.f;
}

}  // namespace spola::replay
