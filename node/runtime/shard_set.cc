#include "node/runtime/shard_set.h"

#include <algorithm>
#include <utility>

namespace mesh {
namespace {

constexpr double kNewShare = 0.2;  // of a new measurement in a moving average
constexpr double kPrefillRows = 128;

void average(double& mean, double value) {
  mean = mean == 0 ? value : mean + kNewShare * (value - mean);
}

double seconds_of(Duration time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

bool can_run(const engine::ModelProfile& profile, const engine::ShardSpec& spec, const LayerRange& range,
             bool takes_ids) {
  if (range.begin > range.end || !profile.allows(range)) return false;
  if (takes_ids && (range.begin != 0 || !spec.embedding)) return false;
  if (range.empty()) return takes_ids;
  if (!spec.range.contains(range)) return false;
  return range.end != profile.layer_count() || spec.head;
}

StatusOr<bool> ShardSet::begin_load(const ModelIdentity& identity, const engine::ShardSpec& spec) {
  const std::lock_guard lock(mutex_);
  for (const Entry& held : entries_) {
    const auto& has = held.figures.spec;
    if (held.figures.status.model != identity) continue;
    if (held.shard == nullptr && has == spec) {
      return error(StatusCode::kAlreadyExists, "layers {} are being loaded already", to_string(spec.range));
    }
    if (held.shard != nullptr && has == spec && held.figures.status.state == wire::ShardState::kReady)
      return false;
  }
  Entry fresh;
  fresh.figures.spec = spec;
  fresh.figures.status = {identity, spec.range, wire::ShardState::kLoading, 0, 0};
  entries_.push_back(std::move(fresh));
  return true;
}

ShardSet::Entry* ShardSet::entry(const ModelIdentity& identity, const engine::ShardSpec& spec) {
  for (Entry& held : entries_) {
    if (held.shard == nullptr && held.figures.status.model == identity && held.figures.spec == spec)
      return &held;
  }
  return nullptr;
}

void ShardSet::note_progress(const ModelIdentity& identity, const engine::ShardSpec& spec, std::uint64_t done,
                             std::uint64_t total) {
  const std::lock_guard lock(mutex_);
  if (Entry* loading = entry(identity, spec)) {
    loading->figures.status.bytes_done = done;
    loading->figures.status.bytes_total = total;
  }
}

void ShardSet::note_part(const engine::ShardSpec& spec, ShardPtr part) {
  const std::lock_guard lock(mutex_);
  if (Entry* loading = entry(part->identity(), spec)) {
    loading->figures.status.ready = part->spec().range;
    loading->part = std::move(part);
  }
}

void ShardSet::finish_load(ShardPtr shard) {
  const std::lock_guard lock(mutex_);
  if (Entry* loading = entry(shard->identity(), shard->spec())) {
    auto& status = loading->figures.status;
    status.state = wire::ShardState::kReady;
    status.bytes_total = std::max(status.bytes_total, shard->bytes());
    status.bytes_done = status.bytes_total;
    status.ready = {};
    loading->figures.memory_bytes = shard->bytes();
    loading->shard = std::move(shard);
    loading->part = nullptr;
  }
}

std::vector<ShardSet::Entry> ShardSet::take_out(const std::function<bool(const Entry&)>& which) {
  const std::lock_guard lock(mutex_);
  const auto stays = std::stable_partition(entries_.begin(), entries_.end(), std::not_fn(which));
  std::vector<Entry> taken(std::make_move_iterator(stays), std::make_move_iterator(entries_.end()));
  entries_.erase(stays, entries_.end());
  return taken;
}

void ShardSet::abandon_load(const ModelIdentity& identity, const engine::ShardSpec& spec) {
  take_out([&](const Entry& held) {
    return held.shard == nullptr && held.figures.status.model == identity && held.figures.spec == spec;
  });
}

ShardSet::ShardPtr ShardSet::find_in(const ModelIdentity& identity, const LayerRange& range, bool takes_ids,
                                     bool draining) const {
  const std::lock_guard lock(mutex_);
  ShardPtr part, leaving;
  for (const Entry& held : entries_) {
    const engine::Shard* const shard = held.running();
    if (shard == nullptr || held.figures.status.model != identity) continue;
    if (!can_run(shard->profile(), shard->spec(), range, takes_ids)) continue;
    if (held.shard == nullptr) {
      part = held.part;
    } else if (held.figures.status.state == wire::ShardState::kReady) {
      return held.shard;
    } else if (draining) {
      leaving = held.shard;
    }
  }
  return part != nullptr ? part : leaving;
}

ShardSet::ShardPtr ShardSet::find(const ModelIdentity& identity, const LayerRange& range,
                                  bool takes_ids) const {
  return find_in(identity, range, takes_ids, true);
}

ShardSet::ShardPtr ShardSet::find_open(const ModelIdentity& identity, const LayerRange& range,
                                       bool takes_ids) const {
  return find_in(identity, range, takes_ids, false);
}

StatusOr<engine::ModelProfile> ShardSet::profile(const ModelIdentity& identity) const {
  const std::lock_guard lock(mutex_);
  for (const Entry& held : entries_) {
    const engine::Shard* const shard = held.running();
    if (shard != nullptr && held.figures.status.model == identity) return shard->profile();
  }
  return error(StatusCode::kNotFound, "no shard of model {} is loaded here", identity.hex());
}

std::uint64_t ShardSet::widest_cache(engine::WeightFormat format) const {
  const std::lock_guard lock(mutex_);
  std::uint64_t widest = 0;
  for (const Entry& held : entries_) {
    const engine::Shard* const shard = held.running();
    if (shard == nullptr) continue;
    const LayerRange& range = shard->spec().range;
    for (std::uint32_t layer = range.begin; layer < range.end; ++layer) {
      widest = std::max(widest, shard->profile().kv_bytes_per_token({layer, layer + 1}, format));
    }
  }
  return widest;
}

Status ShardSet::begin_drain(const ModelIdentity& identity, const LayerRange& range) {
  const std::lock_guard lock(mutex_);
  std::string held_ranges;
  bool found = false;
  for (Entry& held : entries_) {
    if (held.shard == nullptr || held.figures.status.model != identity) continue;
    if (held.figures.spec.range == range) {
      held.figures.status.state = wire::ShardState::kDraining;
      found = true;
    }
    held_ranges += " " + to_string(held.figures.spec.range);
  }
  if (found) return absl::OkStatus();
  return error(StatusCode::kNotFound, "no shard has exactly layers {}; held:{}", to_string(range),
               held_ranges.empty() ? " none" : held_ranges);
}

void ShardSet::remove(const ModelIdentity& identity, const LayerRange& range) {
  take_out([&](const Entry& held) {
    return held.figures.status.state == wire::ShardState::kDraining &&
           held.figures.status.model == identity && held.figures.spec.range == range;
  });
}

void ShardSet::note_step(const ModelIdentity& identity, const LayerRange& range, wire::Lane lane,
                         std::uint32_t rows, Duration took) {
  const std::lock_guard lock(mutex_);
  for (Entry& held : entries_) {
    if (held.running() == nullptr || held.figures.status.model != identity) continue;
    if (!held.running()->spec().range.contains(range)) continue;
    ShardFigures& figures = held.figures;
    ++figures.steps;
    figures.rows += rows;
    const double seconds = seconds_of(took);
    if (lane == wire::Lane::kDecode) {
      average(figures.decode_seconds, seconds);
    } else if (rows > 0) {
      average(figures.prefill_seconds, seconds * kPrefillRows / rows);
    }
    return;
  }
}

std::vector<wire::ShardStatus> ShardSet::statuses() const {
  const std::lock_guard lock(mutex_);
  std::vector<wire::ShardStatus> statuses;
  for (const Entry& held : entries_) statuses.push_back(held.figures.status);
  return statuses;
}

std::vector<ShardFigures> ShardSet::figures() const {
  const std::lock_guard lock(mutex_);
  std::vector<ShardFigures> all;
  for (const Entry& held : entries_) all.push_back(held.figures);
  return all;
}

}  // namespace mesh
