#include "node/engine/models/rope_config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace mesh::engine {
namespace {

struct Rope {
  double theta = 10000;
  double dims = 0;
  std::vector<double> frequencies;
};

Rope plain(double theta, std::uint32_t dims) {
  Rope rope{theta, static_cast<double>(dims), {}};
  for (std::uint32_t i = 0; i < dims; i += 2) rope.frequencies.push_back(std::pow(theta, -double(i) / dims));
  return rope;
}

StatusOr<double> positive(const json::View& view, std::string_view key, std::optional<double> fallback = {}) {
  MESH_ASSIGN_OR_RETURN(const std::optional<json::View> found, view.find(key));
  if (!found && fallback) return *fallback;
  MESH_ASSIGN_OR_RETURN(const json::View field, view.field(key));
  MESH_ASSIGN_OR_RETURN(const double value, field.as<double>());
  if (!(value > 0)) return field.error("must be above 0");
  return value;
}

/// Where the length that the model was trained on is written, in the order in which transformers looks.
StatusOr<double> original_positions(const json::View& config, const json::View& params,
                                    Position max_positions) {
  MESH_ASSIGN_OR_RETURN(const std::optional<json::View> outer,
                        config.find("original_max_position_embeddings"));
  return positive(outer ? config : params, "original_max_position_embeddings", max_positions);
}

Status scale_linear(const json::View& params, Rope& rope) {
  MESH_ASSIGN_OR_RETURN(const double factor, positive(params, "factor"));
  for (double& f : rope.frequencies) f /= factor;
  return absl::OkStatus();
}

Status scale_llama3(const json::View& params, double original, Rope& rope) {
  MESH_ASSIGN_OR_RETURN(const double factor, positive(params, "factor"));
  MESH_ASSIGN_OR_RETURN(const double low, positive(params, "low_freq_factor"));
  MESH_ASSIGN_OR_RETURN(const double high, positive(params, "high_freq_factor"));
  if (!(high > low)) return params.error("high_freq_factor must be above low_freq_factor");
  for (double& f : rope.frequencies) {
    const double wavelength = 2 * std::numbers::pi / f;
    if (wavelength > original / low) {
      f /= factor;
    } else if (wavelength >= original / high) {
      const double smooth = (original / wavelength - low) / (high - low);
      f = (1 - smooth) * f / factor + smooth * f;
    }
  }
  return absl::OkStatus();
}

double yarn_mscale(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

StatusOr<double> scale_yarn(const json::View& params, double original, Position max_positions, Rope& rope) {
  if (rope.theta == 1) return params.error("yarn needs a rope_theta other than 1");
  MESH_ASSIGN_OR_RETURN(const double factor, positive(params, "factor", max_positions / original));
  MESH_ASSIGN_OR_RETURN(const double beta_fast, positive(params, "beta_fast", 32));
  MESH_ASSIGN_OR_RETURN(const double beta_slow, positive(params, "beta_slow", 1));
  MESH_ASSIGN_OR_RETURN(const bool truncate, params.get_or<bool>("truncate", true));
  MESH_ASSIGN_OR_RETURN(const double mscale, params.get_or<double>("mscale", 0));
  MESH_ASSIGN_OR_RETURN(const double mscale_all, params.get_or<double>("mscale_all_dim", 0));
  MESH_ASSIGN_OR_RETURN(const std::optional<double> attention,
                        params.get_optional<double>("attention_factor"));

  const auto correction = [&](double rotations) {
    return rope.dims * std::log(original / (rotations * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
  };
  double low = correction(beta_fast), high = correction(beta_slow);
  if (truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, rope.dims - 1);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < rope.frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    double& f = rope.frequencies[i];
    f = f / factor * ramp + f * (1 - ramp);
  }
  if (attention) return *attention;
  if (mscale != 0 && mscale_all != 0) return yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all);
  return yarn_mscale(factor, 1);
}

}  // namespace

StatusOr<RopeSpec> read_rope(const json::View& config, std::uint32_t head_dim, Position max_positions) {
  static const json::Value kNone = json::Object{};
  MESH_ASSIGN_OR_RETURN(const std::optional<json::View> modern, config.find("rope_parameters"));
  MESH_ASSIGN_OR_RETURN(const std::optional<json::View> older, config.find("rope_scaling"));
  const json::View params = modern ? *modern : older ? *older : json::View(kNone, "rope_parameters");
  MESH_RETURN_IF_ERROR(params.as<json::Object>().status());
  for (const auto& [key, value] : params.value().as_object()) {
    if (value.is_object()) return params.error("one rotary embedding per layer type is not supported");
    if (key == "mrope_section")
      return params.error("mrope_section (positions of three axes) is not supported");
  }

  MESH_ASSIGN_OR_RETURN(const double outer_theta, positive(config, "rope_theta", 10000));
  MESH_ASSIGN_OR_RETURN(const double theta, positive(params, "rope_theta", outer_theta));
  MESH_ASSIGN_OR_RETURN(const double outer_partial, positive(config, "partial_rotary_factor", 1));
  MESH_ASSIGN_OR_RETURN(const double partial, positive(params, "partial_rotary_factor", outer_partial));
  if (partial > 1) return params.error("partial_rotary_factor must lie in (0, 1]");
  const auto dims = static_cast<std::uint32_t>(head_dim * partial);
  if (dims == 0 || dims % 2 != 0) {
    return params.error(
        fmt::format("rotates {} of {} values of a head; an even number above 0 is needed", dims, head_dim));
  }
  MESH_ASSIGN_OR_RETURN(const std::string older_type, params.get_or<std::string>("type", "default"));
  MESH_ASSIGN_OR_RETURN(const std::string type, params.get_or<std::string>("rope_type", older_type));
  MESH_ASSIGN_OR_RETURN(const double original, original_positions(config, params, max_positions));

  Rope rope = plain(theta, dims);
  double attention_scale = 1;
  if (type == "linear") {
    MESH_RETURN_IF_ERROR(scale_linear(params, rope));
  } else if (type == "llama3") {
    MESH_RETURN_IF_ERROR(scale_llama3(params, original, rope));
  } else if (type == "yarn") {
    MESH_ASSIGN_OR_RETURN(attention_scale, scale_yarn(params, original, max_positions, rope));
  } else if (type != "default" && type != "dynamic") {
    return params.error(fmt::format(
        "rope type \"{}\" is not supported; supported are default, dynamic, linear, llama3, yarn", type));
  }
  RopeSpec spec{
      dims, {rope.frequencies.begin(), rope.frequencies.end()}, static_cast<float>(attention_scale)};
  return spec;
}

}  // namespace mesh::engine
