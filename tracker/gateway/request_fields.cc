#include "tracker/gateway/request_fields.h"

#include <algorithm>

#include "common/identity/random.h"
#include "common/json/error_fields.h"

namespace mesh::gateway {
namespace {

StatusOr<std::optional<double>> number_between(const json::View& body, std::string_view key, double low,
                                               double high, bool low_open = false) {
  MESH_ASSIGN_OR_RETURN(const std::optional<json::View> view, body.find(key));
  if (!view) return std::optional<double>{};
  MESH_ASSIGN_OR_RETURN(const double value, view->as<double>());
  if (value < low || value > high || (low_open && value == low)) {
    return view->error(fmt::format("must lie in {}{}, {}]", low_open ? "(" : "[", low, high));
  }
  return std::optional<double>(value);
}

StatusOr<std::vector<std::string>> read_stops(const json::View& body) {
  MESH_ASSIGN_OR_RETURN(const std::optional<json::View> view, body.find("stop"));
  std::vector<std::string> stops;
  if (!view) return stops;
  if (view->value().is_string()) {
    MESH_ASSIGN_OR_RETURN(std::string stop, view->as<std::string>());
    stops.push_back(std::move(stop));
  } else if (view->value().is_array()) {
    MESH_ASSIGN_OR_RETURN(stops, body.get_list<std::string>("stop"));
  } else {
    return view->mismatch("a string or an array of strings");
  }
  if (stops.size() > kMostStops) return view->error(fmt::format("at most {} stop strings", kMostStops));
  for (const std::string& stop : stops) {
    if (stop.empty()) return view->error("a stop string is empty");
    if (stop.size() > kLongestStop)
      return view->error(fmt::format("a stop string exceeds {} bytes", kLongestStop));
  }
  return stops;
}

bool asks_for_nothing(const json::Value& value, std::initializer_list<std::string_view> harmless) {
  if (value.is_null()) return true;
  if (value.is_bool()) return !value.get_bool();
  if (value.is_number()) return value.to_number<double>() == 0;
  if (value.is_array()) return value.get_array().empty();
  if (value.is_object()) return value.get_object().empty();
  const std::string_view text(value.get_string().data(), value.get_string().size());
  return std::find(harmless.begin(), harmless.end(), text) != harmless.end();
}

}  // namespace

StatusOr<CommonFields> read_common(const json::View& body) {
  CommonFields fields;
  MESH_ASSIGN_OR_RETURN(fields.model, body.get<std::string>("model"));
  MESH_ASSIGN_OR_RETURN(fields.stops, read_stops(body));
  MESH_ASSIGN_OR_RETURN(fields.stream, body.get_or<bool>("stream", false));
  MESH_ASSIGN_OR_RETURN(const std::optional<json::View> options, body.find("stream_options"));
  if (options) {
    if (!fields.stream) return options->error("is only allowed with stream: true");
    MESH_ASSIGN_OR_RETURN(fields.include_usage, options->get_or<bool>("include_usage", false));
    MESH_RETURN_IF_ERROR(options->only_fields({"include_usage", "include_obfuscation"}));
  }
  return fields;
}

Status apply_defaults(const json::View& body, const GenerationDefaults& defaults, CommonFields& fields) {
  MESH_ASSIGN_OR_RETURN(const auto temperature, number_between(body, "temperature", 0, 2));
  MESH_ASSIGN_OR_RETURN(const auto top_p, number_between(body, "top_p", 0, 1, true));
  MESH_ASSIGN_OR_RETURN(const auto top_k, number_between(body, "top_k", 0, 1 << 24));
  fields.sampling.temperature = static_cast<float>(temperature.value_or(defaults.temperature.value_or(1.0)));
  fields.sampling.top_p = static_cast<float>(top_p.value_or(defaults.top_p.value_or(1.0)));
  const double default_k = static_cast<double>(std::max<std::int64_t>(defaults.top_k.value_or(0), 0));
  fields.sampling.top_k = static_cast<std::uint32_t>(top_k.value_or(default_k));
  MESH_ASSIGN_OR_RETURN(const auto seed, body.get_optional<std::int64_t>("seed"));
  fields.sampling.seed = seed ? static_cast<std::uint64_t>(*seed) : random_u64();
  return absl::OkStatus();
}

Status refuse_unsupported(const json::View& body, std::string_view field,
                          std::initializer_list<std::string_view> harmless) {
  MESH_ASSIGN_OR_RETURN(const std::optional<json::View> view, body.find(field));
  if (!view || asks_for_nothing(view->value(), harmless)) return absl::OkStatus();
  return json::with_code(view->error("this server does not support it yet: leave it out"),
                         "unsupported_parameter");
}

Status only_known(const json::View& body, std::initializer_list<std::string_view> known) {
  const auto unknown = body.unknown_fields(known);
  if (unknown.empty()) return absl::OkStatus();
  return json::with_code(
      json::with_param(error(StatusCode::kInvalidArgument, "unknown field: {}", unknown.front()),
                       unknown.front()),
      "unknown_parameter");
}

StatusOr<const Model*> find_model(const Backend& backend, const std::string& name) {
  for (const Model& model : backend.models()) {
    if (model.name == name) return &model;
  }
  std::string names;
  for (const Model& model : backend.models()) names += (names.empty() ? "" : ", ") + model.name;
  return json::with_code(
      json::with_param(
          error(StatusCode::kNotFound, "there is no model '{}' here; there are: {}", name, names), "model"),
      "model_not_found");
}

StatusOr<std::optional<std::uint32_t>> asked_tokens(const json::View& body,
                                                    const std::vector<std::string_view>& fields) {
  for (const std::string_view field : fields) {
    MESH_ASSIGN_OR_RETURN(const auto value, body.get_optional<std::uint32_t>(field));
    if (!value) continue;
    if (*value == 0) {
      return json::with_param(error(StatusCode::kInvalidArgument, "{}: must be at least 1", field), field);
    }
    return value;
  }
  return std::optional<std::uint32_t>{};
}

StatusOr<std::uint32_t> answer_tokens(const Model& model, std::size_t prompt_tokens,
                                      std::optional<std::uint32_t> asked, std::uint32_t fallback,
                                      std::string_view param) {
  const auto exceeded = [&](const std::string& message) {
    return json::with_code(json::with_param(error(StatusCode::kInvalidArgument, "{}", message), param),
                           "context_length_exceeded");
  };
  if (prompt_tokens >= model.context) {
    return exceeded(fmt::format("the context of {} is {} tokens and the prompt has {}: shorten it",
                                model.name, model.context, prompt_tokens));
  }
  const auto room = static_cast<std::uint32_t>(model.context - prompt_tokens);
  if (asked && *asked > room) {
    return exceeded(
        fmt::format("the context of {} is {} tokens; the prompt has {} and {} are asked for the answer: "
                    "shorten one of them",
                    model.name, model.context, prompt_tokens, *asked));
  }
  return asked.value_or(std::min(room, fallback));
}

}  // namespace mesh::gateway
