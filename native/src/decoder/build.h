// Op records from plain numbers, as they come from outside: enums by their values, norms and parts as tuples.
//
// Numbers that name no enum value or fit no record are std::invalid_argument; whether an op fits the tensors,
// finish() of the decoder checks.
#pragma once

#include <tuple>
#include <vector>

#include "decoder/decoder.h"

namespace spola::build {

using NormTuple = std::tuple<int, int, int, float>;  // kind, weight, bias, eps
using PartTuple = std::tuple<int, int, int, int>;    // matrix, bias, column, site of adapters

int add_rope(Decoder& d, const std::vector<double>& frequencies, double factor, bool interleaved);
int add_kv_group(Decoder& d, int layers, int heads, int k_dim, int v_dim, int window, int k_type, int v_type,
                 bool latent, int blocks);
void embed(Decoder& d, int matrix, float scale, int positions, int offset);
void residual(Decoder& d, int input, const NormTuple& norm, float multiplier);
void prepare(Decoder& d, int input, int width, const NormTuple& norm, const std::vector<int>& consumers,
             int rows);
// The first `width` floats of rows `stride` apart or, with `heads`, that many of each head, `step` apart.
void prepare_part(Decoder& d, int input, int stride, int width, const NormTuple& norm,
                  const std::vector<int>& consumers, int heads, int step);
void heads(Decoder& d, int count, int matrix, int output, int width, int step);
void linear(Decoder& d, const std::vector<PartTuple>& parts, int output, int width, int epilogue,
            float multiplier, float clamp, float up_offset, int max_rank);
void adapt(Decoder& d, const std::vector<int>& sites, int max_rank);
void route(Decoder& d, int experts, int used, int width, bool normalise, float scale, bool sigmoid, int bias,
           int groups, int groups_used);
void experts(Decoder& d, int count, int gate, int up, int gate_bias, int up_bias, int output, int width,
             int epilogue, float clamp, float up_offset);
void combine(Decoder& d, int width, bool shared, bool shared_gate, int router_width);
void attention(Decoder& d, int group, int layer, int heads, float scale, float softcap, int rope,
               const NormTuple& q_norm, const NormTuple& k_norm, bool norm_whole, int sinks);
// Latent attention, up to the merged results of its heads.
void latent(Decoder& d, int group, int layer, int heads, float scale, int rope, const NormTuple& norm, int q,
            int q_dim, int q_stride, int kv_column, int kv_stride);
void head(Decoder& d, const NormTuple& norm, int matrix, int bias, float scale, float softcap);

}  // namespace spola::build
