#include "node/runtime/lanes.h"

namespace mesh {
namespace {
constexpr Duration kIdle = std::chrono::minutes(5);
}

Status Lanes::send(pipeline::OutFrame frame) {
  const std::string url = frame.url;
  const wire::Lane lane = frame.lane;
  return send(url, lane, std::move(frame));
}

Status Lanes::send(pipeline::OutAsk ask) {
  const std::string url = ask.url;
  return send(url, wire::Lane::kDecode, std::move(ask));
}

Status Lanes::send(pipeline::OutTokens tokens) {
  const std::string url = tokens.head_url;
  return send(url, wire::Lane::kDecode, std::move(tokens));
}

Status Lanes::send(pipeline::OutReport report) {
  const std::string url = report.head_url;
  return send(url, wire::Lane::kDecode, std::move(report));
}

Status Lanes::send(const std::string& url, wire::Lane lane, Lane::Item item) {
  MESH_ASSIGN_OR_RETURN(Lane* const to, find_or_start({url, lane}));
  if (to->send(item)) return absl::OkStatus();
  return error(StatusCode::kResourceExhausted, "the lane to {} is full", url);
}

void Lanes::warm(const std::string& url, wire::Lane lane) {
  const Key key{url, lane};
  {
    const std::lock_guard lock(mutex_);
    if (lanes_.size() >= most_ && !lanes_.contains(key)) return;
  }
  if (const auto to = find_or_start(key); to.ok()) (*to)->warm();
}

std::unique_ptr<Lane> Lanes::take_idlest() {
  auto idlest = lanes_.end();
  TimePoint since = TimePoint::max();
  for (auto it = lanes_.begin(); it != lanes_.end(); ++it) {
    const auto idle = it->second->idle_since();
    if (!idle || *idle >= since) continue;
    idlest = it;
    since = *idle;
  }
  if (idlest == lanes_.end()) return nullptr;
  std::unique_ptr<Lane> lane = std::move(idlest->second);
  lanes_.erase(idlest);
  return lane;
}

StatusOr<Lane*> Lanes::find_or_start(const Key& key) {
  std::unique_ptr<Lane> ended;  // outside of the lock
  const std::lock_guard lock(mutex_);
  const auto found = lanes_.find(key);
  if (found != lanes_.end()) return found->second.get();
  if (lanes_.size() >= most_ && (ended = take_idlest()) == nullptr) {
    return error(
        StatusCode::kResourceExhausted,
        "all {} lanes of this node to other programs are busy, so nothing goes to {}: let sessions share "
        "next hops, or serve them from more nodes",
        most_, key.first);
  }
  LaneOptions options = options_;
  options.url = key.first;
  options.lane = key.second;
  std::weak_ptr<Precedence>& known = precedence_[key.first];
  options.precedence = known.lock();
  if (options.precedence == nullptr) known = options.precedence = std::make_shared<Precedence>();
  MESH_ASSIGN_OR_RETURN(auto lane, Lane::start(std::move(options), events_));
  return lanes_.emplace(key, std::move(lane)).first->second.get();
}

void Lanes::end_idle(TimePoint now) {
  std::vector<std::unique_ptr<Lane>> ended;
  const std::lock_guard lock(mutex_);
  for (auto it = lanes_.begin(); it != lanes_.end();) {
    const auto idle = it->second->idle_since();
    if (idle && *idle < now - kIdle) {
      ended.push_back(std::move(it->second));
      it = lanes_.erase(it);
    } else {
      ++it;
    }
  }
  std::erase_if(precedence_, [](const auto& entry) { return entry.second.expired(); });
}

void Lanes::stop() {
  const std::lock_guard lock(mutex_);
  for (const auto& [key, lane] : lanes_) lane->stop();
  lanes_.clear();
}

std::size_t Lanes::size() const {
  const std::lock_guard lock(mutex_);
  return lanes_.size();
}

std::vector<LinkCounters> Lanes::counters() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, LinkCounters> by_address;
  for (const auto& [key, lane] : lanes_) {
    const LinkCounters one = lane->counters();
    LinkCounters& sum = by_address[one.address];
    sum.address = one.address;
    sum.frames += one.frames;
    sum.raw_bytes += one.raw_bytes;
    sum.wire_bytes += one.wire_bytes;
    sum.failures += one.failures;
    const double shortest = one.round_trip_seconds;
    if (shortest > 0 && (sum.round_trip_seconds == 0 || shortest < sum.round_trip_seconds)) {
      sum.round_trip_seconds = shortest;
    }
    sum.bytes_per_second = std::max(sum.bytes_per_second, one.bytes_per_second);
  }
  std::vector<LinkCounters> all;
  for (auto& [address, sum] : by_address) all.push_back(std::move(sum));
  return all;
}

}  // namespace mesh
