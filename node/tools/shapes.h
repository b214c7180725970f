#pragma once

#include <span>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace mesh::tools {

/// The size of a model, for measurements without its weights: a folder of config.json files (shapes/), part
/// of the program.
struct Shape {
  std::string_view name;         ///< "llama-8b"
  std::string_view config_json;  ///< as a checkpoint has it
};

/// All of them, smallest first.
std::span<const Shape> shapes();

/// config.json of the shape of that name, or else the contents of the file at that path. kNotFound lists the
/// names.
StatusOr<std::string> shape_config(const std::string& name_or_path);

}  // namespace mesh::tools
