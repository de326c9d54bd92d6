// The op records a decoder is lowered to, once, at load: plain data that ops.cc interprets.
//
// Buffers hold one row per token of the step, row-major, without padding between rows.
#pragma once

#include <cstdint>
#include <vector>

namespace spola {

enum class Buffer : int32_t {
  kNone = -1,
  kResidual = 0,
  kQkv,
  kAttention,
  kHidden,
  kBranch,  // what goes to the residual stream through a norm, or later
  kDelta,  // what adapters make of the input: A x of each part of a linear op
  kLogits,
  kRouter,  // scores of experts
  kExpert,  // outputs of experts; it and kHidden have a row for each slot in layers of experts
  kLatent,  // of latent attention: queries or what they are made of, then what a token keeps
  kCount
};

enum class NormKind : int32_t { kNone = 0, kRms, kLayer };
// From kSilu on an activation: of the only part, or of part 0 (the gate) times part 1 (the up projection).
enum class Epilogue : int32_t { kStore = 0, kAdd, kSilu, kGeluTanh, kRelu, kRelu2, kGelu, kSilu1702 };

constexpr bool is_activation(Epilogue e) { return e >= Epilogue::kSilu; }

constexpr int kNoId = -1;

// A norm over the last axis: indices of vectors, or none.
struct NormPart {
  NormKind kind = NormKind::kNone;
  int32_t weight = kNoId;
  int32_t bias = kNoId;
  float eps = 0.0f;
};

// residual = embedding row * scale, plus the row of a table of learned positions, if there is one
struct EmbedOp {
  int32_t matrix = kNoId;
  float scale = 1.0f;
  int32_t positions = kNoId;
  int32_t offset = 0;  // of the first position in that table
};

// residual = norm(residual), or residual += multiplier * norm(input)
struct ResidualOp {
  Buffer input = Buffer::kResidual;
  NormPart norm;
  float multiplier = 1.0f;
};

// Which rows an op works on: those of the step; for every slot (a row at one of its experts) the input row
// that it stands for; or rows that are slots already. kHeads: for each head of the row its part, all rows of a
// head after those of the one before.
enum class Rows : int32_t { kStep = 0, kGather, kSlots, kHeads };

// activations = norm(input), in every format of `formats` (bits by ActFormat)
struct PrepareOp {
  Buffer input = Buffer::kResidual;
  int32_t width = 0;
  NormPart norm;
  uint32_t formats = 0;
  Rows rows = Rows::kStep;
  int32_t stride = 0;  // floats between rows of the input
  int32_t heads = 0;   // of kHeads
  int32_t step = 0;    // floats between heads of a row
  bool groups_only = false;  // whoever reads the rows of a step reads groups of A8 alone, where there are any
  bool left = false;         // the op before may leave the input as such groups: leaves_groups() in ops.h
};

// One matrix of a linear op. What a row's adapter adds at its site comes before the bias.
struct LinearPart {
  int32_t matrix = kNoId;
  int32_t bias = kNoId;
  int32_t column = 0;    // where its outputs begin in an output row
  int32_t site = kNoId;  // of adapters
  int32_t at = 0;        // where A x of this part begins in a row of the delta buffer
};

constexpr int kMaxParts = 4;

// A x of the sites of the linear op that follows, for rows that have an adapter; nothing without such rows.
struct AdapterOp {
  int32_t site[kMaxParts];
  int32_t parts = 0;
  int32_t max_rank = 0;
};

// output (op)= parts of activations.
struct LinearOp {
  LinearPart part[kMaxParts];
  int32_t parts = 0;
  Buffer output = Buffer::kNone;
  int32_t width = 0;  // floats per output row
  Epilogue epilogue = Epilogue::kStore;
  float multiplier = 1.0f;  // of what is added to the residual stream
  float clamp = 0.0f;       // the gate is at most this, the up projection within plus and minus this; 0: off
  float up_offset = 0.0f;   // added to the up projection then
  int32_t first = 0;        // the activations of the output's first row
  bool leaves = false;      // may leave its output as groups of A8 rows: leaves_groups() in ops.h
};

// From scores in the router buffer to the experts of each row and their weights; then slots, sorted by
// expert.
struct RouteOp {
  int32_t experts = 0;
  int32_t used = 0;
  int32_t width = 0;  // floats per row of the router buffer
  bool normalise = false;
  float scale = 1.0f;
  bool sigmoid = false;    // scores are sigmoids instead of a softmax
  int32_t bias = kNoId;    // added to scores where experts are chosen
  int32_t groups = 1;      // of neighbouring experts,
  int32_t groups_used = 1;  // the best of which are looked at
};

// Head h of a row has the matrix `matrix` + h; its outputs begin at column h * step.
struct HeadsOp {
  int32_t heads = 0;
  int32_t matrix = kNoId;
  Buffer output = Buffer::kNone;
  int32_t width = 0;  // floats per output row
  int32_t step = 0;
};

// The same linear op for every expert, on its slots: gate and up, or (up none) one matrix. Expert e has the
// matrices gate + e and up + e.
struct ExpertsOp {
  int32_t experts = 0;
  int32_t gate = kNoId;
  int32_t up = kNoId;
  int32_t gate_bias = kNoId;  // of the first expert, or none
  int32_t up_bias = kNoId;
  Buffer output = Buffer::kNone;
  int32_t width = 0;  // floats per output row: the rows of each matrix
  Epilogue epilogue = Epilogue::kStore;
  float clamp = 0.0f;  // as in LinearOp
  float up_offset = 0.0f;
};

// branch = the weighted outputs of a row's experts, added in the order of their numbers; then (shared) plus
// what branch was, times the sigmoid of the router buffer's last column (shared_gate).
struct CombineOp {
  int32_t width = 0;
  bool shared = false;
  bool shared_gate = false;
  int32_t router_width = 0;  // floats per row of the router buffer
};

// The heads of one layer within the qkv buffer: queries, then keys, then values.
struct AttentionShape {
  int32_t group = 0;  // KV group
  int32_t layer = 0;  // index of the layer within the group
  int32_t heads = 0;
  float scale = 1.0f;
  float softcap = 0.0f;
};

// Norms of q and k, rotation, scaling of q; K and V go to their blocks.
struct RopeKvOp {
  AttentionShape shape;
  int32_t rope = kNoId;  // table, or none
  NormPart q_norm, k_norm;
  bool norm_whole = false;  // over all heads at once instead of each
};

// Latent attention: the norm of a token's latent, rotation of it and of the queries, scaling of queries, whose
// latent parts lie in the qkv buffer already; the latent goes to its block.
struct LatentOp {
  AttentionShape shape;
  int32_t rope = kNoId;  // table, or none
  NormPart norm;
  Buffer q = Buffer::kNone;  // where queries are: heads of q_dim, rows q_stride floats apart
  int32_t q_dim = 0;
  int32_t q_stride = 0;
  int32_t kv_column = 0;  // of the latent buffer
  int32_t kv_stride = 0;
};

struct AttentionOp {
  AttentionShape shape;
};

// Merges the partials of every row into the attention buffer.
struct MergeOp {
  AttentionShape shape;
  int32_t sinks = kNoId;  // one logit per head that joins the denominator
};

enum class OpKind : int32_t {
  kEmbed = 0,
  kPrepare,
  kAdapter,
  kLinear,
  kRopeKv,
  kAttention,
  kMerge,
  kResidual,
  kRoute,
  kGroup,
  kExperts,
  kCombine,
  kHeads,
  kLatent
};

constexpr bool stores_kv(OpKind kind) { return kind == OpKind::kRopeKv || kind == OpKind::kLatent; }

struct Op {
  OpKind kind = OpKind::kEmbed;
  bool barrier = true;  // a stage ends after it
  bool own = false;     // with few rows every worker does it for itself, in the stage of the op that follows
  union {
    EmbedOp embed;
    PrepareOp prepare;
    AdapterOp adapter;
    LinearOp linear;
    RopeKvOp rope_kv;
    AttentionOp attention;
    MergeOp merge;
    ResidualOp residual;
    RouteOp route;  // of kRoute and kGroup
    ExpertsOp experts;
    CombineOp combine;
    HeadsOp heads;
    LatentOp latent;
  };
  Op() : embed() {}
};

// What turns residual rows into logits.
struct HeadOp {
  NormPart norm;
  int32_t matrix = kNoId;
  int32_t bias = kNoId;
  float scale = 1.0f;
  float softcap = 0.0f;
};

// Ops that one pass over items covers: ops by row that share them out alike, or one other op, which may have
// ops before it that every worker does for itself.
struct Stage {
  const Op* first;
  const Op* last;  // one beyond
};

struct Schedule {
  std::vector<Stage> stages;
  size_t storing = 0;  // stages up to the last one that stores K and V: whoever is not wanted in the end leaves
};

struct Program {
  std::vector<Op> ops;
  HeadOp head;
  Schedule together;
  Schedule alone;  // with ops that are each worker's own
};

}  // namespace spola
