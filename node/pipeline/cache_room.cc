#include "node/pipeline/cache_room.h"

#include <algorithm>
#include <tuple>

namespace mesh::pipeline {
namespace {

/// Before the first copy was measured; slow for any bus.
constexpr double kCopyRate = 1e9;
constexpr double kWeightOfLast = 0.25;

Duration seconds_of(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(std::min(seconds, 1e6)));
}

}  // namespace

void CacheRoom::Rate::note(double amount, Duration took) {
  const double seconds = std::chrono::duration<double>(took).count();
  if (amount <= 0 || seconds <= 0) return;
  const double now = amount / seconds;
  per_second = per_second == 0 ? now : per_second + kWeightOfLast * (now - per_second);
}

bool CacheRoom::takes(std::uint64_t bytes) const {
  if (bytes > limits_.device_bytes) return false;
  if (bytes <= limits_.device_bytes - std::min(limits_.device_bytes, of_all_)) return true;
  const std::uint64_t largest = sizes_.empty() ? bytes : std::max(bytes, *sizes_.rbegin());
  if (limits_.host_bytes / 2 < largest) return false;
  const std::uint64_t all = limits_.device_bytes + (limits_.host_bytes - 2 * largest);
  return of_all_ <= all && bytes <= all - of_all_;
}

std::uint64_t CacheRoom::promised() const {
  const std::uint64_t largest = sizes_.empty() ? 0 : *sizes_.rbegin();
  const std::uint64_t beside = limits_.host_bytes / 2 < largest ? 0 : limits_.host_bytes - 2 * largest;
  return std::max({on_device_, largest, of_all_ - std::min(of_all_, beside)});
}

std::uint64_t CacheRoom::waiting_bytes() const {
  std::uint64_t sum = 0;
  for (const auto& [order, cache] : waiting_) sum += bytes(cache);
  return sum;
}

void CacheRoom::add(CacheId cache, std::uint64_t bytes, Place place, TimePoint now, Position to_compute) {
  Entry& entry = entries_[cache];
  entry.bytes = bytes;
  entry.tokens = to_compute;
  entry.place = Place::kNowhere;
  of_all_ += bytes;
  sizes_.insert(bytes);
  if (place == Place::kDevice) enter(cache, now);
}

void CacheRoom::remove(CacheId cache) {
  stop_waiting(cache);
  held_.erase(cache);
  const auto at = entries_.find(cache);
  const Entry& entry = at->second;
  of_all_ -= entry.bytes;
  sizes_.erase(sizes_.find(entry.bytes));
  if (entry.place == Place::kDevice) on_device_ -= entry.bytes;
  if (entry.place == Place::kHost && !faults_.forget_host_bytes) leave_host(entry);
  entries_.erase(at);
}

void CacheRoom::used(CacheId cache, Position tokens, std::uint64_t host_bytes, TimePoint now) {
  Entry& entry = entries_.at(cache);
  entry.tokens = tokens;
  entry.host_bytes = host_bytes;
  entry.last_used = now;
}

bool CacheRoom::may_run(CacheId cache) const {
  const Entry& entry = entries_.at(cache);
  return entry.place == Place::kDevice && !entry.on_its_way && !held_.contains(cache);
}

void CacheRoom::wait(CacheId cache) {
  Entry& entry = entries_.at(cache);
  if (entry.waits_as != 0 || entry.place == Place::kDevice) return;
  entry.waits_as = ++last_wait_;
  waiting_.emplace(entry.waits_as, cache);
}

void CacheRoom::stop_waiting(CacheId cache) {
  Entry& entry = entries_.at(cache);
  waiting_.erase(std::exchange(entry.waits_as, 0));
}

bool CacheRoom::waits(CacheId cache) const {
  const Entry& entry = entries_.at(cache);
  return entry.waits_as != 0 || entry.on_its_way || held_.contains(cache);
}

std::optional<CacheId> CacheRoom::first_waiting() const {
  if (waiting_.empty()) return std::nullopt;
  return faults_.latest_first ? waiting_.rbegin()->second : waiting_.begin()->second;
}

