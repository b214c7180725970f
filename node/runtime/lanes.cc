#include "node/runtime/lanes.h"

namespace mesh {
namespace {
constexpr Duration kIdle = std::chrono::minutes(5);
}

bool Lanes::send(pipeline::OutFrame frame) {
  const std::string url = frame.url;
  const wire::Lane lane = frame.lane;
  return send(url, lane, std::move(frame));
}

bool Lanes::send(pipeline::OutAsk ask) {
  const std::string url = ask.url;
  return send(url, wire::Lane::kDecode, std::move(ask));
}

bool Lanes::send(pipeline::OutTokens tokens) {
  const std::string url = tokens.head_url;
  return send(url, wire::Lane::kDecode, std::move(tokens));
}

bool Lanes::send(pipeline::OutReport report) {
  const std::string url = report.head_url;
  return send(url, wire::Lane::kDecode, std::move(report));
}

bool Lanes::send(const std::string& url, wire::Lane lane, Lane::Item item) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Lane>& place = lanes_[{url, lane}];
  if (place == nullptr) {
    LaneOptions options = options_;
    options.url = url;
    options.lane = lane;
    std::weak_ptr<Precedence>& known = precedence_[url];
    options.precedence = known.lock();
    if (options.precedence == nullptr) known = options.precedence = std::make_shared<Precedence>();
    place = std::make_unique<Lane>(std::move(options), events_);
  }
  return place->send(item);
}

void Lanes::end_idle(TimePoint now) {
  std::vector<std::unique_ptr<Lane>> ended;
  const std::lock_guard lock(mutex_);
  for (auto it = lanes_.begin(); it != lanes_.end();) {
    if (it->second->idle_since(now - kIdle)) {
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
