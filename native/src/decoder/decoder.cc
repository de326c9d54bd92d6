#include "decoder/decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace spola {
namespace {

const Kernels* pick_kernels(const std::string& isa) {
  const Kernels* kernels = select_kernels(isa.c_str());
  if (!kernels)
    throw std::invalid_argument("instruction set '" + isa + "' is not available on this processor");
  return kernels;
}

// The ops from `first` to `last`, after which the next stage begins.
void add_stage(Schedule& schedule, const Op*& first, const Op* last) {
  schedule.stages.push_back({first, last + 1});
  if (stores_kv(last->kind)) schedule.storing = schedule.stages.size();
  first = last + 1;
}

int checked_threads(int threads) {
  if (threads < 1 || threads > 1024) throw std::invalid_argument("threads must be between 1 and 1024");
  return threads;
}

}  // namespace

Decoder::Decoder(const DecoderConfig& config)
    : config_(config),
      kernels_(pick_kernels(config.isa)),
      pool_(shared_pool(checked_threads(config.threads))),
      counters_(new WorkerCounters[config.threads]),
      model_(config.weight_limit, config.huge_pages, config.precise, kernels_) {
  const auto positive = [](const char* name, int value) {
    if (value < 1) throw std::invalid_argument(std::string(name) + " must be at least 1");
  };
  positive("vocab", config.vocab);
  positive("hidden", config.hidden);
  positive("max_step_tokens", config.max_step_tokens);
  positive("max_seqs", config.max_seqs);
  positive("max_model_len", config.max_model_len);
}

int Decoder::add_kv_group(const KvShape& shape, int blocks) {
  if (shape.layers < 1 || shape.heads < 1 || shape.k_dim < 1 || shape.v_dim < 1 || shape.window < 0) {
    throw std::invalid_argument("a KV group has an impossible shape");
  }
  if (blocks < 1) throw std::invalid_argument("a KV group needs at least one block");
  kv_.emplace_back(shape, blocks, config_.huge_pages);
  return static_cast<int>(kv_.size()) - 1;
}

void Decoder::append(const Op& op) {
  if (op.kind == OpKind::kAdapter) max_rank_ = std::max(max_rank_, op.adapter.max_rank);
  program_.ops.push_back(op);
}

uint32_t Decoder::formats_of(const std::vector<int>& indices) const {
  uint32_t formats = 0;
  for (int i : indices) formats |= 1u << static_cast<int>(model_.matrix(i).format);
  return formats;
}

// Whether a linear op's kernels read A8 rows in groups, all of those of a step, so that each call takes whole ones.
bool Decoder::takes_groups(const Op* op) const {
  const Op* source = op - 1;
  if (source->kind == OpKind::kAdapter) --source;
  if (source->kind == OpKind::kPrepare && source->prepare.rows != Rows::kStep) return false;
  for (int i = 0; i < op->linear.parts; ++i) {
    const int scheme = static_cast<int>(model_.matrix(op->linear.part[i].matrix).scheme);
    if (((kernels_->group_schemes >> scheme) & 1u) == 0) return false;
  }
  return true;
}

// Whether what follows a prepare op, up to the next one, reads groups of A8 rows alone where there are any.
bool Decoder::reads_groups_only(const Op* prepare) const {
  const PrepareOp& p = prepare->prepare;
  if (p.rows != Rows::kStep || p.formats != 1u << static_cast<int>(ActFormat::kA8)) return false;
  const Op* const end = program_.ops.data() + program_.ops.size();
  for (const Op* op = prepare + 1; op != end && op->kind != OpKind::kPrepare; ++op) {
    if (op->kind == OpKind::kHeads || op->kind == OpKind::kExperts) return false;
    if (op->kind == OpKind::kLinear && !takes_groups(op)) return false;
  }
  return true;
}

// Whether an op after `from` reads what `buffer` holds there.
bool Decoder::read_again(Buffer buffer, const Op* from) const {
  const Op* const end = program_.ops.data() + program_.ops.size();
  for (const Op* op = from + 1; op != end; ++op) {
    if (op->kind == OpKind::kPrepare && op->prepare.input == buffer) return true;
    if (op->kind == OpKind::kResidual && op->residual.input == buffer) return true;
    if (op->kind == OpKind::kLinear && op->linear.output == buffer) return false;
  }
  return false;
}

