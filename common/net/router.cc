#include "common/net/router.h"

#include <algorithm>

#include "common/net/error_response.h"
#include "common/net/url.h"

namespace mesh::net {
namespace {

/// Splits off the text before the next slash.
std::string_view next_segment(std::string_view& path) {
  const std::size_t slash = std::min(path.find('/'), path.size());
  const std::string_view segment = path.substr(0, slash);
  path.remove_prefix(std::min(slash + 1, path.size()));
  return segment;
}

}  // namespace

StatusOr<PathPattern> PathPattern::parse(std::string_view text) {
  const auto malformed = [&] {
    return error(StatusCode::kInvalidArgument, "route pattern '{}' is malformed", text);
  };
  if (!text.starts_with('/')) return malformed();
  PathPattern pattern;
  std::string_view rest = text.substr(1);
  do {
    std::string_view part = next_segment(rest);
    Segment segment;
    if (part.starts_with('{')) {
      if (!part.ends_with('}')) return malformed();
      part = part.substr(1, part.size() - 2);
      segment.is_param = true;
      segment.is_rest = part.ends_with("...");
      if (segment.is_rest) part.remove_suffix(3);
      if (part.empty() || (segment.is_rest && !rest.empty())) return malformed();
    }
    if (part.find_first_of("{}%") != std::string_view::npos) return malformed();
    segment.text = part;
    pattern.segments_.push_back(std::move(segment));
  } while (!rest.empty());
  return pattern;
}

std::optional<std::map<std::string, std::string>> PathPattern::match(std::string_view path) const {
  if (!path.starts_with('/')) return std::nullopt;
  path.remove_prefix(1);
  std::map<std::string, std::string> params;
  bool more = true;
  for (const Segment& segment : segments_) {
    if (!more) return std::nullopt;
    more = path.find('/') != std::string_view::npos;
    const std::string_view raw = segment.is_rest ? std::exchange(path, {}) : next_segment(path);
    if (segment.is_rest) more = false;
    auto decoded = percent_decode(raw);
    if (!decoded.ok()) return std::nullopt;
    if (!segment.is_param) {
      if (*decoded != segment.text) return std::nullopt;
    } else if (decoded->empty()) {
      return std::nullopt;
    } else {
      params[segment.text] = *std::move(decoded);
    }
  }
  if (more) return std::nullopt;
  return params;
}

StatusOr<Router> Router::make(std::vector<Route> routes) {
  Router router;
  for (const Route& route : routes) {
    MESH_ASSIGN_OR_RETURN(PathPattern pattern, PathPattern::parse(route.pattern));
    if (!route.handler) return error(StatusCode::kInvalidArgument, "route {} has no handler", route.pattern);
    router.patterns_.push_back(std::move(pattern));
  }
  router.routes_ = std::move(routes);
  return router;
}

StatusOr<Router::Match> Router::find(std::string_view method, std::string_view encoded_path) const {
  const std::string_view wanted = method == "HEAD" ? "GET" : method;
  bool path_known = false;
  for (std::size_t i = 0; i < routes_.size(); ++i) {
    auto params = patterns_[i].match(encoded_path);
    if (!params) continue;
    path_known = true;
    if (routes_[i].method == wanted) return Match{&routes_[i], *std::move(params)};
  }
  if (path_known) {
    return with_http_status(
        error(StatusCode::kUnimplemented, "method {:.16} is not for {:.200}", method, encoded_path), 405);
  }
  return error(StatusCode::kNotFound, "no such route: {:.16} {:.200}", method, encoded_path);
}

}  // namespace mesh::net
