#include "node/tools/session_group.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

namespace mesh::tools {

using engine::Segment;
using engine::SegmentResult;
using engine::Want;

StatusOr<std::unique_ptr<SessionGroup>> SessionGroup::open(engine::Engine& engine,
                                                           std::shared_ptr<const engine::Shard> shard,
                                                           std::vector<LayerRange> ranges,
                                                           std::size_t sessions, Position max_positions) {
  std::unique_ptr<SessionGroup> group(new SessionGroup(engine, std::move(shard), std::move(ranges)));
  for (std::size_t i = 0; i < sessions; ++i) {
    Session& session = group->sessions_.emplace_back();
    session.feed = group->token(i);
    for (const LayerRange& range : group->ranges_) {
      MESH_ASSIGN_OR_RETURN(const engine::CacheId cache,
                            engine.open_cache(group->shard_, range, max_positions));
      session.caches.push_back(cache);
    }
  }
  return group;
}

SessionGroup::~SessionGroup() {
  for (const Session& session : sessions_) {
    for (const engine::CacheId cache : session.caches) engine_.close_cache(cache);
  }
}

TokenId SessionGroup::token(std::size_t seed) const {
  return static_cast<TokenId>((seed * 2654435761u + 12345u) % shard_->profile().vocab);
}

/// Hidden states instead of ids: values between −1 and 1 that follow from the ids.
void SessionGroup::set_input(Segment& segment, std::vector<TokenId> ids) const {
  segment.rows = static_cast<std::uint32_t>(ids.size());
  if (fed_ids()) {
    segment.ids = std::move(ids);
    return;
  }
  const std::size_t width = shard_->profile().hidden;
  segment.hidden.resize(ids.size() * width * sizeof(std::uint16_t));
  for (std::size_t i = 0; i < ids.size() * width; ++i) {
    const auto noise =
        static_cast<std::uint32_t>((i + 1) * 2654435761u + static_cast<std::size_t>(ids[i / width])) >> 16;
    const float value = static_cast<float>(noise) / 32768 - 1;
    const auto bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
    std::memcpy(&segment.hidden[i * sizeof bits], &bits, sizeof bits);
  }
}

StatusOr<std::vector<SegmentResult>> SessionGroup::run(const std::vector<std::size_t>& which,
                                                       std::vector<Segment> inputs, bool sample) {
  std::vector<SegmentResult> results;
  for (std::size_t stage = 0; stage < ranges_.size(); ++stage) {
    const bool tail = stage + 1 == ranges_.size();
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      Segment& segment = inputs[i];
      segment.cache = sessions_[which[i]].caches[stage];
      segment.want = !tail ? Want::kHidden : sample && samples() ? Want::kTokens : Want::kNothing;
      if (stage == 0) continue;
      segment.ids.clear();
      segment.hidden = std::move(results[i].hidden);
    }
    MESH_ASSIGN_OR_RETURN(results, engine_.step(shard_, ranges_[stage], inputs));
    for (const SegmentResult& result : results) MESH_RETURN_IF_ERROR(result.status);
  }
  return results;
}

Status SessionGroup::prefill(Position tokens, std::uint32_t chunk) {
  for (std::size_t i = 0; i < sessions_.size(); ++i) {
    for (Position at = 0; at < tokens; at += chunk) {
      Segment segment;
      segment.start = at;
      std::vector<TokenId> ids(std::min<std::size_t>(chunk, tokens - at));
      for (std::size_t k = 0; k < ids.size(); ++k) ids[k] = token(i * 7919 + at + k);
      set_input(segment, std::move(ids));
      MESH_ASSIGN_OR_RETURN(const auto results, run({i}, {segment}, at + segment.rows == tokens));
      if (!results[0].tokens.empty()) sessions_[i].feed = results[0].tokens[0].id;
    }
  }
  position_ = tokens;
  return absl::OkStatus();
}

Status SessionGroup::decode() {
  std::vector<std::size_t> all(sessions_.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  std::vector<Segment> inputs(sessions_.size());
  for (std::size_t i = 0; i < sessions_.size(); ++i) {
    inputs[i].start = position_;
    set_input(inputs[i], {sessions_[i].feed});
  }
  MESH_ASSIGN_OR_RETURN(const auto results, run(all, std::move(inputs), true));
  for (std::size_t i = 0; i < sessions_.size(); ++i) {
    sessions_[i].feed = results[i].tokens.empty() ? token(sessions_[i].feed + 1) : results[i].tokens[0].id;
  }
  ++position_;
  return absl::OkStatus();
}

}  // namespace mesh::tools