void Decoder::mark_groups() {
  std::vector<Op>& ops = program_.ops;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].kind != OpKind::kPrepare) continue;
    PrepareOp& p = ops[i].prepare;
    p.groups_only = reads_groups_only(&ops[i]);
    if (!p.groups_only || i == 0 || ops[i - 1].kind != OpKind::kLinear) continue;
    LinearOp& before = ops[i - 1].linear;
    if (is_activation(before.epilogue) && before.output == p.input && before.width == p.width &&
        p.stride == p.width && p.norm.kind == NormKind::kNone && takes_groups(&ops[i - 1]) &&
        !read_again(p.input, &ops[i])) {
      p.left = before.leaves = true;
    }
  }
}

// A worker may prepare rows for itself when the linear op that reads them does not write what they are made
// of, and may merge the attention that it then prepares.
void Decoder::lay_out_stages() {
  std::vector<Op>& ops = program_.ops;
  for (size_t i = ops.size() - 1; i-- > 0;) {
    const Op& next = ops[i + 1];
    if (ops[i].kind == OpKind::kPrepare && next.kind == OpKind::kAdapter) {
      ops[i].barrier = false;  // adapters work on the same rows
    } else if (ops[i].kind == OpKind::kPrepare) {
      ops[i].own = ops[i].prepare.rows == Rows::kStep && next.kind == OpKind::kLinear &&
                   next.linear.output != ops[i].prepare.input;
    } else if (ops[i].kind == OpKind::kMerge) {
      ops[i].own = next.kind == OpKind::kPrepare && next.own && next.prepare.input == Buffer::kAttention;
    }
  }
  const Op* first = ops.data();
  const Op* first_alone = first;
  const Op* end = ops.data() + ops.size();
  for (const Op* op = first; op != end; ++op) {
    const bool last = op + 1 == end;
    if (op->barrier || last) add_stage(program_.together, first, op);
    if (op->own || !(op->barrier || last || (op + 1)->own)) continue;
    add_stage(program_.alone, first_alone, op);
  }
}

int Decoder::add_site(int rows, int cols) {
  sites_.emplace_back(rows, cols);
  return static_cast<int>(sites_.size()) - 1;
}

int Decoder::add_adapter() {
  size_t place = 0;
  while (place < adapters_.size() && adapters_[place]) ++place;
  if (place == adapters_.size()) adapters_.emplace_back();
  adapters_[place] = std::make_unique<Adapter>();
  adapters_[place]->site.resize(sites_.size());
  return static_cast<int>(place);
}

void Decoder::add_adapter_part(int adapter, int site, int rank, float scale, const float* a, size_t a_count, const float* b,
                               size_t b_count) {
  if (adapter < 0 || adapter >= static_cast<int>(adapters_.size()) || !adapters_[adapter]) {
    throw std::invalid_argument("there is no adapter " + std::to_string(adapter));
  }
  if (site < 0 || site >= static_cast<int>(sites_.size())) throw std::invalid_argument("there is no such site");
  if (rank > max_rank_) {
    throw std::invalid_argument("a rank of " + std::to_string(rank) + " is above the most of " +
                                std::to_string(max_rank_));
  }
  const auto [rows, cols] = sites_[site];
  adapters_[adapter]->site[site] = make_low_rank(rank, scale, rows, cols, a, a_count, b, b_count);
}

void Decoder::drop_adapter(int adapter) {
  for (const auto& [id, request] : requests_) {
    if (request.adapter == adapter) throw std::invalid_argument("a request still has the adapter");
  }
  if (adapter >= 0 && adapter < static_cast<int>(adapters_.size())) adapters_[adapter].reset();
}

void Decoder::finish() {
  check_program();
  mark_groups();
  lay_out_stages();
  WorkspaceShape shape;
  shape.rows = config_.max_step_tokens;
  shape.head_rows = std::min(kHeadRows, config_.max_step_tokens);
  shape.workers = pool_->size();
  shape.hidden = config_.hidden;
  shape.vocab = config_.vocab;
  std::vector<KvShape> shapes;
  for (const KvPool& pool : kv_) shapes.push_back(pool.shape());
  work_ = std::make_unique<Workspace>(shape, program_, shapes, config_.huge_pages);
  samplers_.assign(pool_->size(), Sampler(kernels_, config_.vocab));
  bad_.reset(new std::atomic<bool>[config_.max_step_tokens]);
  size_t slots = 0, experts = 0;
  for (const Op& op : program_.ops) {
    if (op.kind != OpKind::kRoute) continue;
    slots = std::max(slots, static_cast<size_t>(op.route.used) * config_.max_step_tokens);
    experts = std::max(experts, static_cast<size_t>(op.route.experts));
  }
  for (StepRows* rows : {&rows_, &wanted_}) {
    Routing& routing = rows->routing;
    for (auto* of_slot : {&routing.expert, &routing.slot, &routing.row_of_slot}) of_slot->resize(slots);
    routing.weight.resize(slots);
    routing.begin.resize(experts + 1);
    rows->bad = bad_.get();
    rows->block.resize(kv_.size());
    rows->attention.resize(kv_.size());
  }
}

