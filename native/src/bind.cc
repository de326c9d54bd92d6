// The extension module spola._native: conversions between Python and the decoder, nothing else.
//
// ValueError says what is wrong with an argument, a tensor or a step; MemoryError that the system refused.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "base/bandwidth.h"
#include "bind_step.h"
#include "decoder/convert.h"
#include "decoder/build.h"
#include "decoder/decoder.h"
#include "decoder/measure.h"
#include "decoder/self_check.h"
#include "kernels/encode.h"
#include "kernels/pack.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace spola {
namespace {

// A contiguous read-only view of any object with the buffer protocol.
class View {
 public:
  explicit View(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  ~View() { PyBuffer_Release(&buffer_); }
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  const uint8_t* data() const { return static_cast<const uint8_t*>(buffer_.buf); }
  size_t size() const { return static_cast<size_t>(buffer_.len); }

 private:
  Py_buffer buffer_;
};

int add_matrix(Decoder& d, const std::string& name, int type, int64_t rows, int64_t cols, nb::handle data) {
  const View view(data);
  nb::gil_scoped_release release;
  return d.model().add_matrix(d.pool(), name, type, rows, cols, view.data(), view.size());
}

void hold(Decoder& d, int64_t handle, nb::handle weights) {
  const View view(weights);
  if (view.size() % sizeof(float) != 0) throw nb::value_error("weights are no whole number of floats");
  d.hold(handle, reinterpret_cast<const float*>(view.data()), view.size() / sizeof(float));
}

int add_vector(Decoder& d, const std::string& name, int type, int64_t n, nb::handle data, float offset) {
  const View view(data);
  return d.model().add_vector(name, type, n, view.data(), view.size(), offset);
}

void add_adapter_part(Decoder& d, int adapter, int site, int rank, float scale, nb::handle a,
                      nb::handle b) {
  const View first(a), second(b);
  d.add_adapter_part(adapter, site, rank, scale, reinterpret_cast<const float*>(first.data()),
                     first.size() / sizeof(float), reinterpret_cast<const float*>(second.data()),
                     second.size() / sizeof(float));
}

nb::dict memory(const Decoder& d) {
  const MemoryUse use = d.memory();
  nb::dict out;
  out["weights"] = use.weights;
  out["kv"] = use.kv;
  out["workspace"] = use.workspace;
  return out;
}

nb::list counters(Decoder& d) {
  nb::list out;
  for (int w = 0; w < d.pool().size(); ++w) {
    const WorkerCounters& c = d.counters(w);
    nb::dict one;
    one["tiles"] = c.tiles;
    one["segments"] = c.segments;
    one["rows"] = c.rows;
    one["sampled"] = c.sampled;
    out.append(one);
  }
  return out;
}

// (kind, matrices, seconds) of each op, then of the head ("head") and of sampling ("sample").
nb::list op_times(const Decoder& d) {
  static const char* const kKinds[] = {"embed", "prepare",  "adapter", "linear", "rope_kv", "attention",
                                       "merge", "residual", "route",   "group",  "experts", "combine",
                                       "heads", "latent"};
  nb::list out;
  const OpSeconds& seconds = d.op_seconds();
  if (seconds.empty()) return out;
  const std::vector<Op>& ops = d.program().ops;
  for (size_t i = 0; i < ops.size(); ++i) {
    const Op& op = ops[i];
    nb::list matrices;
    if (op.kind == OpKind::kEmbed) matrices.append(op.embed.matrix);
    if (op.kind == OpKind::kLinear) {
      for (int p = 0; p < op.linear.parts; ++p) matrices.append(op.linear.part[p].matrix);
    }
    if (op.kind == OpKind::kHeads) matrices.append(op.heads.matrix);
    if (op.kind == OpKind::kExperts) {
      matrices.append(op.experts.gate);
      if (op.experts.up != kNoId) matrices.append(op.experts.up);
    }
    out.append(nb::make_tuple(kKinds[static_cast<int>(op.kind)], nb::tuple(matrices), seconds[i]));
  }
  out.append(nb::make_tuple("head", nb::make_tuple(d.program().head.matrix), seconds[ops.size()]));
  out.append(nb::make_tuple("sample", nb::tuple(), seconds[ops.size() + 1]));
  return out;
}

nb::list instruction_sets(bool usable) {
  nb::list out;
  for (const char* const* name = compiled_isas(); *name; ++name) {
    if (!usable || select_kernels(*name)) out.append(*name);
  }
  return out;
}

const Kernels& kernels_of(const std::string& isa) {
  const Kernels* kernels = select_kernels(isa.c_str());
  if (!kernels)
    throw nb::value_error(("instruction set '" + isa + "' is not available on this processor").c_str());
  return *kernels;
}

std::string chosen(const std::string& isa) { return kernels_of(isa).isa; }

constexpr const char* kFormats[] = {"f32", "a8", "a16"};  // by ActFormat

std::vector<double> peak(const std::string& isa, const std::string& format, int threads, int passes) {
  const Kernels& kernels = kernels_of(isa);
  for (int f = 0; f < 3; ++f) {
    if (format != kFormats[f]) continue;
    nb::gil_scoped_release release;
    return measure_peak(kernels, static_cast<ActFormat>(f), threads, passes);
  }
  throw nb::value_error("the format is none of f32, a8, a16");
}

std::vector<double> mix(const std::string& isa, int type, bool precise, int passes) {
  const Kernels& kernels = kernels_of(isa);
  nb::gil_scoped_release release;
  return measure_mix(kernels, static_cast<GgmlType>(type), precise, passes);
}

nb::tuple linear_time(const std::string& isa, int type, bool precise, int rows, int cols, int m, int passes) {
  const Kernels& kernels = kernels_of(isa);
  LinearTime time;
  {
    nb::gil_scoped_release release;
    time = measure_linear(kernels, static_cast<GgmlType>(type), precise, rows, cols, m, passes);
  }
  return nb::make_tuple(kFormats[static_cast<int>(time.format)], time.bytes, time.seconds);
}

size_t packed(int type, int64_t rows, int64_t cols, bool precise) {
  const Scheme scheme = scheme_of(static_cast<GgmlType>(type), precise);
  if (scheme == Scheme::kCount || rows < 1 || cols < 1 || cols > INT32_MAX) {
    throw nb::value_error("packed_bytes: no such type or shape");
  }
  return packed_bytes(scheme, rows, static_cast<int>(cols));
}

nb::object convert(int from, int to, int64_t rows, int64_t cols, nb::handle data, int threads) {
  const View view(data);
  const auto source = static_cast<GgmlType>(from), target = static_cast<GgmlType>(to);
  const TypeShape in = type_shape(source), out = type_shape(target);
  if (in.values == 0 || !can_encode(target)) throw nb::value_error("convert: there is no such conversion");
  if (rows < 1 || cols < 1 || cols > INT32_MAX || cols % in.values || cols % out.values || threads < 1) {
    throw nb::value_error("convert: rows that are no whole blocks, or no threads");
  }
  if (view.size() != static_cast<size_t>(rows * (cols / in.values)) * static_cast<size_t>(in.bytes)) {
    throw nb::value_error("convert: the data do not fit the shape");
  }
  const int64_t size = rows * (cols / out.values) * out.bytes;
  nb::object bytes = nb::steal(PyByteArray_FromStringAndSize(nullptr, size));
  if (!bytes.is_valid()) throw nb::python_error();
  auto* stored = reinterpret_cast<uint8_t*>(PyByteArray_AsString(bytes.ptr()));
  std::string problem;
  {
    nb::gil_scoped_release release;
    problem = convert_rows(source, target, rows, cols, view.data(), stored, threads);
  }
  if (!problem.empty()) throw nb::value_error(problem.c_str());
  return bytes;
}

std::vector<double> bandwidth(size_t bytes, int threads, int passes, bool huge_pages) {
  nb::gil_scoped_release release;
  return measure_read_bandwidth(bytes, threads, passes, huge_pages);
}

void make_decoder(Decoder* self, int vocab, int hidden, int max_step_tokens, int max_seqs, int max_model_len,
                  int threads, bool precise, bool huge_pages, size_t weight_limit, const std::string& isa) {
  new (self) Decoder(DecoderConfig{vocab, hidden, max_step_tokens, max_seqs, max_model_len, threads, precise,
                                   huge_pages, weight_limit, isa});
}

}  // namespace
}  // namespace spola

