#include "decoder/convert.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/encode.h"
#include "kernels/expand.h"

namespace spola {
namespace {

size_t row_bytes(GgmlType type, int64_t cols) {
  const TypeShape shape = type_shape(type);
  return static_cast<size_t>(cols / shape.values) * static_cast<size_t>(shape.bytes);
}

}  // namespace

std::string convert_rows(GgmlType from, GgmlType to, int64_t rows, int64_t cols, const uint8_t* in,
                         uint8_t* out, int threads) {
  const size_t source = row_bytes(from, cols), target = row_bytes(to, cols);
  const int n = static_cast<int>(std::min<int64_t>(threads, rows));
  // The lowest row that is wrong, of values that came in, and of those that do not fit.
  std::vector<int64_t> bad(static_cast<size_t>(n), rows), large(static_cast<size_t>(n), rows);
  const std::shared_ptr<ThreadPool> pool = shared_pool(n);
  const auto convert = [&](int part) {
    std::vector<float> values(static_cast<size_t>(cols));
    for (int64_t r = rows * part / n; r < rows * (part + 1) / n; ++r) {
      const uint8_t* row = in + static_cast<size_t>(r) * source;
      uint8_t* stored = out + static_cast<size_t>(r) * target;
      if (!row_finite(from, row, static_cast<int>(cols))) {
        bad[static_cast<size_t>(part)] = r;
        return;
      }
      decode_values(from, row, cols, values.data());
      encode_values(to, values.data(), cols, stored);
      if (!row_finite(to, stored, static_cast<int>(cols))) {
        large[static_cast<size_t>(part)] = r;
        return;
      }
    }
  };
  pool->run(1, [&](int worker, int stage) {
    for (Range parts; parts = pool->claim(worker, stage, 0, n), parts.begin < parts.end;) {
      for (int i = parts.begin; i < parts.end; ++i) convert(i);
    }
  });
  const int64_t first = *std::min_element(bad.begin(), bad.end());
  const int64_t beyond = *std::min_element(large.begin(), large.end());
  if (first < rows && first <= beyond) {
    return "row " + std::to_string(first) + " holds a value that is not finite";
  }
  if (beyond < rows) return "row " + std::to_string(beyond) + " holds a value too large for the type";
  return "";
}

}  // namespace spola