MemoryUse Decoder::memory() const {
  MemoryUse use;
  use.weights = model_.bytes();
  for (const auto& adapter : adapters_) use.weights += adapter ? adapter->bytes() : 0;
  for (const KvPool& pool : kv_) use.kv += pool.bytes();
  if (work_) use.workspace = work_->bytes();
  for (const auto& [handle, weights] : held_) use.workspace += weights.size() * sizeof(float);
  return use;
}

void Decoder::hold(int64_t handle, const float* weights, size_t count) {
  const size_t vocab = static_cast<size_t>(config_.vocab);
  if (handle < 1) throw std::invalid_argument("a handle is at least 1");
  if (count == 0 || count % vocab != 0) throw std::invalid_argument("draft distributions are no whole rows");
  for (size_t row = 0; row < count / vocab; ++row) {
    double total = 0.0;
    for (size_t i = 0; i < vocab; ++i) {
      const float w = weights[row * vocab + i];
      if (!(w >= 0.0f)) total = NAN;
      total += w;
    }
    if (!(total > 0.0) || !std::isfinite(total)) {
      throw std::invalid_argument("row " + std::to_string(row) + " is no distribution of drafts");
    }
  }
  held_[handle].assign(weights, weights + count);
}

void Decoder::adopt(int64_t handle, Decoder& source) {
  const auto found = source.held_.find(handle);
  if (found == source.held_.end()) throw std::invalid_argument("nothing is held as " + std::to_string(handle));
  std::vector<float> weights = std::move(found->second);
  source.held_.erase(found);
  const size_t theirs = static_cast<size_t>(source.config_.vocab), ours = static_cast<size_t>(config_.vocab);
  if (theirs == ours) {
    held_[handle] = std::move(weights);
    return;
  }
  std::vector<float> rows(weights.size() / theirs * ours, 0.0f);
  for (size_t row = 0; row * theirs < weights.size(); ++row) {
    std::copy_n(weights.data() + row * theirs, std::min(theirs, ours), rows.data() + row * ours);
  }
  hold(handle, rows.data(), rows.size());
}

void Decoder::time_ops(bool on) { op_seconds_.assign(on ? program_.ops.size() + 2 : 0, 0.0); }

void Decoder::poison(int group, int block) {
  if (group < 0 || group >= static_cast<int>(kv_.size()) || block < 0 || block >= kv_[group].blocks()) {
    throw std::invalid_argument("there is no such block");
  }
  kv_[group].poison(block);
}

std::vector<SliceOut> Decoder::execute(const StepIn& step) {
  if (!work_) throw std::logic_error("execute before finish");
  check(step);
  update_requests(step);
  move_blocks(step);
  std::vector<Run> runs = begin_runs(step);
  lay_out_rows(step.slices);
  if (rows_.count > 0) compute(step, runs);
  end_runs(runs);
  for (const SliceIn& slice : step.slices) {
    if (slice.n_drafts > 0) held_.erase(slice.proposals);
  }
  std::vector<SliceOut> out;
  out.reserve(runs.size());
  for (Run& run : runs) out.push_back(std::move(run.out));
  return out;
}

void Decoder::update_requests(const StepIn& step) {
  for (int64_t id : step.gone) requests_.erase(id);
  for (const RequestIn& r : step.fresh) requests_.insert_or_assign(r.id, Request(r, config_.vocab));
}

void Decoder::move_blocks(const StepIn& step) {
  for (size_t g = 0; g < kv_.size(); ++g) {
    std::vector<std::pair<int, int>> pairs;
    for (const CopyIn& c : step.copies) {
      if (c.group == static_cast<int>(g)) pairs.emplace_back(c.source, c.target);
    }
    // A block may be cleared in the step that also copies it: copies read first.
    std::vector<int> cleared;
    for (const ZeroIn& z : step.zero) {
      if (z.group == static_cast<int>(g)) cleared.push_back(z.block);
    }
    if (!pairs.empty()) kv_[g].copy(pairs);
    for (int block : cleared) kv_[g].zero(block);
  }
}

