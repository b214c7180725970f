#include "node/tools/shapes.h"

#include <fmt/ranges.h>

#include <array>
#include <fstream>
#include <iterator>

#include "node/tools/shape_texts.h"

namespace mesh::tools {
namespace {

constexpr std::array kShapes{Shape{"llama-1b", kLlama1b}, Shape{"llama-8b", kLlama8b},
                             Shape{"qwen3-9b", kQwen39b}, Shape{"qwen3-27b", kQwen327b}};
constexpr std::size_t kMostBytes = std::size_t{1} << 20;

}  // namespace

std::span<const Shape> shapes() {
  return kShapes;
}

StatusOr<std::string> shape_config(const std::string& name_or_path) {
  std::vector<std::string_view> names;
  for (const Shape& shape : kShapes) {
    if (shape.name == name_or_path) return std::string(shape.config_json);
    names.push_back(shape.name);
  }
  std::ifstream file(name_or_path, std::ios::binary);
  std::string text(kMostBytes + 1, '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(text.size())) && file.gcount() == 0) {
    return error(StatusCode::kNotFound,
                 "\"{}\" is no shape and no file that can be read; shapes are {}, a file is a config.json",
                 name_or_path, fmt::join(names, ", "));
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kMostBytes)
    return error(StatusCode::kInvalidArgument, "{} has more than 1 MiB", name_or_path);
  return text;
}

}  // namespace mesh::tools
