// What a decoder refuses: programs that do not fit their tensors, and steps that break the contract.

#include <algorithm>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>

#include "base/align.h"
#include "decoder/decoder.h"

namespace spola {
namespace {

[[noreturn]] void refuse(const std::string& why) { throw std::invalid_argument(why); }

std::string slice_name(const SliceIn& s) { return "slice of request " + std::to_string(s.id); }

}  // namespace

void Decoder::check(const StepIn& step) const {
  if (static_cast<int64_t>(step.slices.size()) > config_.max_seqs) {
    refuse("a step has " + std::to_string(step.slices.size()) + " slices; max_seqs is " +
           std::to_string(config_.max_seqs));
  }
  std::unordered_map<int64_t, Want> live;
  for (const SliceIn& s : step.slices) {
    const auto known = requests_.find(s.id);
    if (known != requests_.end()) live.emplace(s.id, known->second.want);
  }
  for (int64_t id : step.gone) live.erase(id);
  for (const RequestIn& r : step.fresh) {
    if (r.n_prompt < 0 || r.n_prompt > r.n_ids)
      refuse("request " + std::to_string(r.id) + ": n_prompt is wrong");
    if (r.adapter >= static_cast<int>(adapters_.size()) || (r.adapter >= 0 && !adapters_[r.adapter]))
      refuse("request " + std::to_string(r.id) + ": its adapter is not loaded");
    live[r.id] = r.want;
  }
  const auto block = [this](int group, int id) {
    if (group < 0 || group >= static_cast<int>(kv_.size()))
      refuse("there is no KV group " + std::to_string(group));
    if (id < 0 || id >= kv_[group].blocks()) {
      refuse("block " + std::to_string(id) + " is outside the pool of " +
             std::to_string(kv_[group].blocks()));
    }
  };
  for (const CopyIn& c : step.copies) block(c.group, c.source), block(c.group, c.target);
  for (const ZeroIn& z : step.zero) block(z.group, z.block);
  int64_t rows = 0;
  std::unordered_set<int64_t> seen;
  for (const SliceIn& s : step.slices) {
    const auto want = live.find(s.id);
    if (want == live.end()) refuse(slice_name(s) + ": the request is not known");
    if (want->second == Want::kScore && s.n_targets != s.n_head) {
      refuse(slice_name(s) + ": one target per head row, please");
    }
    const int samples = s.n_head - s.n_targets;
    if (want->second == Want::kSample && samples != 0 && samples != s.n_drafts + 1) {
      refuse(slice_name(s) + ": n_head must be 0 or n_drafts + 1 where rows have no targets");
    }
    if (!seen.insert(s.id).second) refuse(slice_name(s) + ": the request has two slices");
    check_slice(s);
    rows += s.n;
  }
  if (rows > config_.max_step_tokens) {
    refuse("a step has " + std::to_string(rows) + " rows; max_step_tokens is " +
           std::to_string(config_.max_step_tokens));
  }
}

void Decoder::check_slice(const SliceIn& s) const {
  if (s.n < 1) refuse(slice_name(s) + ": no tokens");
  if (s.start < 0 || int64_t{s.start} + s.n > config_.max_model_len) {
    refuse(slice_name(s) + ": positions " + std::to_string(s.start) + " to " +
           std::to_string(int64_t{s.start} + s.n - 1) + " do not fit max_model_len " +
           std::to_string(config_.max_model_len));
  }
  if (s.n_head < 0 || s.n_head > s.n) refuse(slice_name(s) + ": n_head is wrong");
  if (s.n_drafts < 0 || s.n_drafts >= s.n) refuse(slice_name(s) + ": n_drafts is wrong");
  if (s.n_targets > s.n_head) refuse(slice_name(s) + ": more targets than head rows");
  const int samples = s.n_head - s.n_targets;
  if (s.n_drafts > 0 && samples != s.n_drafts + 1) {
    refuse(slice_name(s) + ": head rows must be n_drafts + 1");
  }
  if (s.proposals != 0 && s.n_drafts > 0) check_proposals(s);
  if (s.proposals < 0 || (s.proposals != 0 && s.n_drafts == 0 && samples != 1)) {
    refuse(slice_name(s) + ": proposals without a draft or a row to draw");
  }
  if (s.masks && s.mask_words != int64_t{samples} * ((config_.vocab + 31) / 32)) {
    refuse(slice_name(s) + ": masks have the wrong size");
  }
  if (s.tables.size() != kv_.size()) refuse(slice_name(s) + ": one block table per KV group, please");
  for (size_t g = 0; g < kv_.size(); ++g) {
    const int blocks = ceil_div(s.start + s.n, kBlock);
    if (s.tables[g].count < blocks) refuse(slice_name(s) + ": its block table is too short");
    for (int b = first_visible(kv_[g].shape(), s.start) / kBlock; b < blocks; ++b) {
      const int id = s.tables[g].blocks[b];
      if (id < 0 || id >= kv_[g].blocks()) {
        refuse(slice_name(s) + ": block " + std::to_string(id) + " is outside the pool of " +
               std::to_string(kv_[g].blocks()));
      }
    }
  }
}

void Decoder::check_proposals(const SliceIn& s) const {
  const auto held = held_.find(s.proposals);
  if (held == held_.end()) refuse(slice_name(s) + ": nothing is held for its drafts");
  if (held->second.size() < static_cast<size_t>(s.n_drafts) * config_.vocab) {
    refuse(slice_name(s) + ": more drafts than distributions of them");
  }
}

void Decoder::check_norm(const NormPart& norm, int width, const char* what) const {
  if (norm.kind == NormKind::kNone) return;
  if (model_.vector(norm.weight).size != width)
    refuse(std::string(what) + ": the norm's weight has another size");
  if (norm.kind == NormKind::kLayer && model_.vector(norm.bias).size != width) {
    refuse(std::string(what) + ": the norm's bias has another size");
  }
}

void Decoder::check_linear(const LinearOp& op) const {
  if (op.parts < 1 || op.parts > kMaxParts) refuse("linear: wrong number of parts");
  const Matrix& first = model_.matrix(op.part[0].matrix);
  for (int p = 0; p < op.parts; ++p) {
    const Matrix& m = model_.matrix(op.part[p].matrix);
    if (m.cols != first.cols) refuse("linear: matrices that share an input differ in columns");
    if (op.part[p].column < 0 || op.part[p].column + m.rows > op.width)
      refuse("linear: outputs do not fit the row");
    const int site = op.part[p].site;
    if (site != kNoId && (site < 0 || site >= static_cast<int>(sites_.size()) ||
                          sites_[site] != std::pair(m.rows, m.cols))) {
      refuse("linear: the site of adapters has another shape than the matrix");
    }
    if (op.part[p].bias != kNoId && model_.vector(op.part[p].bias).size != m.rows) {
      refuse("linear: the bias has another size than its matrix");
    }
  }
  if (is_activation(op.epilogue) &&
      (op.parts > 2 || (op.parts == 2 && model_.matrix(op.part[1].matrix).rows != first.rows))) {
    refuse("linear: gate and up must have equal shapes");
  }
  if (op.output == Buffer::kNone || op.output == Buffer::kLogits) refuse("linear: wrong output buffer");
  if (op.output == Buffer::kResidual && op.width != config_.hidden)
    refuse("linear: the residual row has another size");
}

void Decoder::check_adapter(const AdapterOp& op) const {
  if (op.parts < 1 || op.parts > kMaxParts || op.max_rank < 1 || op.max_rank > kMaxRank) {
    refuse("adapters: a rank or a number of parts that is not possible");
  }
  for (int p = 0; p < op.parts; ++p) {
    if (op.site[p] < kNoId || op.site[p] >= static_cast<int>(sites_.size())) refuse("adapters: there is no such site");
  }
}

void Decoder::check_experts(const ExpertsOp& op) const {
  const Matrix& first = model_.matrix(op.gate);
  for (int e = 0; e < op.experts; ++e) {
    for (int base : {op.gate, op.up}) {
      if (base == kNoId) continue;
      const Matrix& m = model_.matrix(base + e);
      if (m.rows != first.rows || m.cols != first.cols || m.format != first.format)
        refuse("experts: their matrices differ in shape or type");
    }
  }
  for (int e = 0; e < op.experts; ++e) {
    for (int base : {op.gate_bias, op.up_bias}) {
      if (base != kNoId && model_.vector(base + e).size != first.rows)
        refuse("experts: a bias has another size than its matrix");
    }
  }
  if (op.width != first.rows) refuse("experts: outputs do not fit the row");
  if (op.epilogue == Epilogue::kAdd) refuse("experts: their outputs are not added up here");
  if (op.output != Buffer::kHidden && op.output != Buffer::kExpert) refuse("experts: wrong output buffer");
}

void Decoder::check_route(const RouteOp& op) const {
  if (op.used < 1 || op.used > op.experts || op.width < op.experts) refuse("route: a wrong number of experts");
  if (op.bias != kNoId && model_.vector(op.bias).size != op.experts) refuse("route: the bias has another size");
  if (op.groups < 1 || op.experts % op.groups != 0 || op.groups_used < 1 || op.groups_used > op.groups ||
      op.used > op.experts / op.groups * op.groups_used || (op.groups > 1 && op.experts / op.groups < 2)) {
    refuse("route: groups that do not fit the experts");
  }
}

void Decoder::check_prepare(const PrepareOp& op) const {
  check_norm(op.norm, op.width, "prepare");
  const bool apart = op.rows == Rows::kHeads;
  if (op.width < 1 || op.stride < op.width || (op.stride != op.width && op.rows != Rows::kStep && !apart)) {
    refuse("prepare: rows that overlap");
  }
  if (apart && (op.heads < 1 || op.step < op.width || (op.heads - 1) * op.step + op.width > op.stride)) {
    refuse("prepare: heads do not fit the row");
  }
}

void Decoder::check_heads(const HeadsOp& op) const {
  const Matrix& first = model_.matrix(op.matrix);
  for (int h = 0; h < op.heads; ++h) {
    const Matrix& m = model_.matrix(op.matrix + h);
    if (m.rows != first.rows || m.cols != first.cols || m.format != first.format)
      refuse("heads: their matrices differ in shape or type");
  }
  if (op.heads < 1 || op.step < first.rows || (op.heads - 1) * op.step + first.rows > op.width)
    refuse("heads: outputs do not fit the row");
  if (op.output != Buffer::kQkv) refuse("heads: wrong output buffer");
}

void Decoder::check_latent(const LatentOp& op) const {
  const KvShape& g = kv_.at(op.shape.group).shape();
  const int turned = g.k_dim - g.v_dim;
  if (!g.latent || g.heads != 1 || turned < 0) refuse("latent attention: its KV group is of another kind");
  if (op.shape.layer < 0 || op.shape.layer >= g.layers) refuse("latent attention: the layer is outside its KV group");
  if (op.norm.kind == NormKind::kNone) refuse("latent attention: a norm is missing");
  check_norm(op.norm, g.v_dim, "latent attention");
  if (op.rope != kNoId && 2 * model_.rope(op.rope).half != turned) refuse("latent attention: the rope has other dimensions");
  if (op.q != Buffer::kLatent && op.q != Buffer::kAttention) refuse("latent attention: wrong input buffer");
  if (op.q_dim < turned || op.q_stride < op.shape.heads * op.q_dim || op.kv_column < 0 ||
      op.kv_column + g.k_dim > op.kv_stride) {
    refuse("latent attention: heads do not fit the row");
  }
}

void Decoder::check_op(const Op& op) const {
  const auto attention = [this](const AttentionShape& s) {
    const KvShape& g = kv_.at(s.group).shape();
    if (s.layer < 0 || s.layer >= g.layers) refuse("attention: the layer is outside its KV group");
    if (s.heads < g.heads || s.heads % g.heads != 0)
      refuse("attention: heads are no multiple of the KV heads");
  };
  switch (op.kind) {
    case OpKind::kEmbed: {
      const Matrix& m = model_.matrix(op.embed.matrix);
      if (m.rows != config_.vocab || m.cols != config_.hidden)
        refuse("embedding: another shape than vocab x hidden");
      if (op.embed.positions == kNoId) return;
      const Matrix& table = model_.matrix(op.embed.positions);
      if (table.cols != config_.hidden || op.embed.offset < 0 ||
          table.rows < config_.max_model_len + op.embed.offset) {
        refuse("positions: the table is too small for max_model_len " +
               std::to_string(config_.max_model_len));
      }
      return;
    }
    case OpKind::kPrepare: return check_prepare(op.prepare);
    case OpKind::kHeads: return check_heads(op.heads);
    case OpKind::kLatent: return check_latent(op.latent);
    case OpKind::kAdapter: return check_adapter(op.adapter);
    case OpKind::kLinear: return check_linear(op.linear);
    case OpKind::kRopeKv: {
      attention(op.rope_kv.shape);
      const KvShape& g = kv_[op.rope_kv.shape.group].shape();
      const bool whole = op.rope_kv.norm_whole;
      check_norm(op.rope_kv.q_norm, g.k_dim * (whole ? op.rope_kv.shape.heads : 1), "q norm");
      check_norm(op.rope_kv.k_norm, g.k_dim * (whole ? g.heads : 1), "k norm");
      if (op.rope_kv.rope != kNoId && 2 * model_.rope(op.rope_kv.rope).half > g.k_dim) {
        refuse("rope: more dimensions than a head has");
      }
      return;
    }
    case OpKind::kAttention: return attention(op.attention.shape);
    case OpKind::kMerge:
      attention(op.merge.shape);
      if (op.merge.sinks != kNoId && model_.vector(op.merge.sinks).size != op.merge.shape.heads) {
        refuse("attention: one sink per head, please");
      }
      return;
    case OpKind::kResidual: {
      const bool in_place = op.residual.input == Buffer::kResidual;
      if (!in_place && op.residual.input != Buffer::kBranch) refuse("residual: wrong input buffer");
      if (in_place && op.residual.norm.kind == NormKind::kNone) refuse("residual: a norm is missing");
      return check_norm(op.residual.norm, config_.hidden, "residual");
    }
    case OpKind::kRoute:
    case OpKind::kGroup: return check_route(op.route);
    case OpKind::kExperts: return check_experts(op.experts);
    case OpKind::kCombine:
      if (op.combine.width != config_.hidden) refuse("combine: the residual row has another size");
      return;
  }
}

// Follows the width of the activations from op to op.
void Decoder::check_program() const {
  const auto stores = [](const Op& op) { return stores_kv(op.kind); };
  if (std::none_of(program_.ops.begin(), program_.ops.end(), stores)) refuse("the program stores no K and V");
  int width = 0;
  uint32_t formats = 0;
  for (const Op& op : program_.ops) {
    check_op(op);
    if (op.kind == OpKind::kPrepare) {
      width = op.prepare.width;
      formats = op.prepare.formats;
    }
    if (op.kind == OpKind::kExperts) {
      const Matrix& m = model_.matrix(op.experts.gate);
      if (m.cols != width) refuse("experts: the activations have another width than the matrix");
      if (!((formats >> static_cast<int>(m.format)) & 1u))
        refuse("experts: activations are not in the matrix's format");
    }
    if (op.kind == OpKind::kHeads) {
      const Matrix& m = model_.matrix(op.heads.matrix);
      if (m.cols != width) refuse("heads: the activations have another width than the matrix");
      if (!((formats >> static_cast<int>(m.format)) & 1u)) refuse("heads: activations are not in the matrix's format");
    }
    if (op.kind != OpKind::kLinear) continue;
    for (int p = 0; p < op.linear.parts; ++p) {
      const Matrix& m = model_.matrix(op.linear.part[p].matrix);
      if (m.cols != width) refuse("linear: the activations have another width than the matrix");
      if (!((formats >> static_cast<int>(m.format)) & 1u))
        refuse("linear: activations are not in the matrix's format");
    }
  }
  const HeadOp& head = program_.head;
  const Matrix& m = model_.matrix(head.matrix);
  if (m.rows != config_.vocab || m.cols != config_.hidden) refuse("head: another shape than vocab x hidden");
  if (head.bias != kNoId && model_.vector(head.bias).size != config_.vocab)
    refuse("head: the bias has another size");
  check_norm(head.norm, config_.hidden, "head");
}

}  // namespace spola