// Takes note of tokens that were not known before, and of what is wrong with a request.
std::vector<Decoder::Run> Decoder::begin_runs(const StepIn& step) {
  std::vector<Run> runs(step.slices.size());
  int row = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    const SliceIn& slice = step.slices[i];
    Run& run = runs[i];
    run.in = &slice;
    run.request = &requests_.find(slice.id)->second;
    run.row = row;
    row += slice.n;
    run.out.error = run.request->problem;
    if (slice.proposals != 0 && slice.n_drafts > 0) run.proposals = held_.find(slice.proposals)->second.data();
    if (slice.proposals != 0 && slice.n_drafts == 0) run.kept = &held_[slice.proposals];
    const auto outside = [&](int32_t id) {
      if (id >= 0 && id < config_.vocab) return false;
      run.out.error = "token id " + std::to_string(id) + " is outside of the vocabulary of " +
                      std::to_string(config_.vocab);
      return true;
    };
    for (int j = 0; j < slice.n; ++j) {
      const int32_t id = slice.ids[j];
      if (outside(id)) break;
      if (j < slice.n - slice.n_drafts && slice.start + j >= run.request->known) run.request->append(id);
    }
    for (int j = 0; j < slice.n_targets; ++j) outside(slice.targets[j]);
  }
  return runs;
}

// Where the worker goes on reading weights after a linear op.
const uint8_t* Decoder::weights_after(const Op& op, const OpContext& c, int worker) const {
  const Op* next = &op + 1;
  const Op* end = program_.ops.data() + program_.ops.size();
  while (next != end && next->kind != OpKind::kLinear) ++next;
  return next != end ? first_tile(next->linear, c, worker) : first_tile(program_.head, c, worker);
}

void Decoder::compute(const StepIn& step, std::vector<Run>& runs) {
  const Ends ends = ends_of(runs);
  const bool fewer = static_cast<int>(ends.heads.size() + ends.vectors.size()) < rows_.count;
  if (fewer) lay_out_wanted(runs);
  const bool alone = pool_->size() > 1 && rows_.count <= kOwnRows;
  const Schedule& schedule = alone ? program_.alone : program_.together;
  const std::vector<Stage>& stages = schedule.stages;
  const int storing = static_cast<int>(schedule.storing);
  const int layers = fewer && wanted_.count == 0 ? storing : static_cast<int>(stages.size()) + fewer;
  const int head = layers + kHeadStages * chunks_of(ends.heads);
  const int all = head + kVectorStages * chunks_of(ends.vectors);
  OpClock clock(&op_seconds_);
  const bool timed = !op_seconds_.empty();
  pool_->run(all, [&](int worker, int stage) {
    const bool later = fewer && stage >= storing;
    const Stage* const layer = stage < layers ? &stages[stage - later] : nullptr;
    const Op* const last = layer ? layer->last - 1 : nullptr;
    if (timed && worker == 0) {
      const size_t ops = program_.ops.size();
      clock.enter(layer ? static_cast<size_t>(last - program_.ops.data())
                        : ops + (stage < head && (stage - layers) % kHeadStages == kHeadStages - 1));
    }
    OpContext c{kernels_, &model_, &kv_,  work_.get(), pool_.get(), counters_.get(), &step.slices,
                later ? &wanted_ : &rows_, alone, stage, nullptr, {}};
    if (later && stage == storing) {
      claim_all(c, worker, 0, 1, [&](Range) { keep_rows(*last, c, wanted_); });
    } else if (layer) {
      if (last->kind == OpKind::kLinear) c.next = weights_after(*last, c, worker);
      run_stage(*layer, c, worker);
    } else if (stage < head) {
      run_head(ends.heads, stage - layers, runs, c, worker);
    } else {
      run_vectors(ends.vectors, stage - head, runs, c, worker);
    }
  });
  clock.stop();
}

// A row that was not finite ends its request.
void Decoder::end_runs(std::vector<Run>& runs) {
  for (Run& run : runs) {
    for (int j = 0; j < run.in->n && run.out.error.empty(); ++j) {
      if (bad_[run.row + j].load(std::memory_order_relaxed)) {
        run.out.error =
            "the model gave values that are not finite at position " + std::to_string(run.in->start + j);
      }
    }
    if (run.out.error.empty()) continue;
    SliceOut failed;
    failed.error = std::move(run.out.error);
    run.out = std::move(failed);
  }
}

}  // namespace spola
