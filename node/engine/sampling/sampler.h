#pragma once

#include <span>

#include "node/engine/engine.h"

namespace mesh::engine {

/// kInvalidArgument, naming the parameter: temperature finite and ≥ 0, top_p in (0, 1].
Status check_sampling(const SamplingParams& params);

/// Draws the token at `position` from finite logits [V], V ≥ 1, as docs/engine-contract.md says, and reports
/// the `top` best ids.
SampledToken sample(std::span<const float> logits, const SamplingParams& params, Position position,
                    std::uint32_t top);

}  // namespace mesh::engine
