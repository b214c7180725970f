#include "node/pipeline/hop_table.h"

#include <algorithm>

#include "common/base/checked.h"
#include "node/pipeline/hop_impl.h"

namespace mesh::pipeline {
namespace {

using std::chrono::milliseconds;
using wire::AnswerCode;
using wire::OpenCode;

/// Bytes that an opening reserves; nothing on overflow.
struct Needs {
  std::uint64_t cache = 0;
  std::uint64_t inbound = 0;
};
std::optional<Needs> needs_of(const wire::OpenRequest& request, const ShardView& shard,
                              const HopOptions& options) {
  const std::uint64_t blocks =
      (std::uint64_t{request.max_tokens} + options.cache_block - 1) / options.cache_block;
  const auto cache = checked_mul<std::uint64_t>(blocks * options.cache_block, shard.cache_bytes_per_token);
  if (!cache) return std::nullopt;
  return Needs{*cache, std::uint64_t{options.window.rows} * shard.hidden_size * 2};
}

wire::OpenReply refusal(OpenCode code, std::string message) {
  wire::OpenReply reply;
  reply.code = code;
  reply.message = std::move(message);
  return reply;
}

bool fits_session(const wire::Segment& s, const HopSession& session) {
  const bool shape = session.request.takes_ids ? s.ids.size() == s.rows
                                               : s.hidden && s.hidden_size == session.shard.hidden_size;
  return shape && s.rows > 0 && s.range == session.request.range && s.identity == session.request.identity &&
         s.start <= session.request.max_tokens && s.rows <= session.request.max_tokens - s.start;
}

}  // namespace

Position HopSession::kept_from() const {
  if (is_tail()) {
    const bool will_sample = running && running->input.sample;
    const bool has = token && token->message.position == next;
    return next > 0 && (will_sample || has) ? next - 1 : next;
  }
  if (!kept.empty()) return kept.from();
  return running ? running->input.start : next;
}

HopSession* HopTable::Impl::find(const wire::HopKey& hop) {
  const auto at = sessions_.find(hop);
  return at == sessions_.end() ? nullptr : &at->second;
}

const HopSession* HopTable::Impl::find(const wire::HopKey& hop) const {
  const auto at = sessions_.find(hop);
  return at == sessions_.end() ? nullptr : &at->second;
}

HopSession* HopTable::Impl::find(const wire::HopKey& hop, Generation generation) {
  HopSession* session = find(hop);
  return session && session->request.generation == generation ? session : nullptr;
}

std::optional<wire::OpenReply> HopTable::Impl::refuse(const wire::OpenRequest& request,
                                                      const std::optional<ShardView>& shard) {
  const auto tombstone = tombstones_.find(request.session);
  if (tombstone != tombstones_.end() && request.generation <= tombstone->second.first) {
    return refusal(OpenCode::kClosed, "the session was closed here");
  }
  if (!shard) {
    return refusal(OpenCode::kShardNotHeld,
                   "layers " + to_string(request.range) + " of this model are not ready here");
  }
  if (shard->ends_model != request.tail.has_value() || request.next.has_value() == request.tail.has_value() ||
      request.max_tokens == 0 || (request.emit_from && *request.emit_from > request.max_tokens)) {
    return refusal(OpenCode::kBadRequest, "the last hop, and it alone, has a tail's set-up and no next hop");
  }
  if (request.prefix.size() > request.max_tokens / options_.cache_block ||
      (request.emit_from && !request.prefix.empty())) {
    return refusal(OpenCode::kBadRequest,
                   "an offer has keys for at most max_tokens and goes without emit_from");
  }
  if (request.max_tokens > shard->max_tokens) {
    return refusal(OpenCode::kBadRequest, fmt::format("{} tokens asked, the model's context is {}",
                                                      request.max_tokens, shard->max_tokens));
  }
  return std::nullopt;
}

HopSession& HopTable::Impl::create(const wire::OpenRequest& request, const ShardView& shard, TimePoint now) {
  const Needs needs = *needs_of(request, shard, options_);
  const CacheId cache = ++last_id_;
  // Who waits has come before.
  const bool fits = !room_.first_waiting() && room_.on_device() <= room_.device_bytes() &&
                    needs.cache <= room_.device_bytes() - room_.on_device();
  room_.add(cache, needs.cache, fits ? CacheRoom::Place::kDevice : CacheRoom::Place::kNowhere, now);
  owners_.emplace(cache, request.key());
  fit_prefixes();
  inbound_reserved_ += needs.inbound;
  HopSession& session =
      sessions_.emplace(request.key(), HopSession(request, shard, cache, options_.window, faults_))
          .first->second;
  if (fits) {
    begin_cache(session);
    room_.used(cache, session.next, host_bytes(session), now);
    follow_moves(cache);
  } else {
    session.prefix =
        request.range.empty() || !prefixes_.on() ? std::vector<wire::PrefixKey>{} : request.prefix;
  }
  return session;
}

std::optional<std::string> HopTable::Impl::no_room(const wire::OpenRequest& request,
                                                   const ShardView& shard) const {
  const auto needs = needs_of(request, shard, options_);
  if (!needs || !room_.takes(needs->cache)) {
    const std::uint64_t all = room_.device_bytes();
    const std::string beside =
        room_.host_bytes() == 0 ? "" : fmt::format(", beside {} of host memory", room_.host_bytes());
    return fmt::format("the cache of {} tokens needs {} bytes, {} of {} are free{}", request.max_tokens,
                       needs ? needs->cache : ~std::uint64_t{0}, all - std::min(all, room_.of_all()), all,
                       beside);
  }
  if (needs->inbound > options_.inbound_bytes - inbound_reserved_ ||
      sessions_.size() >= options_.max_sessions) {
    return fmt::format("{} sessions are open, no window is free", sessions_.size());
  }
  return std::nullopt;
}

wire::OpenReply HopTable::Impl::open(const wire::OpenRequest& request, const std::optional<ShardView>& shard,
                                     TimePoint now) {
  if (auto refused = refuse(request, shard)) return *refused;
  auto at = sessions_.find(request.key());
  if (at != sessions_.end()) {
    const wire::OpenRequest& old = at->second.request;
    if (request.generation < old.generation) {
      wire::OpenReply reply = refusal(OpenCode::kStaleGeneration, "a higher generation was opened");
      reply.cursor = at->second.cursor();
      return reply;
    }
    if (old.range != request.range || old.identity != request.identity ||
        old.takes_ids != request.takes_ids || old.max_tokens != request.max_tokens ||
        old.tail.has_value() != request.tail.has_value()) {
      end(at);
      at = sessions_.end();
    }
  }
  const bool fresh = at == sessions_.end();
  if (fresh) {
    if (draining) return refusal(OpenCode::kDraining, "the node is leaving and takes no new sessions");
    if (auto why = no_room(request, *shard)) return refusal(OpenCode::kNoRoom, *std::move(why));
  }
  HopSession& session = fresh ? create(request, *shard, now) : at->second;
  session.lease_until = now + milliseconds(request.lease_ms);
  leases_.set(session.key(), session.lease_until);
  if (fresh || request.generation > session.request.generation) reopen(session, request);
  if (request.emit_from && session.outbound.held()) {
    session.request.emit_from = request.emit_from;
    begin_emitting(session, now);
  }
  return {OpenCode::kOpened, session.cursor(), options_.window, session.kept_from(), ""};
}

void HopTable::Impl::reopen(HopSession& session, const wire::OpenRequest& request) {
  leave_links(session);
  session.request = request;
  session.inbound.restart(session.next);
  session.outbound.restart();
  session.reports.clear();
  session.failing_since.reset();
  session.mac_failures = 0;
  tokens_due_.clear(session.key());
  reports_due_.clear(session.key());
  asks_due_.clear(session.key());
  update_waiting(session);
}

void HopTable::Impl::begin_emitting(HopSession& session, TimePoint now) {
  const Position from = *session.request.emit_from;
  session.outbound.set_emit_from(from);
  if (session.is_tail()) {
    session.tail_emit_from = from;
    const bool kept = session.token && session.token->message.position == session.next && session.next > from;
    if (session.token) session.token->message.generation = session.request.generation;
    if (kept && !faults_.forget_tokens) {
      session.token->settled = false;
      token_due(session, now);
    }
    return;
  }
  // Rows below what is kept must be computed again first: then everything is sent as it comes out.
  if (session.kept.empty() || from < session.kept.from()) return;
  for (wire::Segment& segment : session.kept.resend_from(from, options_.replay_rows)) {
    segment.lane = segment.rows > 1 ? wire::Lane::kBulk : segment.lane;
    counts_.resent_rows += segment.rows;
    session.outbound.push(segment, std::nullopt, segment.lane == wire::Lane::kBulk);
  }
  update_links(session, now);
}

void HopTable::Impl::end(Sessions::iterator at) {
  HopSession& session = at->second;
  leave_links(session);
  const wire::HopKey key = session.key();
  if (session.waiting_order) {
    for (auto& lane : waiting_) lane.erase(*session.waiting_order);
  }
  for (auto* due : {&leases_, &asks_due_, &tokens_due_, &reports_due_}) due->clear(key);
  kept_ -= session.kept.bytes();
  inbound_reserved_ -= std::uint64_t{options_.window.rows} * session.shard.hidden_size * 2;
  release(session.cache);
  sessions_.erase(at);
}

/// A step that still has it is carried out before.
void HopTable::Impl::release(CacheId cache) {
  room_.remove(cache);
  owners_.erase(cache);
  orders_.emplace_back(FreeCache{cache});
}

void HopTable::Impl::close(const wire::CloseRequest& request, TimePoint now) {
  auto& tombstone = tombstones_[request.session];
  tombstone.first = std::max(tombstone.first, request.generation);
  tombstone.second = now + options_.tombstone;
  for (auto at = sessions_.lower_bound({request.session, 0}); at != sessions_.end();) {
    if (at->first.session != request.session) break;
    const auto here = at++;
    if (here->second.request.generation <= request.generation) end(here);
  }
}

wire::CursorsReply HopTable::Impl::cursors(const wire::CursorsRequest& request) const {
  wire::CursorsReply reply;
  for (const wire::HopKey& hop : request.hops) {
    const HopSession* session = find(hop);
    reply.hops.push_back(session ? wire::CursorEntry{hop, true, session->cursor(), session->kept_from(),
                                                     session->computed(), room_.waits(session->cache)}
                                 : wire::CursorEntry{hop, false, {}, 0, 0, false});
  }
  return reply;
}

wire::RenewReply HopTable::Impl::renew(const wire::RenewRequest& request, TimePoint now) {
  wire::RenewReply reply;
  for (const SessionId& id : request.sessions) {
    bool known = false;
    for (auto at = sessions_.lower_bound({id, 0}); at != sessions_.end() && at->first.session == id; ++at) {
      known = true;
      at->second.lease_until = now + milliseconds(request.lease_ms);
      leases_.set(at->first, at->second.lease_until);
    }
    if (!known) reply.unknown.push_back(id);
  }
  return reply;
}

std::optional<SessionKeys> HopTable::Impl::keys(const wire::HopKey& hop) const {
  const HopSession* session = find(hop);
  if (!session) return std::nullopt;
  return SessionKeys{session->request.generation, session->request.secret};
}

wire::SegmentAnswer HopTable::Impl::accept(wire::Segment segment, TimePoint now) {
  wire::SegmentAnswer answer{segment.key(), segment.seq, AnswerCode::kAccepted, {}};
  HopSession* session = find(segment.key());
  if (!session) {
    const auto tombstone = tombstones_.find(segment.session);
    const bool closed = tombstone != tombstones_.end() && segment.generation <= tombstone->second.first;
    answer.code = closed ? AnswerCode::kClosed : AnswerCode::kUnknownSession;
    ++counts_.refused;
    return answer;
  }
  if (segment.generation < session->request.generation && !faults_.ignore_generation) {
    answer.code = AnswerCode::kStaleGeneration;
  } else if (segment.generation > session->request.generation) {
    answer.code = AnswerCode::kNotOpenedYet;
  } else if (!fits_session(segment, *session)) {
    answer.code = AnswerCode::kBadSegment;
  } else {
    bool duplicate = false;
    answer.code = session->inbound.accept(std::move(segment), now, &duplicate);
    if (duplicate) ++counts_.duplicates;
  }
  answer.cursor = session->cursor();
  if (answer.code != AnswerCode::kAccepted) {
    ++counts_.refused;
    return answer;
  }
  if (session->inbound.broken()) {
    report(*session, wire::ReportCode::kStepFailed, "a segment that waited leaves a hole in the session",
           now);
  }
  session->lease_until = std::max(session->lease_until, now + milliseconds(session->request.lease_ms));
  leases_.set(session->key(), session->lease_until);
  update_waiting(*session);
  return answer;
}

void HopTable::Impl::tick(TimePoint now) {
  while (const auto hop = leases_.first_due(now)) end(sessions_.find(*hop));
  std::erase_if(tombstones_, [&](const auto& entry) { return entry.second.second <= now; });
  std::erase_if(paces_, [&](const auto& entry) { return entry.second.forgotten(now); });
}

std::optional<TimePoint> HopTable::Impl::next_wakeup() const {
  std::optional<TimePoint> first;
  const auto consider = [&](std::optional<TimePoint> when) {
    if (when && (!first || *when < *first)) first = when;
  };
  for (const auto* due : {&leases_, &asks_due_, &tokens_due_, &reports_due_}) consider(due->earliest());
  if (steps_.empty()) consider(turn_ends_);  // else the step's end comes first
  for (const auto& [key, link] : links_) {
    if (!link.waiting.empty() && link.in_flight == 0 && link.backoff > Duration{}) consider(link.not_before);
    if (!link.waiting.empty()) consider(link.replay_held);
  }
  return first;
}

HopStats HopTable::Impl::stats() const {
  HopStats stats = counts_;
  stats.sessions = sessions_.size();
  stats.steps_running = steps_.size();
  stats.cache_bytes = room_.on_device();
  stats.spilled_bytes = room_.on_host();
  stats.spilled_caches = room_.caches_on_host();
  stats.inbound_bytes = inbound_reserved_;
  stats.kept_bytes = kept_;
  stats.prefix_bytes = prefixes_.bytes();
  stats.prefix_blocks = prefixes_.layer_blocks();
  stats.prefix_evictions = prefixes_.evicted();
  for (const auto& [key, session] : sessions_) stats.segments_waiting += session.inbound.waiting();
  return stats;
}

Duration HopTable::Impl::grown(Duration backoff) const {
  return backoff == Duration{} ? options_.retry_first : std::min(2 * backoff, options_.retry_last);
}

}  // namespace mesh::pipeline