NB_MODULE(_native, m) {
  using namespace spola;
  m.doc() = "Native kernels and decoder of spola; used through spola.backends.native.";
  m.def("compiled_isas", [] { return instruction_sets(false); }, "Instruction sets compiled in, best first.");
  m.def("usable_isas", [] { return instruction_sets(true); }, "Those that this processor can run.");
  m.def("chosen_isa", &chosen, "isa"_a,
        "The set that `isa` (empty for the best) selects; ValueError if it cannot run.");
  m.def("measure_read_bandwidth", &bandwidth, "bytes"_a, "threads"_a, "passes"_a, "huge_pages"_a,
        "Bytes per second of each pass over a buffer.");
  m.def("trim_heap", &trim_heap, "Gives freed memory back to the system.");
  m.def("packed_bytes", &packed, "type"_a, "rows"_a, "cols"_a, "precise"_a,
        "Bytes that a matrix of GGUF type `type` takes once it is packed.");
  m.def("convert", &convert, "source"_a, "target"_a, "rows"_a, "cols"_a, "data"_a, "threads"_a,
        "Rows of GGUF type `source` as a bytearray of type `target`; ValueError naming the row that has no value.");
  m.def(
      "self_check", [](const std::string& isa) { return self_check(kernels_of(isa)); }, "isa"_a,
      "Name of a kernel whose bits differ from its scalar twin's, or an empty string.");
  m.def("measure_peak", &peak, "isa"_a, "format"_a, "threads"_a, "passes"_a,
        "Multiply-adds per second of all threads, pass by pass, on registers alone.");
  m.def("measure_mix", &mix, "isa"_a, "type"_a, "precise"_a, "passes"_a,
        "The same of one thread for the instructions of the linear kernel of a type.");
  m.def("measure_linear", &linear_time, "isa"_a, "type"_a, "precise"_a, "rows"_a, "cols"_a, "m"_a, "passes"_a,
        "(activation format, bytes of weights, seconds of each pass) of one thread.");
  nb::class_<Decoder>(m, "Decoder")
      .def("__init__", &make_decoder, nb::kw_only(), "vocab"_a, "hidden"_a, "max_step_tokens"_a, "max_seqs"_a,
           "max_model_len"_a, "threads"_a, "precise"_a, "huge_pages"_a, "weight_limit"_a, "isa"_a)
      .def("add_matrix", &add_matrix, "name"_a, "type"_a, "rows"_a, "cols"_a, "data"_a)
      .def("add_vector", &add_vector, "name"_a, "type"_a, "n"_a, "data"_a, "offset"_a)
      .def("add_rope", &build::add_rope, "frequencies"_a, "factor"_a, "interleaved"_a)
      .def("add_kv_group", &build::add_kv_group, nb::kw_only(), "layers"_a, "heads"_a, "k_dim"_a, "v_dim"_a,
           "window"_a, "k_type"_a, "v_type"_a, "latent"_a, "blocks"_a)
      .def("embed", &build::embed, "matrix"_a, "scale"_a, "positions"_a, "offset"_a)
      .def("residual", &build::residual, "input"_a, "norm"_a, "multiplier"_a)
      .def("prepare", &build::prepare, "input"_a, "width"_a, "norm"_a, "consumers"_a, "rows"_a = 0)
      .def("route", &build::route, "experts"_a, "used"_a, "width"_a, "normalise"_a, "scale"_a,
           "sigmoid"_a, "bias"_a, "groups"_a, "groups_used"_a)
      .def("prepare_part", &build::prepare_part, nb::kw_only(), "input"_a, "stride"_a, "width"_a, "norm"_a,
           "consumers"_a, "heads"_a, "step"_a)
      .def("heads", &build::heads, nb::kw_only(), "count"_a, "matrix"_a, "output"_a, "width"_a, "step"_a)
      .def("latent", &build::latent, nb::kw_only(), "group"_a, "layer"_a, "heads"_a, "scale"_a, "rope"_a,
           "norm"_a, "q"_a, "q_dim"_a, "q_stride"_a, "kv_column"_a, "kv_stride"_a)
      .def("experts", &build::experts, nb::kw_only(), "count"_a, "gate"_a, "up"_a, "gate_bias"_a,
           "up_bias"_a, "output"_a, "width"_a, "epilogue"_a, "clamp"_a, "up_offset"_a)
      .def("combine", &build::combine, "width"_a, "shared"_a, "shared_gate"_a, "router_width"_a)
      .def("linear", &build::linear, "parts"_a, "output"_a, "width"_a, "epilogue"_a, "multiplier"_a,
           "clamp"_a = 0.0f, "up_offset"_a = 0.0f, "max_rank"_a = 0)
      .def("adapt", &build::adapt, "sites"_a, "max_rank"_a)
      .def("add_site", &Decoder::add_site, "rows"_a, "cols"_a)
      .def("add_adapter", &Decoder::add_adapter)
      .def("add_adapter_part", &add_adapter_part, "adapter"_a, "site"_a, "rank"_a, "scale"_a, "a"_a, "b"_a)
      .def("drop_adapter", &Decoder::drop_adapter, "adapter"_a)
      .def("attention", &build::attention, nb::kw_only(), "group"_a, "layer"_a, "heads"_a, "scale"_a,
           "softcap"_a, "rope"_a, "q_norm"_a, "k_norm"_a, "norm_whole"_a, "sinks"_a)
      .def("head", &build::head, "norm"_a, "matrix"_a, "bias"_a, "scale"_a, "softcap"_a)
      .def("finish", &Decoder::finish)
      .def("execute", &execute, "fresh"_a, "gone"_a, "copies"_a, "zero"_a, "slices"_a)
      .def("memory", &memory)
      .def("counters", &counters)
      .def("time_ops", &Decoder::time_ops, "on"_a)
      .def("op_times", &op_times)
      .def("poison", &Decoder::poison, "group"_a, "block"_a)
      .def("hold", &hold, "handle"_a, "weights"_a)
      .def("adopt", &Decoder::adopt, "handle"_a, "source"_a)
      .def("drop", &Decoder::drop, "handle"_a)
      .def_prop_ro("isa", [](const Decoder& d) { return d.kernels().isa; });
}
