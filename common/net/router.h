#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/net/server.h"

namespace mesh::net {

/// "/v1/models/{name}" as segments. Matches percent-encoded paths, so that an encoded slash stays inside its
/// segment.
class PathPattern {
 public:
  static StatusOr<PathPattern> parse(std::string_view text);
  /// The decoded parameters, or nothing.
  std::optional<std::map<std::string, std::string>> match(std::string_view encoded_path) const;

 private:
  struct Segment {
    std::string text;
    bool is_param = false;
    bool is_rest = false;
  };
  std::vector<Segment> segments_;
};

/// The routes of a listener; the first that fits wins.
class Router {
 public:
  static StatusOr<Router> make(std::vector<Route> routes);

  struct Match {
    const Route* route;
    std::map<std::string, std::string> params;
  };
  /// kNotFound, or HTTP status 405 when the path has routes with other methods; HEAD matches GET.
  StatusOr<Match> find(std::string_view method, std::string_view encoded_path) const;

 private:
  std::vector<Route> routes_;
  std::vector<PathPattern> patterns_;
};

}  // namespace mesh::net
