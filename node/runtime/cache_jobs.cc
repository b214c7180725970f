#include "node/runtime/cache_jobs.h"

#include <type_traits>
#include <utility>

#include "common/base/clock.h"
#include "common/base/detached.h"

namespace mesh {
namespace {

/// The cache that an order names; 0: none.
pipeline::CacheId named_by(const pipeline::CacheOrder& order) {
  return std::visit(
      [](const auto& one) -> pipeline::CacheId {
        if constexpr (std::is_same_v<std::decay_t<decltype(one)>, pipeline::DropBlock>) {
          return 0;
        } else {
          return one.cache;
        }
      },
      order);
}

}  // namespace

CacheJobs::CacheJobs(engine::Engine& engine, Lost lost, Moved moved)
    : engine_(engine), lost_(std::move(lost)), moved_(std::move(moved)), thread_([this] { loop(); }) {}

void CacheJobs::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool CacheJobs::goes_behind(const CacheJob& job) const {
  if (std::holds_alternative<pipeline::SpillCache>(job.order) ||
      std::holds_alternative<pipeline::RestoreCache>(job.order)) {
    return true;
  }
  if (behind_.empty()) return false;
  const bool shares_or_frees = std::holds_alternative<pipeline::ShareBlock>(job.order) ||
                               std::holds_alternative<pipeline::FreeCache>(job.order);
  return !shares_or_frees || named_.contains(named_by(job.order));
}

void CacheJobs::carry_out(CacheJob job) {
  {
    const std::lock_guard lock(mutex_);
    if (goes_behind(job)) {
      named_.insert(named_by(job.order));
      behind_.push_back(std::move(job));
      changed_.notify_all();
      return;
    }
  }
  run(job);
}

void CacheJobs::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopped_ || !behind_.empty(); });
    if (stopped_) break;
    const CacheJob& job = behind_.front();  // stays there while it runs
    lock.unlock();
    run(job);
    lock.lock();
    named_.erase(named_.find(named_by(job.order)));
    behind_.pop_front();
    changed_.notify_all();
  }
  const std::deque<CacheJob> left = std::exchange(behind_, {});
  named_.clear();
  changed_.notify_all();
  lock.unlock();
  for (const CacheJob& job : left) {
    if (std::holds_alternative<pipeline::FreeCache>(job.order)) run(job);
  }
}

void CacheJobs::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return behind_.empty(); });
}

bool CacheJobs::idle() const {
  const std::lock_guard lock(mutex_);
  return behind_.empty() && not_restored_.empty();
}

void CacheJobs::run(const CacheJob& job) {
  if (const auto* begins = std::get_if<pipeline::BeginCache>(&job.order)) {
    auto begun = begin(job, *begins);
    const std::lock_guard lock(mutex_);
    caches_.insert_or_assign(begins->cache, std::move(begun));
  } else if (const auto* shared = std::get_if<pipeline::ShareBlock>(&job.order)) {
    share(*shared);
  } else if (const auto* dropped = std::get_if<pipeline::DropBlock>(&job.order)) {
    const std::lock_guard lock(mutex_);
    blocks_.erase(dropped->id);
  } else if (const auto* spilled = std::get_if<pipeline::SpillCache>(&job.order)) {
    move_and_tell(spilled->cache, true);
  } else if (const auto* restored = std::get_if<pipeline::RestoreCache>(&job.order)) {
    move_and_tell(restored->cache, false);
  } else {
    close(std::get<pipeline::FreeCache>(job.order).cache);
  }
}

StatusOr<engine::CacheId> CacheJobs::find(pipeline::CacheId cache) const {
  const std::lock_guard lock(mutex_);
  const auto found = caches_.find(cache);
  if (found == caches_.end()) return error(StatusCode::kNotFound, "cache {} never began", cache);
  return found->second;
}

void CacheJobs::close(pipeline::CacheId cache) {
  const auto found = find(cache);
  if (found.ok()) engine_.close_cache(*found);
  const std::lock_guard lock(mutex_);
  not_restored_.erase(cache);
  caches_.erase(cache);
}

StatusOr<engine::CacheId> CacheJobs::begin(const CacheJob& job, const pipeline::BeginCache& order) {
  if (job.shard == nullptr)
    return error(StatusCode::kUnavailable, "layers {} are no longer held", to_string(order.range));
  std::vector<std::shared_ptr<const engine::SharedBlock>> blocks;
  {
    const std::lock_guard lock(mutex_);
    for (const pipeline::PrefixBlockId id : order.blocks) {
      const auto found = blocks_.find(id);
      if (found == blocks_.end()) return error(StatusCode::kDataLoss, "a kept block of the prompt is gone");
      blocks.push_back(found->second);
    }
  }
  auto cache = engine_.open_cache(job.shard, order.range, order.max_tokens);
  if (!cache.ok()) return detached(cache.status());
  if (order.tokens == 0) return *cache;
  if (const Status attached = engine_.attach(*cache, blocks, order.tokens); !attached.ok()) {
    engine_.close_cache(*cache);
    return detached(attached);
  }
  return *cache;
}

void CacheJobs::share(const pipeline::ShareBlock& order) {
  if (const auto cache = find(order.cache); cache.ok()) {
    if (auto block = engine_.share(*cache, order.index); block.ok()) {
      const std::lock_guard lock(mutex_);
      blocks_.insert_or_assign(order.id, *std::move(block));
      return;
    }
  }
  lost_(order.id);
}

pipeline::CacheMoved CacheJobs::move(pipeline::CacheId cache, bool to_host) {
  const auto found = find(cache);
  if (!found.ok()) return {cache, to_host, absl::OkStatus(), 0, {}};  // nothing is anywhere
  const SteadyClock clock;
  const TimePoint began = clock.now();
  const auto bytes = to_host ? engine_.spill(*found) : engine_.restore(*found);
  {
    const std::lock_guard lock(mutex_);
    not_restored_.erase(cache);
    if (!to_host && !bytes.ok()) not_restored_.insert(cache);
  }
  return {cache, to_host, detached(bytes.status()), bytes.ok() ? *bytes : 0, clock.now() - began};
}

void CacheJobs::move_and_tell(pipeline::CacheId cache, bool to_host) {
  const pipeline::CacheMoved moved = move(cache, to_host);
  if (moved_) moved_(moved);
}

/// A cache that could not begin as ordered is opened anew when its session starts from nothing.
StatusOr<engine::CacheId> CacheJobs::cache_for(const pipeline::StepSegment& segment, const LayerRange& range,
                                               const std::shared_ptr<const engine::Shard>& shard,
                                               bool& on_host) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !named_.contains(segment.cache); });
    on_host = not_restored_.contains(segment.cache);
  }
  if (on_host) {
    wait();  // one copy at a time
    MESH_RETURN_IF_ERROR(move(segment.cache, false).status);
    on_host = false;
  }
  auto found = find(segment.cache);
  if (found.ok() || (segment.start > 0 && found.status().code() != StatusCode::kNotFound)) return found;
  auto opened = engine_.open_cache(shard, range, segment.max_tokens);
  if (!opened.ok()) opened = detached(opened.status());
  const std::lock_guard lock(mutex_);
  caches_.insert_or_assign(segment.cache, opened);
  return opened;
}

}  // namespace mesh
