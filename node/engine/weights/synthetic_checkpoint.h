#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/hub/checkpoint.h"

namespace mesh::engine {

/// A checkpoint without a file: every tensor of the model that `config_json` describes, for the same way
/// through quantising and slicing as one on disk. Each value is a function of `seed`, the tensor's name and
/// its place, so any slice may be read at any time; memory is taken for spans that are not released yet.
/// Matrices and biases: s · 0.02 / 256 with s = 2·(a + b + c) − 765 of three random bytes, which has a
/// standard deviation of 0.02 and is never 0; norm weights: 1 + that. BF16, or F32 when config.json states
/// float32. `name` stands in messages. kInvalidArgument for a config that the engine does not take, or one
/// that states quantised weights.
StatusOr<std::shared_ptr<hub::Checkpoint>> synthetic_checkpoint(const std::string& name,
                                                                const std::string& config_json,
                                                                std::uint64_t seed);

}  // namespace mesh::engine
