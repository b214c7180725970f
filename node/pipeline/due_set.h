#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "common/base/clock.h"

namespace mesh::pipeline {

/// At most one due time per key, ordered by time, then key.
template <class Key>
class DueSet {
 public:
  void set(const Key& key, TimePoint when) {
    clear(key);
    times_.emplace(key, when);
    order_.emplace(when, key);
  }
  void clear(const Key& key) {
    const auto found = times_.find(key);
    if (found == times_.end()) return;
    order_.erase({found->second, key});
    times_.erase(found);
  }
  /// The first key whose time has come.
  std::optional<Key> first_due(TimePoint now) const {
    if (order_.empty() || order_.begin()->first > now) return std::nullopt;
    return order_.begin()->second;
  }
  std::optional<TimePoint> earliest() const {
    if (order_.empty()) return std::nullopt;
    return order_.begin()->first;
  }
  bool contains(const Key& key) const { return times_.contains(key); }

 private:
  std::map<Key, TimePoint> times_;
  std::set<std::pair<TimePoint, Key>> order_;
};

}  // namespace mesh::pipeline
