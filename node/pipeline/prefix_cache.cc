#include "node/pipeline/prefix_cache.h"

#include <algorithm>

namespace mesh::pipeline {

void PrefixCache::touch(Entries::iterator entry) {
  by_use_.erase(entry->second.used);
  entry->second.used = ++clock_;
  by_use_.emplace(clock_, entry->first);
}

void PrefixCache::drop(Entries::iterator entry) {
  const auto& [key, block] = *entry;
  by_use_.erase(block.used);
  bytes_ -= block.bytes;
  layer_blocks_ -= key.first.size();
  dropped_.push_back(block.id);
  entries_.erase(entry);
}

void PrefixCache::evict_one() {
  const auto entry = entries_.find(by_use_.begin()->second);
  if (faults_.stale_blocks) stale_[entry->first] = entry->second.id;
  ++evicted_;
  drop(entry);
}

PrefixBlockId PrefixCache::next_id() {
  if (faults_.stale_blocks && !dropped_.empty()) return dropped_.back();
  return ++last_id_;
}

std::vector<PrefixBlockId> PrefixCache::match(const LayerRange& range,
                                              std::span<const wire::PrefixKey> keys) {
  std::vector<Entries::iterator> found;
  for (const wire::PrefixKey& key : keys) {
    const auto entry = entries_.find({range, key});
    if (entry == entries_.end()) break;
    found.push_back(entry);
  }
  std::vector<PrefixBlockId> ids;
  for (const auto& entry : found) ids.push_back(entry->second.id);
  for (std::size_t i = ids.size(); i < keys.size() && !stale_.empty(); ++i) {
    const auto old = stale_.find({range, keys[i]});
    if (old == stale_.end()) break;
    ids.push_back(old->second);
  }
  // From the last on: so a block is always used later than those that continue it.
  for (auto at = found.rbegin(); at != found.rend(); ++at) touch(*at);
  return ids;
}

std::optional<PrefixBlockId> PrefixCache::keep(const LayerRange& range, std::span<const wire::PrefixKey> keys,
                                               std::uint64_t bytes) {
  if (keys.empty() || bytes > budget_ || entries_.contains({range, keys.back()})) return std::nullopt;
  const std::uint64_t began = clock_;
  const auto before = keys.first(keys.size() - 1);
  if (match(range, before).size() != before.size()) return std::nullopt;
  while (bytes > budget_ - bytes_) {
    if (by_use_.begin()->first > began) return std::nullopt;
    evict_one();
  }
  const PrefixBlockId id = next_id();
  const auto entry = entries_.emplace(Key{range, keys.back()}, Entry{id, bytes, ++clock_}).first;
  by_use_.emplace(clock_, entry->first);
  bytes_ += bytes;
  layer_blocks_ += range.size();
  match(range, keys);
  return id;
}

void PrefixCache::shrink(std::uint64_t bytes) {
  const std::uint64_t target = bytes_ - std::min(bytes_, bytes);
  while (bytes_ > target) {
    evict_one();
  }
}

void PrefixCache::lose(PrefixBlockId id) {
  const auto entry =
      std::find_if(entries_.begin(), entries_.end(), [&](const auto& one) { return one.second.id == id; });
  if (entry != entries_.end()) drop(entry);
}

}  // namespace mesh::pipeline
