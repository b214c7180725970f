#pragma once

#include "common/json/view.h"
#include "node/engine/models/decoder_spec.h"

namespace mesh::engine {

/// Frequencies and scale of a model's rotary embedding, from `rope_parameters` (transformers 5) or
/// `rope_theta`, `rope_scaling` and `partial_rotary_factor` (4). Types: default, linear, llama3, yarn and
/// dynamic, by the formulas of transformers' modeling_rope_utils; any other type is an error that lists
/// these. dynamic changes nothing up to max_position_embeddings, and no session is longer here.
StatusOr<RopeSpec> read_rope(const json::View& config, std::uint32_t head_dim, Position max_positions);

}  // namespace mesh::engine
