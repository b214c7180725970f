#include <algorithm>

#include "node/pipeline/hop_impl.h"

// Which sessions have their caches on the device.
namespace mesh::pipeline {

/// In host memory a cache takes whole blocks of what it has.
std::uint64_t HopTable::Impl::host_bytes(const HopSession& session) const {
  const std::uint64_t blocks =
      (std::uint64_t{session.next} + options_.cache_block - 1) / options_.cache_block;
  return blocks * options_.cache_block * session.shard.cache_bytes_per_token;
}

/// Kept prompts have what caches leave.
void HopTable::Impl::fit_prefixes() {
  const std::uint64_t left = room_.device_bytes() - std::min(room_.device_bytes(), room_.on_device());
  if (prefixes_.bytes() > left) shrink_prefixes(prefixes_.bytes() - left);
}

void HopTable::Impl::withdraw(const wire::HopKey& hop) {
  const auto at = sessions_.find(hop);
  if (at == sessions_.end()) return;
  const CacheId cache = at->second.cache;
  end(at);
  std::erase_if(orders_, [&](const CacheOrder& order) {
    const auto* begins = std::get_if<BeginCache>(&order);
    return begins != nullptr && begins->cache == cache;
  });
}

void HopTable::Impl::let_in(TimePoint now) {
  turn_ends_.reset();
  for (const CacheId cache : room_.clear_held()) update_waiting(owner(cache));
  const auto has_work = [this](CacheId cache) {
    const HopSession& session = owner(cache);
    return session.running || session.inbound.front() != nullptr;
  };
  // Fenced, it has promised its cursor and outputs; running, they are about to change.
  const auto may_drop = [this](CacheId cache) { return !owner(cache).outbound.held(); };
  while (const auto cache = room_.first_waiting()) {
    HopSession& session = owner(*cache);
    if (room_.bytes(*cache) > room_.device_bytes()) {
      never_fits(session, now);
      continue;
    }
    const auto leaving = room_.who_leaves(*cache, now, has_work, may_drop);
    if (!leaving) {
      turn_ends_ = room_.next_wakeup(now);
      return;
    }
    bool busy = false;
    for (const CacheRoom::Leaving& one : *leaving) {
      HopSession& other = owner(one.cache);
      busy |= other.running.has_value();
      room_.hold(one.cache);
      update_waiting(other);
    }
    if (busy) return;  // it leaves when its step is done
    for (const CacheRoom::Leaving& one : *leaving) make_leave(one, now);
    bring_in(session, now);
  }
}

void HopTable::Impl::make_leave(const CacheRoom::Leaving& leaving, TimePoint now) {
  HopSession& session = owner(leaving.cache);
  if (!leaving.drop) {
    room_.leave(leaving.cache);
    orders_.emplace_back(SpillCache{leaving.cache});
    ++counts_.spills;
    ++moves_;
    update_waiting(session);
    return;
  }
  const std::uint64_t bytes = room_.bytes(leaving.cache);
  const Position had = session.next;
  release(leaving.cache);
  session.cache = ++last_id_;
  owners_.emplace(session.cache, session.key());
  room_.add(session.cache, bytes, CacheRoom::Place::kNowhere, now, had);
  if (had > 0) {
    ++counts_.dropped_caches;
    trim(session, 0);
    session.next = session.blocks_seen = 0;
    session.inbound.mark_broken();
    report(session, wire::ReportCode::kCacheDropped, "its cache made room for others", now);
  }
  update_waiting(session);
}

void HopTable::Impl::bring_in(HopSession& session, TimePoint now) {
  const wire::OpenRequest& request = session.request;
  const bool anew = room_.place(session.cache) == CacheRoom::Place::kNowhere;
  room_.enter(session.cache, now);
  fit_prefixes();
  if (anew) {
    orders_.emplace_back(BeginCache{session.key(),
                                    session.cache,
                                    request.identity,
                                    request.range,
                                    request.takes_ids,
                                    request.max_tokens,
                                    0,
                                    {}});
    follow_moves(session.cache);
  } else if (!faults_.stay_on_host) {
    orders_.emplace_back(RestoreCache{session.cache});
    room_.set_out(session.cache);
    ++moves_;
  }
  update_waiting(session);
}

/// A cache that begins while others are moved may be to have their memory: it begins when they have gone.
void HopTable::Impl::follow_moves(CacheId cache) {
  if (moved_ == moves_) return;
  room_.set_out(cache);
  following_.emplace_back(moves_, cache);
}

void HopTable::Impl::arrived(CacheId cache) {
  room_.arrived(cache);
  if (owners_.contains(cache)) update_waiting(owner(cache));
}

/// Layers were loaded since it was opened.
void HopTable::Impl::never_fits(HopSession& session, TimePoint now) {
  session.inbound.mark_broken();
  report(session, wire::ReportCode::kStepFailed,
         fmt::format("the cache of {} tokens needs {} bytes, of which shards leave {}",
                     session.request.max_tokens, room_.bytes(session.cache), room_.device_bytes()),
         now);
  update_waiting(session);
}

void HopTable::Impl::cache_moved(const CacheMoved& moved) {
  if (moved.status.ok()) room_.note_copy(moved.bytes, moved.took);
  if (!moved.to_host) {
    arrived(moved.cache);  // when it could not, the step that follows finds out
  } else if (!moved.status.ok()) {
    room_.stayed(moved.cache);
    if (owners_.contains(moved.cache)) update_waiting(owner(moved.cache));
  }
  if (moved_ < moves_) ++moved_;
  for (; !following_.empty() && following_.front().first <= moved_; following_.pop_front())
    arrived(following_.front().second);
}

}  // namespace mesh::pipeline
