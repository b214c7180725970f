#include "common/hub/shard_index.h"

#include "common/base/printable.h"
#include "common/hub/file_names.h"
#include "common/hub/model_files.h"
#include "common/json/view.h"

namespace mesh::hub {

StatusOr<std::map<std::string, std::string, std::less<>>> parse_shard_index(std::string_view json) {
  const json::Limits limits = {
      .max_bytes = size_limit(kWeightsIndex), .max_depth = 8, .max_values = std::size_t{4} << 20};
  const StatusOr<json::Value> parsed = json::parse(json, limits);
  if (!parsed.ok()) return with_context(parsed.status(), kWeightsIndex);
  const StatusOr<json::View> map = json::View(*parsed).field("weight_map");
  if (!map.ok()) return with_context(map.status(), kWeightsIndex);
  if (!map->value().is_object()) return with_context(map->mismatch("an object"), kWeightsIndex);

  std::map<std::string, std::string, std::less<>> files;
  for (const auto& [tensor, value] : map->value().get_object()) {
    const std::string_view name(tensor.data(), tensor.size());
    const auto file = json::View(value, printable(name)).as<std::string>();
    if (!file.ok()) return with_context(file.status(), kWeightsIndex);
    if (!is_file_name(*file) || !file->ends_with(kWeightsSuffix)) {
      return error(StatusCode::kInvalidArgument, "{}: tensor {} names {}, which is no .safetensors file name",
                   kWeightsIndex, printable(name), printable(*file));
    }
    files.emplace(std::string(name), *file);
  }
  if (files.empty()) return error(StatusCode::kInvalidArgument, "{}: weight_map is empty", kWeightsIndex);
  return files;
}

}  // namespace mesh::hub
