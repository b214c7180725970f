#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/json/view.h"
#include "tracker/gateway/backend.h"

namespace mesh::gateway {

/// What chat and completions have in common.
struct CommonFields {
  std::string model;
  wire::Sampling sampling;
  std::vector<std::string> stops;
  bool stream = false;
  bool include_usage = false;
};

inline constexpr std::size_t kMostStops = 4;
inline constexpr std::size_t kLongestStop = 1024;

/// Reads model, temperature, top_p, top_k, seed, stop, stream and stream_options. Sampling that the request
/// leaves out follows `defaults` of the model (temperature 1, top_p 1 where they say nothing); without a seed
/// it is random. Errors are kInvalidArgument with the field as param.
StatusOr<CommonFields> read_common(const json::View& body);
/// Fills in what the request left out.
Status apply_defaults(const json::View& body, const GenerationDefaults& defaults, CommonFields& fields);

/// A field that the API has and this server cannot do yet. Absent, null and values that ask for nothing
/// (false, 0, [],
/// {}, and those in `harmless`) pass; any other is kInvalidArgument with the field as param.
Status refuse_unsupported(const json::View& body, std::string_view field,
                          std::initializer_list<std::string_view> harmless = {});
/// kInvalidArgument naming the first field that the API does not have.
Status only_known(const json::View& body, std::initializer_list<std::string_view> known);

/// The model of that name, or kNotFound "model_not_found".
StatusOr<const Model*> find_model(const Backend& backend, const std::string& name);

/// The first of `fields` that is there, at least 1; kInvalidArgument with the field as param.
StatusOr<std::optional<std::uint32_t>> asked_tokens(const json::View& body,
                                                    const std::vector<std::string_view>& fields);

/// Tokens of the answer: what the request asks, else `fallback`, within the context. kInvalidArgument
/// "context_length_exceeded" with `param` when prompt and answer do not fit.
StatusOr<std::uint32_t> answer_tokens(const Model& model, std::size_t prompt_tokens,
                                      std::optional<std::uint32_t> asked, std::uint32_t fallback,
                                      std::string_view param);

}  // namespace mesh::gateway
