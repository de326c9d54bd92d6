// Builds a decoder from a tape and runs the recorded steps: spola_replay TAPE [ISA [THREADS]].
//
// Prints one line of JSON: the instruction set, the generated tokens by request, and how the outputs compare
// with the recorded ones. Exit status 0 when all tokens are the recorded ones.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <memory>

#include "decoder/build.h"
#include "decoder/decoder.h"
#include "decoder/self_check.h"
#include "step_tape.h"

namespace spola::replay {
namespace {

std::string_view map_file(const char* path) {
  const int file = open(path, O_RDONLY);
  struct stat about;
  if (file < 0 || fstat(file, &about) != 0) throw std::runtime_error(std::string("cannot read ") + path);
  const size_t size = static_cast<size_t>(about.st_size);
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  close(file);
  if (data == MAP_FAILED) throw std::runtime_error(std::string("cannot map ") + path);
  return {static_cast<const char*>(data), size};
}

const uint8_t* raw(std::string_view bytes) { return reinterpret_cast<const uint8_t*>(bytes.data()); }

int add_matrix(Decoder& d, const Value& arguments) {
  const std::vector<Value>& a = items_of(arguments, 5);
  const std::string_view data = bytes_of(a[4]);
  return d.model().add_matrix(d.pool(), std::string(bytes_of(a[0])), static_cast<int>(int_of(a[1])),
                              int_of(a[2]), int_of(a[3]), raw(data), data.size());
}

int add_vector(Decoder& d, const Value& arguments) {
  const std::vector<Value>& a = items_of(arguments, 5);
  const std::string_view data = bytes_of(a[3]);
  return d.model().add_vector(std::string(bytes_of(a[0])), static_cast<int>(int_of(a[1])), int_of(a[2]),
                              raw(data), data.size(), static_cast<float>(float_of(a[4])));
}

void add_adapter_part(Decoder& d, const Value& arguments) {
  const std::vector<Value>& v = items_of(arguments, 6);
  const std::vector<float> a = words_of<float>(v[4]), b = words_of<float>(v[5]);
  d.add_adapter_part(static_cast<int>(int_of(v[0])), static_cast<int>(int_of(v[1])),
                     static_cast<int>(int_of(v[2])), static_cast<float>(float_of(v[3])), a.data(), a.size(),
                     b.data(), b.size());
}

// Calls that build; false if `name` is none of them. `result` is the index that a call gives, or -1.
bool build_call(Decoder& d, std::string_view name, const Value& a, int64_t* result) {
  const auto give = [&](auto function) { *result = invoke(function, d, a); };
  const auto make = [&](auto function) { invoke(function, d, a); };
  if (name == "add_matrix") return *result = add_matrix(d, a), true;
  if (name == "add_vector") return *result = add_vector(d, a), true;
  if (name == "add_rope") return give(&build::add_rope), true;
  if (name == "add_kv_group") return give(&build::add_kv_group), true;
  if (name == "embed") return make(&build::embed), true;
  if (name == "residual") return make(&build::residual), true;
  if (name == "prepare") return make(&build::prepare), true;
  if (name == "linear") return make(&build::linear), true;
  if (name == "route") return make(&build::route), true;
  if (name == "experts") return make(&build::experts), true;
  if (name == "combine") return make(&build::combine), true;
  if (name == "attention") return make(&build::attention), true;
  if (name == "prepare_part") return make(&build::prepare_part), true;
  if (name == "heads") return make(&build::heads), true;
  if (name == "latent") return make(&build::latent), true;
  if (name == "head") return make(&build::head), true;
  if (name == "adapt") return make(&build::adapt), true;
  if (name == "add_site") return give(&Decoder::add_site), true;
  if (name == "add_adapter") return give(&Decoder::add_adapter), true;
  if (name == "add_adapter_part") return add_adapter_part(d, a), true;
  if (name == "drop_adapter") return make(&Decoder::drop_adapter), true;
  if (name == "finish") return d.finish(), true;
  return false;
}

DecoderConfig config_of(const Value& arguments, const char* isa, int threads) {
  const std::vector<Value>& a = items_of(arguments, 10);
  DecoderConfig c;
  c.vocab = static_cast<int>(int_of(a[0]));
  c.hidden = static_cast<int>(int_of(a[1]));
  c.max_step_tokens = static_cast<int>(int_of(a[2]));
  c.max_seqs = static_cast<int>(int_of(a[3]));
  c.max_model_len = static_cast<int>(int_of(a[4]));
  c.threads = threads;
  c.precise = int_of(a[6]) != 0;
  c.huge_pages = int_of(a[7]) != 0;
  c.weight_limit = static_cast<size_t>(int_of(a[8]));
  c.isa = isa;
  return c;
}

class Replay {
 public:
  Replay(const char* isa, int threads) : isa_(isa), threads_(threads) {}

