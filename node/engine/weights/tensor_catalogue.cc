#include "node/engine/weights/tensor_catalogue.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>

#include "common/hub/checkpoint.h"
#include "node/engine/weights/bitsandbytes.h"
#include "node/engine/weights/fp8.h"

namespace mesh::engine {
namespace {

constexpr std::size_t kNamesInMessage = 8;

std::string name_list(const std::vector<std::string>& names) {
  const std::size_t shown = std::min(names.size(), kNamesInMessage);
  std::string text =
      fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (shown < names.size()) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

bool ignorable(std::string_view name, const DecoderSpec& spec) {
  for (const std::string& pattern : spec.ignorable) {
    if (pattern.starts_with('*') ? name.ends_with(std::string_view(pattern).substr(1)) : name == pattern)
      return true;
  }
  return false;
}

template <class... Lists>
std::vector<const TensorSource*> joined(const Lists&... lists) {
  std::vector<const TensorSource*> all;
  (all.insert(all.end(), lists.begin(), lists.end()), ...);
  return all;
}

std::vector<std::string> names_beside(const std::string& weight, Quantization stored) {
  return stored == Quantization::kFp8 ? fp8::names_beside(weight)
                                      : bitsandbytes::names_beside(weight, stored);
}

/// With what a quantised tensor may have beside it.
std::set<std::string> all_names(const TensorCatalogue& catalogue, const DecoderSpec& spec) {
  std::vector<const TensorSource*> sources = joined(sources_of(spec.head_plan.norm));
  sources.push_back(&spec.head_plan.matrix);
  sources.push_back(&spec.embedding_plan.tokens);
  if (spec.embedding_plan.positions) sources.push_back(&*spec.embedding_plan.positions);
  for (const LayerPlan& layer : spec.layer_plans) sources = joined(sources, sources_of(layer));
  std::set<std::string> names;
  for (const TensorSource* source : sources) {
    const std::string name = catalogue.disk_name(*source);
    for (std::string& beside : names_beside(name, spec.profile.stored_quantization))
      names.insert(std::move(beside));
    names.insert(name);
  }
  return names;
}

std::optional<Element> element_of(safetensors::Dtype dtype) {
  switch (dtype) {
    case safetensors::Dtype::kBF16:
      return Element::kBf16;
    case safetensors::Dtype::kF16:
      return Element::kF16;
    case safetensors::Dtype::kF32:
      return Element::kF32;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::vector<const TensorSource*> sources_of(const MatrixPlan& plan) {
  std::vector<const TensorSource*> sources;
  for (const TensorSource& source : plan.weights) sources.push_back(&source);
  for (const TensorSource& source : plan.biases) sources.push_back(&source);
  return sources;
}

std::vector<const TensorSource*> sources_of(const NormPlan& plan) {
  std::vector<const TensorSource*> sources{&plan.weight};
  if (plan.bias) sources.push_back(&*plan.bias);
  return sources;
}

std::vector<const TensorSource*> sources_of(const LayerPlan& plan) {
  auto sources = joined(sources_of(plan.attention_norm), sources_of(plan.qkv), sources_of(plan.attention_out),
                        sources_of(plan.mlp_norm), sources_of(plan.mlp_in), sources_of(plan.mlp_out));
  if (plan.query_norm) sources = joined(sources, sources_of(*plan.query_norm));
  if (plan.key_norm) sources = joined(sources, sources_of(*plan.key_norm));
  return sources;
}

StatusOr<TensorCatalogue> TensorCatalogue::make(hub::Checkpoint& checkpoint, const DecoderSpec& spec) {
  TensorCatalogue catalogue;
  catalogue.prefix_ = spec.prefixes.front();
  catalogue.quantization_ = spec.profile.stored_quantization;
  catalogue.kept_ = spec.kept_modules;
  for (const std::string& prefix : spec.prefixes) {
    if (!checkpoint.has(prefix + spec.embedding_plan.tokens.name)) continue;
    catalogue.prefix_ = prefix;
    break;
  }
  const std::set<std::string> known = all_names(catalogue, spec);
  std::vector<std::string> left_over;
  for (const auto& [name, file] : checkpoint.tensor_files()) {
    if (known.contains(name) || ignorable(name, spec)) continue;
    if (catalogue.quantization_ == Quantization::kFp8 && fp8::may_be_left(name)) continue;
    const bool has_prefix = name.starts_with(catalogue.prefix_);
    if (has_prefix && ignorable(std::string_view(name).substr(catalogue.prefix_.size()), spec)) continue;
    left_over.push_back(name);
  }
  if (!left_over.empty()) {
    return error(StatusCode::kInvalidArgument, "{}: {} tensors that a {} model does not have: {}",
                 checkpoint.files().describe(), left_over.size(), spec.profile.model_type,
                 name_list(left_over));
  }
  return catalogue;
}

StatusOr<FoundTensor> TensorCatalogue::find(hub::Checkpoint& checkpoint, const TensorSource& source) const {
  const std::string name = disk_name(source);
  MESH_ASSIGN_OR_RETURN(const safetensors::TensorInfo info, checkpoint.info(name));
  if (source.shape.size() == 2) {
    if (bitsandbytes::is_quantised(info, quantization_))
      return bitsandbytes::find(checkpoint, name, quantization_, source.shape);
    if (fp8::is_quantised(info, quantization_)) {
      const bool kept = kept_.contains(std::string_view(name).substr(0, name.rfind(".weight")));
      return fp8::find(checkpoint, name, source.shape, kept);
    }
  }
  FoundTensor found;
  const std::optional<Element> element = element_of(info.dtype);
  if (info.shape != source.shape) {
    found.problem = fmt::format("{} is [{}], needed [{}]", name, fmt::join(info.shape, ", "),
                                fmt::join(source.shape, ", "));
  } else if (!element) {
    found.problem =
        fmt::format("{} is {}, needed BF16, F16 or F32", name, safetensors::dtype_name(info.dtype));
  } else {
    found.tensor = {Quantization::kNone, *element, info.bytes, {name}};
  }
  return found;
}

Status TensorCatalogue::check(hub::Checkpoint& checkpoint, const std::vector<const TensorSource*>& sources) {
  std::vector<std::string> missing, wrong;
  for (const TensorSource* source : sources) {
    const std::string name = disk_name(*source);
    if (!checkpoint.has(name)) {
      missing.push_back(name);
      continue;
    }
    MESH_ASSIGN_OR_RETURN(FoundTensor found, find(checkpoint, *source));
    if (found.problem.empty()) {
      stored_[name] = std::move(found.tensor);
    } else {
      wrong.push_back(std::move(found.problem));
    }
  }
  if (missing.empty() && wrong.empty()) return absl::OkStatus();
  std::string text;
  if (!missing.empty()) text += fmt::format("{} tensors are missing: {}", missing.size(), name_list(missing));
  if (!wrong.empty()) {
    text += fmt::format("{}{} tensors do not fit config.json: {}", missing.empty() ? "" : "; ", wrong.size(),
                        name_list(wrong));
  }
  return error(StatusCode::kInvalidArgument, "{}: {}", checkpoint.files().describe(), text);
}

}  // namespace mesh::engine
