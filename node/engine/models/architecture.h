#pragma once

#include <span>
#include <string_view>

#include "common/json/view.h"
#include "node/engine/models/decoder_spec.h"

namespace mesh::engine {

/// One model family: a value of config.json's model_type and how to read such a config.
struct Architecture {
  std::string_view model_type;
  StatusOr<DecoderSpec> (*read)(const json::View& config);
};

/// All families, by model_type. A new one is a file in arch/, its declaration in arch/arch.h and a line here.
std::span<const Architecture> architectures();

}  // namespace mesh::engine
