#include "tracker/runtime/head_loop.h"

#include <algorithm>
#include <future>
#include <utility>

#include "common/base/check.h"
#include "common/identity/random.h"
#include "common/identity/sha256.h"
#include "common/net/error_response.h"
#include "common/wire/session_json.h"
#include "common/wire/token_codec.h"

namespace mesh::tracker {
namespace {

/// The head answers within microseconds; this bounds the wait when the program ends.
constexpr auto kHeadPatience = std::chrono::seconds(5);

}  // namespace

Status HeadLoop::stopping() {
  return error(StatusCode::kUnavailable, "the tracker is stopping");
}

class HeadLoop::Handle final : public gateway::Answer {
 public:
  Handle(HeadLoop& loop, Admissions::Ticket ticket, std::shared_ptr<AnswerQueue> queue)
      : loop_(loop), ticket_(ticket), queue_(std::move(queue)) {}
  ~Handle() override { close(); }

  std::optional<gateway::Event> next(TimePoint deadline) override { return queue_->next(deadline); }
  void interrupt() override { queue_->interrupt(); }
  void close() override {
    queue_->interrupt();
    if (std::exchange(closed_, true)) return;
    loop_.post([&loop = loop_, ticket = ticket_] { loop.cancel(ticket); });
  }

 private:
  HeadLoop& loop_;
  const Admissions::Ticket ticket_;
  const std::shared_ptr<AnswerQueue> queue_;
  bool closed_ = false;
};

HeadLoop::HeadLoop(Options options, Routes& routes, PeerCalls& peers, log::Logger log)
    : options_(std::move(options)),
      mesh_(routes),
      peers_(peers),
      log_(std::move(log)),
      salts_(random_id<SessionSecret>()),
      table_(options_.head, random_id<SessionSecret>()),
      admissions_(options_.admission, options_.admissions) {}

void HeadLoop::run(Node& node) {
  node_ = &node;
}

void HeadLoop::stop() {
  strand_.close();
  alarm_.stop();
  admissions_.end_all(stopping());
}

bool HeadLoop::post(Strand::Command work) {
  return strand_.post(std::move(work));
}

// Everything that waited went in before the actions come out, so that a burst of tokens makes one batch of
// frames.
void HeadLoop::settle() {
  table_.tick(now());
  admit();
  for (auto actions = table_.take_actions(); !actions.empty(); actions = table_.take_actions()) {
    carry_out(actions);
    admit();
  }
  without_room_.clear();
  sessions_ = admissions_.running();
  waiting_ = admissions_.waiting();
  failovers_ = table_.stats().failovers;
  const auto due = table_.next_wakeup();
  const auto turn = admissions_.next_wakeup();
  if (due || turn) alarm_.set(std::min(due.value_or(TimePoint::max()), turn.value_or(TimePoint::max())));
}

StatusOr<std::shared_ptr<gateway::Answer>> HeadLoop::ask(gateway::Ask ask) {
  if (draining_ || strand_.closed()) return stopping();
  MESH_RETURN_IF_ERROR(mesh_.available(ask.identity));
  MESH_RETURN_IF_ERROR(fit(ask));
  const Admissions::Ticket ticket = ++last_ticket_;
  auto queue = std::make_shared<AnswerQueue>();
  const bool posted = post([this, ticket, queue, ask = std::move(ask)]() mutable {
    admissions_.enter(ticket, std::move(ask), queue, now());
    if (draining_) admissions_.end_waiting(stopping(), now());
    admit();
  });
  if (!posted) return stopping();
  return std::make_shared<Handle>(*this, ticket, queue);
}

void HeadLoop::begin(const Admissions::Start& start) {
  const gateway::Ask& ask = *start.ask;
  log_.with_session(start.session)
      .with_request(ask.request_id)
      .debug("session of {} tokens begins", ask.prompt.size());
  head::StartRequest request;
  request.session = start.session;
  request.identity = ask.identity;
  request.layers = options_.layer_counts.at(ask.identity);
  request.prompt = ask.prompt;
  request.max_tokens = ask.max_tokens;
  request.eos_ids = ask.eos_ids;
  request.sampling = ask.sampling;
  if (options_.offer_prefixes) request.salt = salt_of(ask.principal);
  if (const Status started = table_.start(std::move(request), now()); !started.ok()) {
    admissions_.end(start.session, gateway::End{started, gateway::EndReason::kStop}, now());
  }
}

wire::PrefixSalt HeadLoop::salt_of(const std::string& principal) const {
  const Sha256 hash =
      Sha256Stream().update("meshnet/1 salt").update(salts_.view()).update(principal).finish();
  return {hash.bytes};
}

void HeadLoop::cancel(Admissions::Ticket ticket) {
  if (const auto session = admissions_.leave(ticket, now())) table_.cancel(*session, now());
}

// Ids go to hop 0 together, past the tokens among them: what is accepted at once runs in one step.
void HeadLoop::carry_out(const std::vector<head::HeadAction>& actions) {
  std::vector<head::SendIds> ids;
  for (const head::HeadAction& action : actions) {
    if (const auto* send = std::get_if<head::SendIds>(&action)) {
      ids.push_back(*send);
      continue;
    }
    if (!std::holds_alternative<head::TokenReady>(action)) {
      send_ids(ids);
      ids.clear();
    }
    carry_out(action);
  }
  send_ids(ids);
}

void HeadLoop::carry_out(const head::HeadAction& action) {
  struct Visitor {
    HeadLoop& loop;
    void operator()(const head::RouteWanted& a) const { loop.route(a); }
    void operator()(const head::OpenHop& a) const { loop.open(a); }
    void operator()(const head::AskCursor& a) const { loop.ask_cursor(a); }
    void operator()(const head::RenewLease& a) const { loop.renew(a); }
    void operator()(const head::CloseHop& a) const { loop.close(a); }
    void operator()(const head::SendIds&) const { MESH_CHECK(false); }  // sent in groups
    void operator()(const head::TokenReady& a) const { loop.deliver(a); }
    void operator()(const head::Finished& a) const { loop.finish(a); }
  };
  std::visit(Visitor{*this}, action);
}

void HeadLoop::route(const head::RouteWanted& wanted) {
  auto hops = mesh_.find(wanted);
  if (hops.ok()) {
    for (const wire::HopAddress& hop : *hops) {
      log_.with_session(wanted.session).debug("layers {} at {}", to_string(hop.range), hop.url);
    }
    table_.route_found(wanted.session, wanted.request, *std::move(hops), now());
  } else if (wanted.first) {
    table_.route_failed(wanted.session, wanted.request, hops.status(), now());
  } else {
    log_.with_session(wanted.session).warning("waiting for a replacement: {}", message_of(hops.status()));
  }
}

void HeadLoop::open(const head::OpenHop& action) {
  if (action.to.node == options_.self) {
    table_.open_answered(action.ref, node_->open(action.request), now());
    return;
  }
  const auto answer = [this, ref = action.ref](StatusOr<std::string> body) {
    StatusOr<wire::OpenReply> reply = body.ok() ? wire::read_open_reply(*body) : body.status();
    post([this, ref, reply = std::move(reply)] { table_.open_answered(ref, reply, now()); });
  };
  const auto key = mesh_.key_of(action.to.node);
  if (!key) return answer(error(StatusCode::kUnavailable, "node {} left", action.to.node.hex()));
  const auto sealed = seal(*key, action.request.secret.view());
  if (!sealed.ok()) return answer(sealed.status());
  wire::OpenRequest bare = action.request;
  bare.secret = {};
  peers_.post(action.to.url, wire::kOpenRoute,
              wire::write_open(bare, *sealed, mesh_.freshness_of(action.to.node)), answer);
}

void HeadLoop::ask_cursor(const head::AskCursor& action) {
  wire::CursorsRequest request;
  request.hops.push_back({action.ref.session, action.to.range.begin});
  const auto only = [](const wire::CursorsReply& reply) -> StatusOr<wire::CursorEntry> {
    if (reply.hops.size() == 1) return reply.hops.front();
    return error(StatusCode::kUnavailable, "one cursor was asked for, {} came", reply.hops.size());
  };
  if (action.to.node == options_.self) {
    table_.cursor_answered(action.ref, only(node_->cursors(request)), now());
    return;
  }
  peers_.post(action.to.url, wire::kCursorsRoute, wire::write_cursors(request),
              [this, ref = action.ref, only](StatusOr<std::string> body) {
                const auto read = [&]() -> StatusOr<wire::CursorEntry> {
                  if (!body.ok()) return body.status();
                  MESH_ASSIGN_OR_RETURN(const wire::CursorsReply reply, wire::read_cursors_reply(*body));
                  return only(reply);
                };
                post([this, ref, entry = read()] { table_.cursor_answered(ref, entry, now()); });
              });
}

void HeadLoop::renew(const head::RenewLease& action) {
  wire::RenewRequest request;
  request.sessions.push_back(action.ref.session);
  request.lease_ms = action.lease_ms;
  if (action.to.node == options_.self) {
    table_.renew_answered(action.ref, node_->renew(request).unknown.empty(), now());
    return;
  }
  peers_.post(
      action.to.url, wire::kRenewRoute, wire::write_renew(request, mesh_.freshness_of(action.to.node)),
      [this, ref = action.ref](StatusOr<std::string> body) {
        if (!body.ok()) return;  // steps find out whether the hop lives
        const auto reply = wire::read_renew_reply(*body);
        if (!reply.ok()) return;
        post([this, ref, known = reply->unknown.empty()] { table_.renew_answered(ref, known, now()); });
      });
}

void HeadLoop::close(const head::CloseHop& action) {
  const bool makes_room = action.frees_room && !without_room_.contains(action.ref.session);
  const auto closed = [this, ref = action.ref, makes_room](const Status& status) {
    table_.close_answered(ref, status, now());
    if (makes_room && status.ok()) admissions_.room_changed();
  };
  if (action.to.node == options_.self) {
    node_->close(action.request);
    closed(absl::OkStatus());
    return;
  }
  peers_.post(action.to.url, wire::kCloseRoute, wire::write_close(action.request),
              [this, closed](StatusOr<std::string> body) {
                post([closed, status = body.status()] { closed(status); });
              });
}

// If all sessions travelled in one group, all stages but one would wait at any time. So a burst is handed
// over in as many groups as there are stages: the first begins a step at once, the next ones follow it.
void HeadLoop::send_ids(std::span<head::SendIds> actions) {
  while (!actions.empty()) {
    const auto route = table_.route_of(actions.front().ref.session);
    const auto computes = [](const wire::HopAddress& hop) { return !hop.range.empty(); };
    const auto stages = std::max<std::size_t>(1, std::ranges::count_if(route, computes));
    const std::size_t fair = std::max<std::size_t>(1, (admissions_.running() + stages - 1) / stages);
    const auto group = actions.first(std::min(actions.size(), fair));
    actions = actions.subspan(group.size());
    std::vector<Arrival> arrivals;
    for (head::SendIds& action : group) arrivals.push_back({std::move(action.segment), true});
    const auto answers = node_->accept(std::move(arrivals));
    MESH_CHECK(answers.size() == group.size());
    for (std::size_t i = 0; i < answers.size(); ++i) {
      admissions_.opened(group[i].ref.session, now());  // ids go when every hop was opened
      table_.ids_answered(group[i].ref, answers[i], now());
    }
  }
}

void HeadLoop::deliver(const head::TokenReady& token) {
  admissions_.deliver(token.session, gateway::Token{token.token, token.is_eos});
}

void HeadLoop::finish(const head::Finished& finished) {
  if (wait_again(finished)) return;
  gateway::End end;
  end.reason = finished.reason == head::FinishReason::kLength ? gateway::EndReason::kLength
                                                              : gateway::EndReason::kStop;
  if (finished.reason == head::FinishReason::kError) {
    end.status = finished.status;
    if (end.status.ok()) end.status = error(StatusCode::kInternal, "the session failed without a reason");
    log_.with_session(finished.session).warning("session failed: {}", message_of(end.status));
  }
  admissions_.end(finished.session, end, now());
}

std::vector<wire::TokenAnswer> HeadLoop::on_tokens(const std::vector<wire::TokenMessage>& tokens) {
  auto answers = std::make_shared<std::promise<std::vector<wire::TokenAnswer>>>();
  auto result = answers->get_future();
  const bool posted = post([this, tokens, answers] {
    std::vector<wire::TokenAnswer> list;
    for (const wire::TokenMessage& token : tokens) list.push_back(table_.token(token, now()));
    answers->set_value(std::move(list));
  });
  if (!posted || result.wait_for(kHeadPatience) != std::future_status::ready) return {};
  return result.get();
}

void HeadLoop::on_report(const wire::Report& report) {
  post([this, report] { table_.report(options_.self, report, now()); });
}

void HeadLoop::on_cursor(const wire::CursorEntry& cursor) {
  post([this, cursor] {
    head::HopRef ref;
    ref.session = cursor.hop.session;
    ref.generation = cursor.cursor.generation;
    table_.cursor_answered(ref, cursor, now());
  });
}

void HeadLoop::node_lost(const NodeId& node) {
  post([this, node] { table_.node_lost(node, now()); });
}

std::vector<wire::TokenAnswer> HeadLoop::take_tokens(const std::vector<wire::ReceivedToken>& tokens) {
  std::vector<wire::TokenAnswer> list;
  for (const wire::ReceivedToken& token : tokens) {
    const auto secret = table_.secret(token.message.session, token.message.generation);
    if (secret && !wire::mac_fits(token, *secret)) {
      list.push_back({token.message.session, token.message.position, wire::TokenCode::kBadMac});
    } else {
      // Without a secret the session or generation is not current: the table only ever refuses it.
      list.push_back(table_.token(token.message, now()));
    }
  }
  return list;
}

net::Response HeadLoop::handle_tokens(net::Request& request) {
  auto body = std::make_shared<std::string>(std::move(request.body));
  auto tokens = wire::parse_tokens(*body);
  if (!tokens.ok()) return net::error_response(tokens.status());
  auto answers = std::make_shared<std::promise<std::vector<wire::TokenAnswer>>>();
  auto result = answers->get_future();
  const bool posted =
      post([this, body, tokens = *std::move(tokens), answers] { answers->set_value(take_tokens(tokens)); });
  if (!posted || result.wait_for(kHeadPatience) != std::future_status::ready)
    return net::error_response(stopping());
  return net::Response::binary(wire::encode_token_answers(result.get()), wire::kAnswersContentType);
}

net::Response HeadLoop::handle_report(net::Request& request) {
  const auto report = wire::read_report(request.body);
  if (!report.ok()) return net::error_response(report.status());
  const auto from = NodeId::parse(request.principal);
  if (!from) return net::error_response(error(StatusCode::kUnauthenticated, "a report must be signed"));
  post([this, report = *report, from = *from] { table_.report(from, report, now()); });
  return net::Response::json(json::Object{});
}

std::vector<net::Route> HeadLoop::routes() {
  constexpr std::size_t kBody = net::limits::kDefaultBodyBytes;
  return {{"POST", std::string(wire::kTokensRoute), net::Access::kSession,
           [this](net::Request& request) { return handle_tokens(request); }, kBody, false},
          {"POST", std::string(wire::kReportRoute), net::Access::kNode,
           [this](net::Request& request) { return handle_report(request); }, kBody, false}};
}

}  // namespace mesh::tracker