std::optional<std::vector<CacheRoom::Leaving>> CacheRoom::who_leaves(
    CacheId cache, TimePoint now, const std::function<bool(CacheId)>& has_work,
    const std::function<bool(CacheId)>& may_drop) const {
  std::vector<Leaving> leaving;
  const std::uint64_t needed = entries_.at(cache).bytes;
  if (needed > limits_.device_bytes) return std::nullopt;
  std::uint64_t left = on_device_;  // what stays on the device
  if (left <= limits_.device_bytes - needed || faults_.crowd_in) return leaving;

  std::vector<std::tuple<bool, TimePoint, CacheId>> order;
  for (const auto& [id, entry] : entries_) {
    if (entry.place == Place::kDevice && !entry.on_its_way && entry.turn_until <= now)
      order.emplace_back(has_work(id), entry.last_used, id);
  }
  std::sort(order.begin(), order.end());
  std::uint64_t host_free = limits_.host_bytes - std::min(limits_.host_bytes, on_host_);
  for (const auto& [busy, used, id] : order) {
    const Entry& entry = entries_.at(id);
    const bool fits = entry.host_bytes <= host_free;
    const bool drop = entry.tokens == 0 || (may_drop(id) && (!fits || cheaper_to_compute(entry)));
    if (!drop && !fits) continue;
    if (!drop) host_free -= entry.host_bytes;
    leaving.push_back({id, drop});
    left -= entry.bytes;
    if (left <= limits_.device_bytes - needed) return leaving;
  }
  return std::nullopt;
}

void CacheRoom::leave(CacheId cache) {
  Entry& entry = entries_.at(cache);
  held_.erase(cache);
  entry.place = Place::kHost;
  on_device_ -= entry.bytes;
  on_host_ += entry.host_bytes;
  ++count_on_host_;
}

void CacheRoom::enter(CacheId cache, TimePoint now) {
  stop_waiting(cache);
  Entry& entry = entries_.at(cache);
  entry.turn_until = now + turn(entry);
  if (entry.place == Place::kHost) leave_host(entry);
  entry.place = Place::kDevice;
  entry.last_used = now;
  on_device_ += entry.bytes;
}

void CacheRoom::arrived(CacheId cache) {
  if (const auto at = entries_.find(cache); at != entries_.end()) at->second.on_its_way = false;
}

void CacheRoom::leave_host(const Entry& entry) {
  on_host_ -= entry.host_bytes;
  --count_on_host_;
}

void CacheRoom::stayed(CacheId cache) {
  const auto at = entries_.find(cache);
  if (at == entries_.end() || at->second.place != Place::kHost) return;
  stop_waiting(cache);
  leave_host(at->second);
  at->second.place = Place::kDevice;
  on_device_ += at->second.bytes;
}

std::optional<TimePoint> CacheRoom::next_wakeup(TimePoint now) const {
  std::optional<TimePoint> first;
  if (waiting_.empty()) return first;
  for (const auto& [id, entry] : entries_) {
    if (entry.place != Place::kDevice || entry.turn_until <= now) continue;
    if (!first || entry.turn_until < *first) first = entry.turn_until;
  }
  return first;
}

Duration CacheRoom::copy_time(const Entry& entry) const {
  const double rate = copy_rate_.per_second == 0 ? kCopyRate : copy_rate_.per_second;
  return seconds_of(2 * static_cast<double>(entry.host_bytes) / rate);
}

Duration CacheRoom::compute_time(const Entry& entry) const {
  return seconds_of(prefill_rate_.per_second == 0 ? 1e6 : entry.tokens / prefill_rate_.per_second);
}

/// Long enough to be worth the way; what must be computed again first gets twice the time of that too.
Duration CacheRoom::turn(const Entry& entry) const {
  const bool anew = entry.place == Place::kNowhere;
  const Duration cost = entry.tokens == 0 ? Duration{} : anew ? compute_time(entry) : copy_time(entry);
  const Duration worth = std::chrono::duration_cast<Duration>(limits_.turn_per_return * cost);
  const Duration bounded = std::clamp(worth, limits_.shortest_turn, limits_.longest_turn);
  return anew && prefill_rate_.per_second != 0 ? std::max(bounded, 2 * cost) : bounded;
}

}  // namespace mesh::pipeline
