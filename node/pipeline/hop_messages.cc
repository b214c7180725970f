#include "node/pipeline/hop_impl.h"

namespace mesh::pipeline {

void HopTable::Impl::token_due(HopSession& session, TimePoint when) {
  tokens_due_.set(session.key(), when);
}

std::optional<OutTokens> HopTable::Impl::next_tokens(TimePoint now) {
  const auto first = tokens_due_.first_due(now);
  if (!first) return std::nullopt;
  OutTokens out{++last_id_, sessions_.at(*first).request.head_url, {}};
  std::vector<wire::HopKey> others;
  while (out.tokens.size() < wire::kMaxTokensPerMessage) {
    const auto due = tokens_due_.first_due(now);
    if (!due) break;
    HopSession& session = sessions_.at(*due);
    if (session.request.head_url != out.head_url) {
      tokens_due_.clear(*due);
      others.push_back(*due);
      continue;
    }
    out.tokens.push_back({session.token->message, session.request.secret});
    token_messages_[out.id].push_back({*due, session.request.generation, session.token->message.position});
    tokens_due_.set(*due, now + options_.token_repeat);
    if (faults_.forget_tokens) tokens_due_.clear(*due);
  }
  for (const wire::HopKey& other : others) tokens_due_.set(other, now);
  return out;
}

void HopTable::Impl::tokens_answered(std::uint64_t id, const std::vector<wire::TokenAnswer>& answers,
                                     TimePoint now) {
  const auto at = token_messages_.find(id);
  if (at == token_messages_.end()) return;
  const auto sent = std::move(at->second);
  token_messages_.erase(at);
  for (std::size_t i = 0; i < sent.size() && i < answers.size(); ++i) {
    HopSession* session = find(sent[i].hop, sent[i].generation);
    if (!session || !session->token || session->token->message.position != sent[i].position) continue;
    head_backoff_.erase(session->request.head_url);
    switch (answers[i].code) {
      case wire::TokenCode::kTaken:
      case wire::TokenCode::kUnknownSession:
      case wire::TokenCode::kStaleGeneration:
        session->token->settled = true;
        tokens_due_.clear(session->key());
        break;
      case wire::TokenCode::kNotAwaited:
      case wire::TokenCode::kBadMac:
        if (!session->token->settled && !faults_.forget_tokens)
          token_due(*session, now + options_.token_repeat);
        break;
    }
  }
}

void HopTable::Impl::tokens_failed(std::uint64_t id, TimePoint now) {
  const auto at = token_messages_.find(id);
  if (at == token_messages_.end()) return;
  const auto sent = std::move(at->second);
  token_messages_.erase(at);
  for (const SentToken& token : sent) {
    HopSession* session = find(token.hop, token.generation);
    if (!session || !session->token || session->token->message.position != token.position) continue;
    if (session->token->settled || faults_.forget_tokens) continue;
    Duration& backoff = head_backoff_[session->request.head_url];
    backoff = grown(backoff);
    token_due(*session, now + backoff);
  }
}

void HopTable::Impl::report(HopSession& session, wire::ReportCode code, std::string message, TimePoint now) {
  auto [at, fresh] = session.reports.try_emplace(code);
  PendingReport& pending = at->second;
  const bool known = !fresh && code != wire::ReportCode::kOutputsDropped;
  if (known) return;  // the head was told, or will be
  pending.report = {session.key(), session.request.generation, code, session.kept_from(), std::move(message)};
  pending.state = PendingReport::State::kDue;
  update_report_due(session, now);
}

void HopTable::Impl::update_report_due(HopSession& session, TimePoint when) {
  reports_due_.clear(session.key());
  for (const auto& [code, pending] : session.reports) {
    if (pending.state == PendingReport::State::kDue) reports_due_.set(session.key(), when);
  }
}

std::optional<OutReport> HopTable::Impl::next_report(TimePoint now) {
  while (const auto due = reports_due_.first_due(now)) {
    HopSession& session = sessions_.at(*due);
    for (auto& [code, pending] : session.reports) {
      if (pending.state != PendingReport::State::kDue) continue;
      pending.state = PendingReport::State::kSent;
      OutReport out{++last_id_, session.request.head_url, pending.report};
      reports_.emplace(out.id, std::pair(*due, pending.report));
      update_report_due(session, now);
      return out;
    }
    reports_due_.clear(*due);
  }
  return std::nullopt;
}

void HopTable::Impl::report_answered(std::uint64_t id) {
  const auto at = reports_.find(id);
  if (at == reports_.end()) return;
  const auto [hop, report] = std::move(at->second);
  reports_.erase(at);
  HopSession* session = find(hop, report.generation);
  if (!session) return;
  PendingReport& pending = session->reports.at(report.code);
  if (pending.state == PendingReport::State::kSent) pending.state = PendingReport::State::kDone;
}

void HopTable::Impl::report_failed(std::uint64_t id, TimePoint now) {
  const auto at = reports_.find(id);
  if (at == reports_.end()) return;
  const auto [hop, report] = std::move(at->second);
  reports_.erase(at);
  HopSession* session = find(hop, report.generation);
  if (!session) return;
  session->reports.at(report.code).state = PendingReport::State::kDue;
  Duration& backoff = head_backoff_[session->request.head_url];
  backoff = grown(backoff);
  update_report_due(*session, now + backoff);
}

}  // namespace mesh::pipeline
