#include "node/runtime/session_book.h"

#include <algorithm>
#include <utility>

namespace mesh {

void SessionBook::set(const wire::HopKey& hop, Entry entry) {
  const std::lock_guard lock(mutex_);
  entries_[hop] = entry;
}

std::optional<SessionBook::Entry> SessionBook::find(const wire::HopKey& hop) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(hop);
  if (found == entries_.end()) return std::nullopt;
  return found->second;
}

std::optional<pipeline::SessionKeys> SessionBook::keys(const wire::HopKey& hop) const {
  const auto entry = find(hop);
  if (!entry) return std::nullopt;
  return entry->keys;
}

void SessionBook::sweep(const pipeline::HopTable& table) {
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(entries_, [&](const auto& entry) { return !table.keys(entry.first).has_value(); });
  }
  changed_.notify_all();
}

bool SessionBook::empty() const {
  const std::lock_guard lock(mutex_);
  return entries_.empty();
}

void SessionBook::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

bool SessionBook::wait_unused(const ModelIdentity& identity, const LayerRange& range, TimePoint deadline,
                              const std::function<bool(const Entry&)>& goes_on) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [&] {
    if (closed_) return true;
    return std::none_of(entries_.begin(), entries_.end(), [&](const auto& item) {
      const Entry& entry = item.second;
      const bool overlaps = entry.range.begin < range.end && range.begin < entry.range.end;
      return entry.identity == identity && (overlaps || (entry.takes_ids && range.begin == 0)) &&
             !goes_on(entry);
    });
  });
}

bool SessionBook::wait_empty(TimePoint deadline) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [&] { return closed_ || entries_.empty(); });
}

}  // namespace mesh
