#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "common/base/alarm.h"
#include "common/base/strand.h"
#include "common/log/log.h"
#include "common/net/server.h"
#include "common/wire/control.h"
#include "common/wire/token_codec.h"
#include "node/node.h"
#include "tracker/gateway/backend.h"
#include "tracker/head/head_table.h"
#include "tracker/runtime/admissions.h"
#include "tracker/runtime/peer_calls.h"
#include "tracker/runtime/routes.h"

namespace mesh::tracker {

/// The strand that owns the HeadTable and the requests that wait for it (docs/admission.md). It calls the
/// embedded node directly and other hops through PeerCalls; it never waits for another program. Requests'
/// threads and HTTP threads hand it events, holding no lock that Routes or an answer takes.
class HeadLoop final : public gateway::Backend, public HeadSink {
 public:
  struct Options {
    head::HeadOptions head;
    NodeId self;
    AdmissionOptions admission;
    AdmissionObserver* admissions = nullptr;  ///< may be null; else it outlives the loop
    bool offer_prefixes = true;  ///< hops may begin with what they kept of a principal's earlier prompts
    std::vector<gateway::Model> models;
    std::map<ModelIdentity, std::uint32_t> layer_counts;
  };
  HeadLoop(Options options, Routes& routes, PeerCalls& peers, log::Logger log);
  ~HeadLoop() override { stop(); }

  /// `node`: the embedded one, which has this object as its sink. Call once, before anything is asked.
  void run(Node& node);
  /// Ends running answers with kUnavailable.
  void stop();

  // gateway::Backend
  const std::vector<gateway::Model>& models() const override { return options_.models; }
  StatusOr<std::shared_ptr<gateway::Answer>> ask(gateway::Ask ask) override;
  /// Refuses new sessions from now on, and those that wait.
  void drain();

  // HeadSink: from a thread beside the embedded node's strand.
  std::vector<wire::TokenAnswer> on_tokens(const std::vector<wire::TokenMessage>& tokens) override;
  void on_report(const wire::Report& report) override;
  void on_cursor(const wire::CursorEntry& cursor) override;

  /// POST /mesh/v1/tokens and /mesh/v1/sessions/report.
  std::vector<net::Route> routes();
  void node_lost(const NodeId& node);

  std::size_t sessions() const { return sessions_; }
  std::size_t waiting() const { return waiting_; }
  std::uint64_t failovers() const { return failovers_; }

 private:
  class Handle;

  static Status stopping();
  /// False when the loop has ended; `work` is then dropped.
  bool post(Strand::Command work);
  void settle();
  void carry_out(const std::vector<head::HeadAction>& actions);
  void carry_out(const head::HeadAction& action);
  void route(const head::RouteWanted& wanted);
  void open(const head::OpenHop& action);
  void ask_cursor(const head::AskCursor& action);
  void renew(const head::RenewLease& action);
  void close(const head::CloseHop& action);
  void send_ids(std::span<head::SendIds> actions);
  void deliver(const head::TokenReady& token);
  void finish(const head::Finished& finished);
  Status fit(gateway::Ask& ask);
  std::optional<NoFit> room_for(const gateway::Ask& ask);
  Status never_fits(const gateway::Ask& ask, const NoFit& no);
  void admit();
  void begin(const Admissions::Start& start);
  void cancel(Admissions::Ticket ticket);
  bool wait_again(const head::Finished& finished);
  std::vector<wire::TokenAnswer> take_tokens(const std::vector<wire::ReceivedToken>& tokens);
  net::Response handle_tokens(net::Request& request);
  net::Response handle_report(net::Request& request);
  wire::PrefixSalt salt_of(const std::string& principal) const;
  TimePoint now() const { return clock_.now(); }

  const Options options_;
  Routes& mesh_;
  PeerCalls& peers_;
  const log::Logger log_;
  const SteadyClock clock_;
  const SessionSecret salts_;  ///< of this start: principals' salts are derived from it
  head::HeadTable table_;
  Node* node_ = nullptr;
  Admissions admissions_;
  std::set<SessionId> without_room_;  ///< ended so since the last settling: their closing makes no room
  std::atomic<Admissions::Ticket> last_ticket_ = 0;
  std::atomic<std::size_t> sessions_ = 0;
  std::atomic<std::size_t> waiting_ = 0;
  std::atomic<std::uint64_t> failovers_ = 0;
  std::atomic<bool> draining_ = false;
  Strand strand_{1 << 16, [this] { settle(); }};
  Alarm alarm_{[this] { strand_.post([] {}); }};  ///< for the table's deadlines
};

}  // namespace mesh::tracker