  void call(const Value& taped) {
    const std::vector<Value>& call = items_of(taped, 3);
    const std::string_view name = bytes_of(call[0]);
    if (name == "Decoder") {
      decoder_ = std::make_unique<Decoder>(config_of(call[1], isa_, threads_));
      return;
    }
    if (!decoder_) throw std::runtime_error("tape: a call before there is a decoder");
    int64_t result = -1;
    if (name == "execute") return execute(call[1], call[2]);
    if (!build_call(*decoder_, name, call[1], &result)) {
      throw std::runtime_error("tape: no call '" + std::string(name) + "' is known here");
    }
    if (call[2].tag == 'i' && call[2].i != result) {
      throw std::runtime_error("tape: another index than recorded");
    }
  }

  // Prints the report; true when all is as recorded.
  bool report(double seconds) const {
    if (!decoder_) throw std::runtime_error("tape: it makes no decoder");
    const std::string differs = self_check(decoder_->kernels());
    std::printf("{\"isa\":\"%s\",\"threads\":%d,\"self_check\":\"%s\",\"steps\":%ld,\"seconds\":%.1f,",
                decoder_->kernels().isa, threads_, differs.c_str(), steps_, seconds);
    std::printf("\"compared\":%ld,\"wrong\":%ld,\"numbers\":%ld,\"unequal_bits\":%ld,\"furthest\":%.3g,",
                comparison_.tokens, comparison_.wrong, comparison_.numbers, comparison_.unequal,
                comparison_.furthest);
    std::printf("\"tokens\":{");
    const char* comma = "";
    for (const auto& [id, ids] : tokens_) {
      std::printf("%s\"%ld\":[", comma, static_cast<long>(id));
      for (size_t i = 0; i < ids.size(); ++i) std::printf("%s%d", i == 0 ? "" : ",", ids[i]);
      std::printf("]");
      comma = ",";
    }
    std::printf("}}\n");
    return comparison_.wrong == 0 && comparison_.tokens > 0 && differs.empty();
  }

 private:
  void execute(const Value& arguments, const Value& recorded) {
    const TapedStep taped(arguments);
    const std::vector<SliceOut> found = decoder_->execute(taped.step);
    for (size_t i = 0; i < found.size(); ++i) {
      std::vector<int32_t>& ids = tokens_[taped.step.slices[i].id];
      ids.insert(ids.end(), found[i].ids.begin(), found[i].ids.end());
    }
    comparison_.outputs(found, recorded);
    ++steps_;
  }

  const char* isa_;
  int threads_;
  std::unique_ptr<Decoder> decoder_;
  std::map<int64_t, std::vector<int32_t>> tokens_;
  Comparison comparison_;
  long steps_ = 0;
};

}  // namespace
}  // namespace spola::replay

int main(int count, char** arguments) {
  if (count < 2 || count > 4) {
    std::fprintf(stderr, "usage: spola_replay TAPE [ISA [THREADS]]\n");
    return 2;
  }
  try {
    const auto start = std::chrono::steady_clock::now();
    spola::replay::Replay replay(count > 2 ? arguments[2] : "", count > 3 ? std::stoi(arguments[3]) : 2);
    const std::string_view file = spola::replay::map_file(arguments[1]);
    for (const auto& call : spola::replay::read_tape(file)) replay.call(call);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    return replay.report(took.count()) ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "spola_replay: %s\n", error.what());
    return 1;
  }
}
