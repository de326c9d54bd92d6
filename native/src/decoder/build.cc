#include "decoder/build.h"

#include <stdexcept>
#include <string>

namespace spola::build {
namespace {

template <class E>
E enum_of(int value, int last, const char* what) {
  if (value < 0 || value > last) throw std::invalid_argument(std::string("there is no such ") + what);
  return static_cast<E>(value);
}

NormPart norm_part(const NormTuple& t) {
  const int last = static_cast<int>(NormKind::kLayer);
  return {enum_of<NormKind>(std::get<0>(t), last, "norm"), std::get<1>(t), std::get<2>(t), std::get<3>(t)};
}

Buffer buffer_of(int b) { return enum_of<Buffer>(b, static_cast<int>(Buffer::kCount) - 1, "buffer"); }

Epilogue epilogue_of(int e) {
  return enum_of<Epilogue>(e, static_cast<int>(Epilogue::kSilu1702), "epilogue");
}

// Attention, and the merge of its partial results, after which a stage ends or not.
void attend(Decoder& d, const AttentionShape& shape, int sinks, bool barrier) {
  Op op;
  op.kind = OpKind::kAttention;
  op.attention = {shape};
  d.append(op);
  op = Op();
  op.kind = OpKind::kMerge;
  op.barrier = barrier;
  op.merge = {shape, sinks};
  d.append(op);
}

}  // namespace

int add_rope(Decoder& d, const std::vector<double>& frequencies, double factor, bool interleaved) {
  if (frequencies.empty()) throw std::invalid_argument("rope: no frequencies");
  return d.model().add_rope(d.pool(), frequencies, factor, interleaved, d.config().max_model_len);
}

int add_kv_group(Decoder& d, int layers, int heads, int k_dim, int v_dim, int window, int k_type, int v_type,
                 bool latent, int blocks) {
  const auto type = [](int t) { return enum_of<KvType>(t, static_cast<int>(KvType::kI8), "KV type"); };
  return d.add_kv_group({layers, heads, k_dim, v_dim, window, type(k_type), type(v_type), latent}, blocks);
}

void embed(Decoder& d, int matrix, float scale, int positions, int offset) {
  Op op;
  op.kind = OpKind::kEmbed;
  op.barrier = false;  // the prepare op that follows works on the same rows
  op.embed = {matrix, scale, positions, offset};
  d.append(op);
}

void residual(Decoder& d, int input, const NormTuple& norm, float multiplier) {
  Op op;
  op.kind = OpKind::kResidual;
  op.residual = {buffer_of(input), norm_part(norm), multiplier};
  d.append(op);
}

void prepare(Decoder& d, int input, int width, const NormTuple& norm, const std::vector<int>& consumers,
             int rows) {
  const Rows which = enum_of<Rows>(rows, static_cast<int>(Rows::kSlots), "set of rows");
  Op op;
  op.kind = OpKind::kPrepare;
  op.prepare = {buffer_of(input), width, norm_part(norm), d.formats_of(consumers), which, width, 0, 0};
  d.append(op);
}

void prepare_part(Decoder& d, int input, int stride, int width, const NormTuple& norm,
                  const std::vector<int>& consumers, int heads, int step) {
  Op op;
  op.kind = OpKind::kPrepare;
  op.prepare = {buffer_of(input), width, norm_part(norm), d.formats_of(consumers),
                heads > 0 ? Rows::kHeads : Rows::kStep, stride, heads, step};
  d.append(op);
}

void heads(Decoder& d, int count, int matrix, int output, int width, int step) {
  Op op;
  op.kind = OpKind::kHeads;
  op.heads = {count, matrix, buffer_of(output), width, step};
  d.append(op);
}

void linear(Decoder& d, const std::vector<PartTuple>& parts, int output, int width, int epilogue,
            float multiplier, float clamp, float up_offset, int max_rank) {
  if (parts.empty() || parts.size() > kMaxParts) throw std::invalid_argument("linear: 1 to 4 parts, please");
  Op op;
  op.kind = OpKind::kLinear;
  op.linear = LinearOp{};
  for (const PartTuple& p : parts) {
    const int at = op.linear.parts * max_rank;
    op.linear.part[op.linear.parts++] = {std::get<0>(p), std::get<1>(p), std::get<2>(p), std::get<3>(p), at};
  }
  op.linear.output = buffer_of(output);
  op.linear.width = width;
  op.linear.epilogue = epilogue_of(epilogue);
  op.linear.multiplier = multiplier;
  op.linear.clamp = clamp;
  op.linear.up_offset = up_offset;
  d.append(op);
}

void adapt(Decoder& d, const std::vector<int>& sites, int max_rank) {
  if (sites.empty() || sites.size() > kMaxParts) throw std::invalid_argument("adapters: 1 to 4 parts, please");
  Op op;
  op.kind = OpKind::kAdapter;
  op.adapter = AdapterOp{};
  for (int site : sites) op.adapter.site[op.adapter.parts++] = site;
  op.adapter.max_rank = max_rank;
  d.append(op);
}

void route(Decoder& d, int experts, int used, int width, bool normalise, float scale, bool sigmoid, int bias,
           int groups, int groups_used) {
  Op op;
  op.kind = OpKind::kRoute;
  op.route = {experts, used, width, normalise, scale, sigmoid, bias, groups, groups_used};
  d.append(op);
  op.kind = OpKind::kGroup;
  d.append(op);
}

void experts(Decoder& d, int count, int gate, int up, int gate_bias, int up_bias, int output, int width,
             int epilogue, float clamp, float up_offset) {
  Op op;
  op.kind = OpKind::kExperts;
  op.experts = {count, gate,  up, gate_bias, up_bias, buffer_of(output), width, epilogue_of(epilogue),
                clamp, up_offset};
  d.append(op);
}

void combine(Decoder& d, int width, bool shared, bool shared_gate, int router_width) {
  Op op;
  op.kind = OpKind::kCombine;
  op.barrier = false;  // the residual op that follows works on the same rows
  op.combine = {width, shared, shared_gate, router_width};
  d.append(op);
}

void attention(Decoder& d, int group, int layer, int heads, float scale, float softcap, int rope,
               const NormTuple& q_norm, const NormTuple& k_norm, bool norm_whole, int sinks) {
  const AttentionShape shape{group, layer, heads, scale, softcap};
  Op op;
  op.kind = OpKind::kRopeKv;
  op.rope_kv = {shape, rope, norm_part(q_norm), norm_part(k_norm), norm_whole};
  d.append(op);
  attend(d, shape, sinks, false);  // the prepare op that follows works on the same rows
}

void latent(Decoder& d, int group, int layer, int heads, float scale, int rope, const NormTuple& norm, int q,
            int q_dim, int q_stride, int kv_column, int kv_stride) {
  const AttentionShape shape{group, layer, heads, scale, 0.0f};
  Op op;
  op.kind = OpKind::kLatent;
  op.latent = {shape, rope, norm_part(norm), buffer_of(q), q_dim, q_stride, kv_column, kv_stride};
  d.append(op);
  attend(d, shape, kNoId, true);
}

void head(Decoder& d, const NormTuple& norm, int matrix, int bias, float scale, float softcap) {
  d.set_head({norm_part(norm), matrix, bias, scale, softcap});
}

}  // namespace spola::build
