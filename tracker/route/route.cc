#include "tracker/route/route.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace mesh::tracker {
namespace {

constexpr double kUnreachable = std::numeric_limits<double>::infinity();

/// splitmix64 (Steele, Lea, Flood 2014): the same draw for the same seed everywhere.
std::uint64_t next_random(std::uint64_t& state) {
  std::uint64_t z = (state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

/// Seconds that `layers` cost at `node`.
double hop_cost(const NodeId& node, std::uint32_t layers, const LoadView& load) {
  const auto known = load.find(node);
  const NodeSpeed speed = known == load.end() ? NodeSpeed{} : known->second;
  return speed.seconds_per_layer * layers * (1.0 + speed.sessions) + speed.link_seconds;
}

class Search {
 public:
  Search(const std::vector<Copy>& ready, const LoadView& load, const RouteRequest& request)
      : load_(load), request_(request) {
    for (const Copy& copy : ready) {
      const LayerRange part{std::max(copy.layers.begin, request.layers.begin),
                            std::min(copy.layers.end, request.layers.end)};
      if (!part.empty() && !request.excluded.contains(copy.node)) copies_.push_back({copy.node, part});
    }
    std::sort(copies_.begin(), copies_.end());
    collect_borders();
    price();
  }

  bool possible() const { return rest_.front() != kUnreachable; }

  /// One near-best route; nothing when the walk meets a node twice.
  std::optional<std::vector<RouteHop>> walk(std::uint64_t& random, double allowed) const {
    std::vector<RouteHop> route;
    std::set<NodeId> used;
    std::size_t at = 0;
    double spent = 0;
    while (at + 1 < borders_.size()) {
      std::vector<Edge> good;
      for (const Edge& edge : edges_from(at)) {
        if (!used.contains(edge.node) && spent + edge.cost + rest_[edge.to] <= allowed) good.push_back(edge);
      }
      if (good.empty()) return std::nullopt;
      const Edge& chosen = good[next_random(random) % good.size()];
      route.push_back({chosen.node, {borders_[at], borders_[chosen.to]}});
      used.insert(chosen.node);
      spent += chosen.cost;
      at = chosen.to;
    }
    return route;
  }

  double best() const { return rest_.front(); }

  /// Always the copy that reaches furthest: meets no node twice, since a node's copy is one range.
  std::vector<RouteHop> furthest() const {
    std::vector<RouteHop> route;
    for (std::size_t at = 0; at + 1 < borders_.size();) {
      const std::vector<Edge> edges = edges_from(at);
      const Edge& chosen = *std::max_element(edges.begin(), edges.end(),
                                             [](const Edge& a, const Edge& b) { return a.to < b.to; });
      route.push_back({chosen.node, {borders_[at], borders_[chosen.to]}});
      at = chosen.to;
    }
    return route;
  }

  LayerRange first_hole() const {
    std::vector<std::uint32_t> counts(request_.layers.size(), 0);
    for (const Copy& copy : copies_) {
      for (auto layer = copy.layers.begin; layer < copy.layers.end; ++layer)
        ++counts[layer - request_.layers.begin];
    }
    const auto holes = runs_of_zero(counts);
    if (holes.empty()) return request_.layers;
    return {holes.front().begin + request_.layers.begin, holes.front().end + request_.layers.begin};
  }

 private:
  struct Edge {
    NodeId node;
    std::size_t to;  ///< index of a border
    double cost;
  };

  /// A hop begins and ends only where some copy does: other borders never shorten a route.
  void collect_borders() {
    std::set<std::uint32_t> points{request_.layers.begin, request_.layers.end};
    for (const Copy& copy : copies_) {
      for (const std::uint32_t border : {copy.layers.begin, copy.layers.end}) {
        if (request_.borders.empty() || request_.borders.contains(border)) points.insert(border);
      }
    }
    borders_.assign(points.begin(), points.end());
  }

  void price() {
    rest_.assign(borders_.size(), kUnreachable);
    rest_.back() = 0;
    for (std::size_t at = borders_.size() - 1; at-- > 0;) {
      for (const Edge& edge : edges_from(at)) rest_[at] = std::min(rest_[at], edge.cost + rest_[edge.to]);
    }
  }

  std::vector<Edge> edges_from(std::size_t at) const {
    std::vector<Edge> edges;
    for (const Copy& copy : copies_) {
      if (!copy.layers.contains(borders_[at])) continue;
      for (std::size_t to = at + 1; to < borders_.size() && borders_[to] <= copy.layers.end; ++to) {
        edges.push_back({copy.node, to, hop_cost(copy.node, borders_[to] - borders_[at], load_)});
      }
    }
    return edges;
  }

  const LoadView& load_;
  const RouteRequest& request_;
  std::vector<Copy> copies_;
  std::vector<std::uint32_t> borders_;
  std::vector<double> rest_;  ///< cheapest way from a border to the end
};

}  // namespace

StatusOr<std::vector<RouteHop>> pick_route(const std::vector<Copy>& ready, const LoadView& load,
                                           const RouteRequest& request) {
  if (request.layers.empty()) return std::vector<RouteHop>{};
  const Search search(ready, load, request);
  if (search.possible()) {
    std::uint64_t random = request.seed;
    constexpr int kTries = 8;
    for (int i = 0; i < kTries; ++i) {
      if (auto route = search.walk(random, search.best() * request.near_best)) return *std::move(route);
    }
    return search.furthest();
  }
  return error(StatusCode::kUnavailable, "no ready copy of layers {} that this route may use",
               to_string(search.first_hole()));
}

}  // namespace mesh::tracker
