#pragma once

#include "node/engine/engine.h"

namespace mesh::engine {

/// Whether a shard can run a segment over `range`: input and its size, ids, finite values, positions, mask,
/// what is wanted, sampling. kInvalidArgument says what is wrong.
Status check_segment(const Segment& segment, const Shard& shard, const LayerRange& range,
                     bool learned_positions);

/// The rows to sample: as asked for, or the last one.
std::vector<std::uint32_t> sampled_rows(const Segment& segment);

}  // namespace mesh::engine
