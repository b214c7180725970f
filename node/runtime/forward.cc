#include "node/runtime/forward.h"

#include <algorithm>
#include <utility>

#include "common/base/kv_blocks.h"

namespace mesh {
namespace {

constexpr std::uint64_t kMaxLogits = std::uint64_t{16} << 20;

Status check_input(const ForwardRequest& request, const engine::ModelProfile& profile) {
  const std::uint64_t row_bytes = std::uint64_t{profile.hidden} * 2;
  if (request.ids.empty() == request.hidden.empty()) {
    return error(StatusCode::kInvalidArgument, "a forward takes either token ids or hidden states");
  }
  if (request.rows == 0) return error(StatusCode::kInvalidArgument, "a forward needs at least one row");
  if (!request.ids.empty() && request.ids.size() != request.rows) {
    return error(StatusCode::kInvalidArgument, "{} ids for {} rows", request.ids.size(), request.rows);
  }
  if (!request.hidden.empty() && request.hidden.size() != request.rows * row_bytes) {
    return error(StatusCode::kInvalidArgument, "{} rows of {} bf16 values take {} bytes, the body has {}",
                 request.rows, profile.hidden, request.rows * row_bytes, request.hidden.size());
  }
  if (!request.positions.empty() && request.positions.size() != request.rows) {
    return error(StatusCode::kInvalidArgument, "{} positions for {} rows", request.positions.size(),
                 request.rows);
  }
  if (request.want_logits && std::uint64_t{request.rows} * profile.vocab > kMaxLogits) {
    return error(StatusCode::kInvalidArgument, "logits of {} rows are too many: at most {} values",
                 request.rows, kMaxLogits);
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<ForwardSessions::Session> ForwardSessions::open(const std::shared_ptr<const engine::Shard>& shard,
                                                         const ForwardRequest& request, Position positions) {
  Session session;
  session.range = request.range;
  session.identity = request.identity;
  session.bytes =
      kv_blocks(positions) * kKvBlockTokens * engine_.cache_bytes_per_token(*shard, request.range);
  session.promise = engine_.promise_caches();
  bytes_ += session.bytes;  // before it is promised: openings never find more free than there is
  Status status = session.promise->resize(session.bytes);
  if (status.ok()) {
    auto cache = engine_.open_cache(shard, request.range, positions);
    if (cache.ok()) {
      session.cache = *cache;
      return session;
    }
    status = cache.status();
  }
  bytes_ -= session.bytes;
  return status;
}

void ForwardSessions::close(const Session& session) {
  engine_.close_cache(session.cache);
  session.promise->resize(0).IgnoreError();
  bytes_ -= session.bytes;  // last: openings are told of no more than they can be promised
}

void ForwardSessions::end_idle(TimePoint now) {
  std::erase_if(sessions_, [&](const auto& item) {
    if (item.second.used + kIdle > now) return false;
    close(item.second);
    return true;
  });
}

StatusOr<ForwardReply> ForwardSessions::run(const std::shared_ptr<const engine::Shard>& shard,
                                            ForwardRequest request, TimePoint now) {
  const engine::ModelProfile& profile = shard->profile();
  MESH_RETURN_IF_ERROR(check_input(request, profile));
  end_idle(now);
  const bool named = !request.session.empty();
  const auto known = named ? sessions_.find(request.session) : sessions_.end();
  Session session;
  if (known != sessions_.end()) {
    session = known->second;
    if (session.range != request.range || session.identity != request.identity) {
      return error(StatusCode::kInvalidArgument, "session {} runs layers {}", request.session,
                   to_string(session.range));
    }
  } else {
    if (named && sessions_.size() >= kMost) {
      return error(StatusCode::kResourceExhausted, "{} sessions are open; they end {} s after their last use",
                   kMost, std::chrono::duration_cast<std::chrono::seconds>(kIdle).count());
    }
    const Position room =
        named ? std::max<Position>(request.rows, std::min<Position>(profile.max_positions, 4096))
              : request.rows;
    MESH_ASSIGN_OR_RETURN(session, open(shard, request, room));
    if (named) sessions_[request.session] = session;
  }
  const bool tail = request.range.end == profile.layer_count();
  const std::uint32_t row_bytes = profile.hidden * 2;
  ForwardReply reply;
  Status status;
  for (std::uint32_t done = 0; done < request.rows && status.ok();) {
    // A mask covers the whole input, so it must fit one segment; without one the rows go in chunks.
    const std::uint32_t rows = std::min<std::uint32_t>(request.rows - done, engine::kMaxSegmentRows);
    if (request.mask && rows != request.rows) {
      status = error(StatusCode::kInvalidArgument, "a mask takes at most {} rows", engine::kMaxSegmentRows);
      break;
    }
    engine::Segment segment;
    segment.cache = session.cache;
    segment.start = session.next;
    segment.rows = rows;
    if (request.ids.empty()) {
      segment.hidden = request.hidden.substr(std::size_t{done} * row_bytes, std::size_t{rows} * row_bytes);
    } else {
      segment.ids.assign(request.ids.begin() + done, request.ids.begin() + done + rows);
    }
    if (!request.positions.empty()) {
      segment.rotary_positions.assign(request.positions.begin() + done,
                                      request.positions.begin() + done + rows);
    }
    segment.mask = std::move(request.mask);
    segment.want = engine::Want::kHidden;
    auto results = engine_.step(shard, request.range, std::span(&segment, 1));
    if (tail && results.ok() && results->front().status.ok()) {
      // Hidden states and tokens are two wants: the second step trims to `start` and computes the same again.
      reply.hidden += results->front().hidden;
      segment.want = engine::Want::kTokens;
      segment.want_logits = request.want_logits;
      for (std::uint32_t row = 0; row < rows; ++row) segment.sample_rows.push_back(row);
      results = engine_.step(shard, request.range, std::span(&segment, 1));
    }
    status = results.ok() ? results->front().status : results.status();
    if (!status.ok()) break;
    engine::SegmentResult& result = results->front();
    reply.hidden += result.hidden;
    for (const engine::SampledToken& token : result.tokens) {
      reply.ids.push_back(token.id);
      reply.logprobs.push_back(token.logprob);
    }
    reply.logits.insert(reply.logits.end(), result.logits.begin(), result.logits.end());
    session.next += rows;
    done += rows;
  }
  if (named && status.ok()) {
    session.used = now;
    sessions_[request.session] = session;
  } else {
    close(session);
    sessions_.erase(request.session);
  }
  if (!status.ok()) return status;
  reply.next = session.next;
  return reply;
}

}  // namespace mesh
