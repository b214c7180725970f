#include <algorithm>

#include "node/pipeline/hop_impl.h"

namespace mesh::pipeline {
namespace {

using std::chrono::milliseconds;
using wire::AnswerCode;
using wire::Lane;
using wire::ReportCode;

constexpr Lane kLanes[] = {Lane::kDecode, Lane::kBulk};
constexpr int kMacFailures = 3;  // a frame may be damaged on its way; the same one thrice is not chance

/// Milliseconds left until `deadline`, at least 1; 0 stands for none.
std::uint32_t left(std::optional<TimePoint> deadline, TimePoint now) {
  if (!deadline) return 0;
  const auto ms = std::chrono::duration_cast<milliseconds>(*deadline - now).count();
  return static_cast<std::uint32_t>(std::clamp<decltype(ms)>(ms, 1, 0xffff'ffff));
}

}  // namespace

void HopTable::Impl::update_links(HopSession& session, TimePoint now) {
  if (!session.request.next) return;
  for (const Lane lane : kLanes) {
    const LinkKey key{session.request.next->url, lane};
    if (session.outbound.waits(lane)) {
      Link& link = links_[key];
      link.node = session.request.next->node;
      link.waiting.insert(session.key());
    } else if (const auto at = links_.find(key); at != links_.end()) {
      at->second.waiting.erase(session.key());
    }
  }
  if (!session.outbound.blocked()) {
    asks_due_.clear(session.key());
    session.ask_backoff = {};
  } else if (!asks_due_.contains(session.key())) {
    session.ask_backoff = grown(session.ask_backoff);
    asks_due_.set(session.key(), now + session.ask_backoff);
  }
}

void HopTable::Impl::leave_links(const HopSession& session) {
  if (!session.request.next) return;
  for (const Lane lane : kLanes) {
    const auto at = links_.find({session.request.next->url, lane});
    if (at == links_.end()) continue;
    at->second.waiting.erase(session.key());
    if (at->second.waiting.empty() && at->second.in_flight == 0) links_.erase(at);
  }
}

/// Segments of one kind, replay or not (sent.replay), from each session in turn.
void HopTable::Impl::fill(Link& link, OutFrame& frame, SentFrame& sent, std::size_t most_segments,
                          TimePoint now) {
  std::uint64_t bytes = 0;
  std::vector<wire::HopKey> order(link.waiting.begin(), link.waiting.end());
  if (link.last_served) {
    std::rotate(order.begin(), std::upper_bound(order.begin(), order.end(), *link.last_served), order.end());
  }
  for (const wire::HopKey& hop : order) {
    HopSession& session = sessions_.at(hop);
    while (frame.segments.size() < most_segments && bytes < options_.max_frame_bytes) {
      const Outbound::Item* item = session.outbound.next_to_send(frame.lane, sent.replay);
      if (!item) break;
      wire::Segment segment = item->segment;
      segment.generation = session.request.generation;
      segment.range = session.request.next->range;
      segment.deadline_ms = left(item->deadline, now);
      bytes += segment.raw_bytes();
      sent.segments.push_back({session.key(), segment.generation, segment.seq});
      frame.segments.push_back({std::move(segment), session.request.secret});
      link.last_served = hop;
    }
  }
}

std::optional<OutFrame> HopTable::Impl::next_frame(TimePoint now) {
  if (links_.empty()) return std::nullopt;
  auto at = last_link_ ? links_.upper_bound(*last_link_) : links_.begin();
  for (std::size_t tried = 0; tried < links_.size(); ++tried, ++at) {
    if (at == links_.end()) at = links_.begin();
    auto& [key, link] = *at;
    link.replay_held.reset();
    const std::size_t limit = link.backoff == Duration{} ? options_.frames_in_flight : 1;
    if (link.waiting.empty() || link.in_flight >= limit || link.not_before > now) continue;
    OutFrame frame{++last_id_, link.node, key.first, key.second, {}};
    SentFrame sent{key, {}, now};
    fill(link, frame, sent, options_.max_frame_segments, now);
    ReplayPace& pace = paces_[key.first];
    if (frame.segments.empty() && pace.may_replay(now)) {
      sent.replay = true;
      fill(link, frame, sent, pace.busy(now) ? 1 : options_.max_frame_segments, now);
    }
    if (frame.segments.empty()) {
      link.backoff = {};  // all wait for credit or for their share: there is nothing to retry
      const bool replays = std::any_of(
          link.waiting.begin(), link.waiting.end(),
          [&](const wire::HopKey& hop) { return sessions_.at(hop).outbound.replays_next(key.second); });
      if (replays) link.replay_held = pace.resumes(now);
      continue;
    }
    sent.replay ? pace.replay_sent() : pace.other_sent(now);
    for (const SentSegment& segment : sent.segments) update_links(sessions_.at(segment.hop), now);
    ++link.in_flight;
    last_link_ = key;
    frames_.emplace(frame.id, std::move(sent));
    return frame;
  }
  return std::nullopt;
}

void HopTable::Impl::frame_back(const SentFrame& sent, TimePoint now) {
  ReplayPace& pace = paces_[sent.link.first];
  sent.replay ? pace.replay_answered(now - sent.sent, now) : pace.other_answered(now - sent.sent, now);
}

void HopTable::Impl::stop_sending(HopSession& session, ReportCode code, std::string message, TimePoint now) {
  session.outbound.stop();
  report(session, code, std::move(message), now);
}

void HopTable::Impl::note_failure(HopSession& session, const std::string& message, TimePoint now) {
  if (!session.failing_since) session.failing_since = now;
  if (now - *session.failing_since < options_.neighbour_patience) return;
  report(session, ReportCode::kNextHopUnreachable, message, now);
}

void HopTable::Impl::answered(HopSession& session, const SentSegment& sent, const wire::SegmentAnswer& answer,
                              TimePoint now) {
  if (answer.code == AnswerCode::kAccepted) {
    session.outbound.accepted(sent.seq);
    session.failing_since.reset();
    session.mac_failures = 0;
  } else {
    session.outbound.put_back(sent.seq);
  }
  if (answer.cursor.generation == sent.generation) session.outbound.credit(answer.cursor);
  switch (answer.code) {
    case AnswerCode::kAccepted:
      return;
    case AnswerCode::kStaleGeneration:
      if (answer.cursor.generation <= sent.generation) return;  // damaged on the way
      [[fallthrough]];
    case AnswerCode::kClosed:
      session.outbound.stop();  // the head has gone on without us, and knows
      return;
    case AnswerCode::kUnknownSession:
      return stop_sending(session, ReportCode::kNextHopRefuses, "the next hop does not know the session",
                          now);
    case AnswerCode::kGap:
    case AnswerCode::kBadSegment:
      return stop_sending(session, ReportCode::kNextHopRefuses, "the next hop refuses the segments", now);
    case AnswerCode::kDeadline:
      return stop_sending(session, ReportCode::kDeadline, "the next hop got a segment too late", now);
    case AnswerCode::kBadMac:
      if (++session.mac_failures < kMacFailures) return;
      return stop_sending(session, ReportCode::kNextHopRefuses, "the next hop finds every MAC wrong", now);
    case AnswerCode::kWindow:
    case AnswerCode::kNotOpenedYet:
      return note_failure(session, "the next hop takes no segments", now);
  }
}

void HopTable::Impl::frame_answered(std::uint64_t id, const std::vector<wire::SegmentAnswer>& answers,
                                    TimePoint now) {
  const auto at = frames_.find(id);
  if (at == frames_.end()) return;
  if (answers.size() != at->second.segments.size()) {
    frame_failed(
        id,
        error(StatusCode::kInternal, "{} answers to {} segments", answers.size(), at->second.segments.size()),
        now);
    return;
  }
  const SentFrame sent = std::move(at->second);
  frames_.erase(at);
  frame_back(sent, now);
  bool again = false;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    HopSession* session = find(sent.segments[i].hop, sent.segments[i].generation);
    if (!session) continue;
    const wire::HopKey there{session->request.session, session->request.next->range.begin};
    if (answers[i].seq != sent.segments[i].seq || answers[i].hop != there) {
      session->outbound.put_back(sent.segments[i].seq);
      note_failure(*session, "the next hop answers for other segments", now);
      again = true;
    } else {
      answered(*session, sent.segments[i], answers[i], now);
      again = again || answers[i].code == AnswerCode::kWindow ||
              answers[i].code == AnswerCode::kNotOpenedYet || answers[i].code == AnswerCode::kBadMac;
    }
    update_links(*session, now);
  }
  const auto link = links_.find(sent.link);
  if (link == links_.end()) return;
  --link->second.in_flight;
  link->second.backoff = again ? grown(link->second.backoff) : Duration{};
  link->second.not_before = now + link->second.backoff;
  if (link->second.waiting.empty() && link->second.in_flight == 0) links_.erase(link);
}

void HopTable::Impl::frame_failed(std::uint64_t id, const Status& status, TimePoint now) {
  const auto at = frames_.find(id);
  if (at == frames_.end()) return;
  const SentFrame sent = std::move(at->second);
  frames_.erase(at);
  frame_back(sent, now);
  for (const SentSegment& segment : sent.segments) {
    HopSession* session = find(segment.hop, segment.generation);
    if (!session) continue;
    session->outbound.put_back(segment.seq);
    note_failure(*session, std::string(message_of(status)), now);
    update_links(*session, now);
  }
  const auto link = links_.find(sent.link);
  if (link == links_.end()) return;
  --link->second.in_flight;
  link->second.backoff = grown(link->second.backoff);
  link->second.not_before = now + link->second.backoff;
  if (link->second.waiting.empty() && link->second.in_flight == 0) links_.erase(link);
}

std::optional<OutAsk> HopTable::Impl::next_ask(TimePoint now) {
  const auto first = asks_due_.first_due(now);
  if (!first) return std::nullopt;
  const wire::HopAddress to = *sessions_.at(*first).request.next;
  OutAsk ask{++last_id_, to.node, to.url, {}};
  std::vector<wire::HopKey> others;
  while (ask.request.hops.size() < wire::kMaxSessionsPerMessage) {
    const auto due = asks_due_.first_due(now);
    if (!due) break;
    const HopSession& session = sessions_.at(*due);
    asks_due_.clear(*due);
    if (session.request.next->url != to.url) {
      others.push_back(*due);
      continue;
    }
    ask.request.hops.push_back({session.request.session, session.request.next->range.begin});
    asks_[ask.id].emplace_back(*due, session.request.generation);
  }
  for (const wire::HopKey& other : others) asks_due_.set(other, now);
  return ask;
}

void HopTable::Impl::ask_answered(std::uint64_t id, const wire::CursorsReply& reply, TimePoint now) {
  const auto at = asks_.find(id);
  if (at == asks_.end()) return;
  const auto asked = std::move(at->second);
  asks_.erase(at);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    HopSession* session = find(asked[i].first, asked[i].second);
    if (!session) continue;
    const auto entry = std::find_if(reply.hops.begin(), reply.hops.end(), [&](const wire::CursorEntry& e) {
      return session->request.next &&
             e.hop == wire::HopKey{session->request.session, session->request.next->range.begin};
    });
    if (entry != reply.hops.end() && !entry->known) {
      stop_sending(*session, ReportCode::kNextHopRefuses, "the next hop does not know the session", now);
    } else if (entry != reply.hops.end() && entry->cursor.generation == asked[i].second) {
      session->outbound.credit(entry->cursor);
    }
    update_links(*session, now);
  }
}

void HopTable::Impl::ask_failed(std::uint64_t id, TimePoint now) {
  const auto at = asks_.find(id);
  if (at == asks_.end()) return;
  for (const auto& [hop, generation] : at->second) {
    if (HopSession* session = find(hop, generation)) {
      note_failure(*session, "the next hop does not answer", now);
      update_links(*session, now);
    }
  }
  asks_.erase(at);
}

}  // namespace mesh::pipeline
