#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/safetensors/dtype.h"

namespace mesh::safetensors {

/// A tensor to write; `data` must be dtype × shape bytes long.
struct NewTensor {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<std::uint64_t> shape;
  std::string_view data;
};

/// Writes a file with the tensors in the given order (for tests and tools; replaces an existing file).
/// kInvalidArgument for a wrong size or a doubled name.
Status write_safetensors(const std::filesystem::path& path, const std::vector<NewTensor>& tensors,
                         const std::map<std::string, std::string>& metadata = {});

}  // namespace mesh::safetensors
