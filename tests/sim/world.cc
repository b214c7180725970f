#include "tests/sim/world.h"

#include <algorithm>

#include "common/wire/session_json.h"
#include "common/wire/token_codec.h"

namespace mesh::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kControlTimeout = seconds(2);
constexpr Duration kLongest = std::chrono::minutes(10);

template <class Id>
Id numbered(std::uint64_t number) {
  Id id;
  for (std::size_t i = 0; i < Id::kSize; ++i)
    id.bytes[i] = static_cast<std::uint8_t>(mix(number * 64 + i / 8) >> (i % 8 * 8));
  return id;
}

}  // namespace

class World::RandomRoutes final : public RouteSource {
 public:
  explicit RandomRoutes(World& world) : world_(world) {}

  std::optional<std::vector<wire::HopAddress>> route(const head::RouteWanted& wanted) override {
    std::vector<wire::HopAddress> hops;
    std::uint32_t at = wanted.range.begin;
    if (wanted.first) {
      hops.push_back({world_.embedded_->id(), world_.embedded_->url(), {0, world_.plan_.head_layers}});
      at = world_.plan_.head_layers;
    }
    while (at < wanted.range.end) {
      std::vector<const SimNode*> ready;
      for (const auto& node : world_.nodes_) {
        const bool excluded = std::count(wanted.excluded.begin(), wanted.excluded.end(), node->id()) > 0;
        if (node->running() && node->shards()[0].contains(at) && !excluded) ready.push_back(node.get());
      }
      if (ready.empty()) return std::nullopt;
      const SimNode& chosen = *ready[world_.random_.between(0, ready.size() - 1)];
      const std::uint32_t end = std::min(chosen.shards()[0].end, wanted.range.end);
      hops.push_back({chosen.id(), chosen.url(), {at, end}});
      at = end;
    }
    return hops;
  }

 private:
  World& world_;
};

World::World(Plan plan) : plan_(std::move(plan)), random_(mix(plan_.seed + 1)), network_(timeline_, random_) {
  identity_ = numbered<ModelIdentity>(7);
  head_ = std::make_unique<head::HeadTable>(plan_.head_options, numbered<SessionSecret>(plan_.seed));
  network_.listen(std::string(kHeadUrl), [this](const std::string& route, const std::string& body) {
    auto answer = handle(route, body);
    drain_head();
    return answer;
  });
  make_nodes();
}

void World::make_nodes() {
  const auto make = [&](std::size_t number, const std::string& url, std::vector<LayerRange> shards) {
    SimNode::Setup setup{numbered<NodeId>(number),
                         url,
                         std::move(shards),
                         plan_.layers,
                         identity_,
                         plan_.hop_options,
                         plan_.hop_faults,
                         [this](const SessionId& session) { return principals_.at(session); },
                         plan_.copy_time_per_byte};
    auto node = std::make_unique<SimNode>(std::move(setup), timeline_, network_, random_,
                                          [this](const std::string& what) { violation(what); });
    node->start();
    return node;
  };
  embedded_ = make(99, "sim://head", {{0, plan_.head_layers}});
  for (std::size_t i = 0; i < plan_.nodes; ++i) {
    nodes_.push_back(make(i, "http://node" + std::to_string(i) + ":8090", {}));
  }
  if (plan_.planned) {
    make_control();
  } else {
    make_fixed_shards();
    routes_ = std::make_unique<RandomRoutes>(*this);
  }
}

/// Stages of nearly equal size over two or three nodes; the others hold spare ranges.
void World::make_fixed_shards() {
  const std::size_t stages = std::min<std::size_t>(plan_.nodes, random_.between(2, 3));
  const std::uint32_t rest = plan_.layers - plan_.head_layers;
  for (std::size_t i = 0; i < plan_.nodes; ++i) {
    LayerRange shard;
    if (i < stages) {
      shard.begin = plan_.head_layers + static_cast<std::uint32_t>(rest * i / stages);
      shard.end = plan_.head_layers + static_cast<std::uint32_t>(rest * (i + 1) / stages);
    } else {
      shard.begin = static_cast<std::uint32_t>(random_.between(plan_.head_layers, plan_.layers - 1));
      shard.end = static_cast<std::uint32_t>(random_.between(shard.begin + 1, plan_.layers));
    }
    nodes_[i]->set_shards({shard});
  }
}

void World::make_control() {
  SimTracker::Setup setup;
  setup.url = "http://tracker:8070";
  setup.model.identity = identity_;
  setup.model.name = "fake";
  setup.model.model_type = "llama";
  setup.model.quantization = "bfloat16";
  setup.model.compute_type = "float32";
  setup.model.hidden_size = FakeEngine::kHidden;
  setup.model.layer_bytes.assign(plan_.layers, std::uint64_t{1} << 20);
  setup.model.layer_bytes_per_token.assign(plan_.layers, 16);
  setup.head_layers = plan_.head_layers;
  setup.embedded = {embedded_->id(), embedded_->url(), {0, plan_.head_layers}};
  setup.stale_directives = plan_.stale_directives;
  auto tracker = std::make_unique<SimTracker>(std::move(setup), timeline_, network_, random_,
                                              [this](const NodeId& node) {
                                                head_->node_lost(node, timeline_.now());
                                                drain_head();
                                              });
  tracker_ = tracker.get();
  routes_ = std::move(tracker);
  for (const auto& node : nodes_) {
    agents_.push_back(std::make_unique<SimAgent>(
        agent_setup(*node), timeline_, network_, random_,
        [node = node.get()](const std::vector<LayerRange>& ready) { node->set_shards(ready); },
        [this](const std::string& what) { violation(what); }));
    agents_.back()->start();
  }
}

SimAgent::Setup World::agent_setup(const SimNode& node) {
  SimAgent::Setup setup;
  setup.node = node.id();
  setup.tracker_url = "http://tracker:8070";
  setup.faults = plan_.agent_faults;
  wire::Join& self = setup.self;
  self.program_version = "0.1.0";
  self.wire_versions = {1};
  self.address = node.url().substr(7);
  // Room for half of the layers up to all, beside what the planner sets aside.
  const std::uint64_t layers = random_.between((plan_.layers + 1) / 2, plan_.layers);
  self.memory_bytes = (std::uint64_t{68} << 20) + layers * (std::uint64_t{5} << 18);
  self.threads = 2;
  self.device = "cpu";
  self.model_types = {"llama"};
  self.quantizations = {"bfloat16"};
  self.compute_types = {"float32"};
  return setup;
}

std::vector<TokenId> World::random_prompt(std::size_t tokens) {
  std::vector<TokenId> prompt;
  for (std::size_t i = 0; i < tokens; ++i) {
    prompt.push_back(static_cast<TokenId>(random_.between(0, FakeEngine::kVocabulary - 1)));
  }
  return prompt;
}

void World::start_session(std::size_t prompt, std::uint32_t max_tokens, std::uint32_t chunk, bool cancel) {
  start_session(random_prompt(prompt), max_tokens, chunk, cancel, 0);
}

void World::start_session(std::vector<TokenId> prompt, std::uint32_t max_tokens, std::uint32_t chunk,
                          bool cancel, int principal) {
  const std::size_t number = results_.size();
  head::StartRequest request;
  request.session = numbered<SessionId>(1000 + number);
  request.identity = identity_;
  request.layers = plan_.layers;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.eos_ids = {13};
  request.chunk = chunk;
  if (plan_.repeats > 0) request.salt = numbered<wire::PrefixSalt>(plan_.one_salt ? 50 : 50 + principal);
  principals_[request.session] = principal;
  SessionResult result;
  result.expected = FakeEngine::expected(plan_.layers, request.prompt, max_tokens, request.eos_ids);
  result.cancelled = cancel;
  results_.push_back(std::move(result));
  const SessionId id = request.session;
  index_[id] = number;
  const Status started = head_->start(std::move(request), timeline_.now());
  if (!started.ok()) violation("a session did not start: " + std::string(message_of(started)));
  if (cancel) {
    timeline_.after(milliseconds(random_.between(1, 3000)), [this, id] {
      head_->cancel(id, timeline_.now());
      drain_head();
    });
  }
  drain_head();
}

void World::plan_sessions() {
  for (std::size_t i = 0; i < plan_.sessions; ++i) {
    timeline_.after(milliseconds(random_.between(0, 8000)), [this] {
      constexpr std::uint32_t kChunks[] = {32, 64, 128};
      const std::size_t length = random_.chance(0.1) ? random_.between(1000, 1500) : random_.between(1, 300);
      const auto max_tokens = static_cast<std::uint32_t>(random_.between(2, 60));
      const std::uint32_t chunk = kChunks[random_.between(0, 2)];
      const bool cancel = random_.chance(plan_.cancels);
      if (plan_.repeats == 0) return start_session(length, max_tokens, chunk, cancel);
      std::vector<TokenId> prompt;
      if (!prompts_.empty() && random_.chance(plan_.repeats)) {
        prompt = prompts_[random_.between(0, prompts_.size() - 1)];
        if (random_.chance(0.5)) prompt.resize(random_.between(1, prompt.size()));
      }
      if (prompt.empty() || random_.chance(0.5)) {
        // Often whole blocks, whose last token must be computed nevertheless.
        const std::size_t more = random_.chance(0.3) ? 128 - prompt.size() % 128 : random_.between(1, 600);
        for (const TokenId id : random_prompt(more)) prompt.push_back(id);
      }
      prompts_.push_back(prompt);
      start_session(std::move(prompt), max_tokens, chunk, cancel, random_.chance(0.3) ? 1 : 0);
    });
  }
}

void World::crash(std::size_t index, Duration down) {
  if (!nodes_[index]->running()) return;
  nodes_[index]->crash();
  if (plan_.planned) agents_[index]->stop();
  timeline_.after(down, [this, index] {
    nodes_[index]->start();
    if (plan_.planned) agents_[index]->start();
  });
}

void World::plan_faults() {
  network_.set_faults(plan_.network);
  timeline_.after(plan_.faults_last, [this] { network_.set_faults({}); });
  const auto often = [&](double per_minute, const std::function<void(std::size_t)>& what) {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      for (Duration at{}; at < plan_.faults_last; at += milliseconds(100)) {
        if (!random_.chance(per_minute / 600)) continue;
        timeline_.after(at + milliseconds(random_.between(0, 99)), [what, i] { what(i); });
      }
    }
  };
  often(plan_.restarts_per_minute,
        [this](std::size_t i) { crash(i, milliseconds(random_.between(1, 4000))); });
  often(plan_.freezes_per_minute, [this](std::size_t i) {
    if (nodes_[i]->running()) nodes_[i]->freeze(milliseconds(random_.between(100, 5000)));
  });
  often(plan_.cuts_per_minute, [this](std::size_t i) {
    const std::size_t to = random_.between(0, nodes_.size());
    const std::string url = to == nodes_.size() ? std::string(kHeadUrl) : nodes_[to]->url();
    network_.cut(nodes_[i]->url(), url, milliseconds(random_.between(500, 8000)));
  });
  often(plan_.step_failures_per_minute, [this](std::size_t i) { nodes_[i]->fail_next_step(); });
}

void World::run() {
  plan_faults();
  plan_sessions();
  const TimePoint last = timeline_.now() + kLongest;
  const auto over = [&] {
    return results_.size() >= plan_.sessions &&
           std::all_of(results_.begin(), results_.end(),
                       [](const auto& r) { return r.finished || r.cancelled; });
  };
  while (timeline_.now() < last && !over()) timeline_.run(timeline_.now() + seconds(1));
  // Whatever could not be closed is freed by the leases; nothing may be left then.
  timeline_.run(timeline_.now() + milliseconds(plan_.head_options.lease_ms) + plan_.faults_last + seconds(5));
  check();
}

StatusOr<std::string> World::handle(const std::string& route, const std::string& body) {
  if (route == wire::kTokensRoute) {
    MESH_ASSIGN_OR_RETURN(const std::vector<wire::ReceivedToken> tokens, wire::parse_tokens(body));
    std::vector<wire::TokenAnswer> answers;
    for (const wire::ReceivedToken& received : tokens) {
      const wire::TokenMessage& message = received.message;
      const auto secret = head_->secret(message.session, message.generation);
      if (secret && !wire::mac_fits(received, *secret)) {
        answers.push_back({message.session, message.position, wire::TokenCode::kBadMac});
        continue;
      }
      answers.push_back(head_->token(message, timeline_.now()));
    }
    return wire::encode_token_answers(answers);
  }
  if (route.starts_with(wire::kReportRoute)) {
    const auto from = NodeId::parse(std::string_view(route).substr(wire::kReportRoute.size() + 1));
    MESH_ASSIGN_OR_RETURN(const wire::Report report, wire::read_report(body));
    head_->report(from.value_or(NodeId{}), report, timeline_.now());
    return std::string("{}");
  }
  return error(StatusCode::kNotFound, "no route {}", route);
}

void World::drain_head() {
  if (draining_) return;
  draining_ = true;
  head_->tick(timeline_.now());
  for (auto actions = head_->take_actions(); !actions.empty(); actions = head_->take_actions()) {
    for (head::HeadAction& action : actions) carry_out(action);
  }
  draining_ = false;
  embedded_->drain();
  const auto wakeup = head_->next_wakeup();
  if (!wakeup || (armed_ && *armed_ <= *wakeup && *armed_ > timeline_.now())) return;
  armed_ = std::max(*wakeup, timeline_.now() + std::chrono::microseconds(1));
  timeline_.at(*armed_, [this] { drain_head(); });
}

void World::open(const head::OpenHop& action) {
  if (action.ref.index == 0)
    return head_->open_answered(action.ref, embedded_->open(action.request), timeline_.now());
  network_.post(std::string(kHeadUrl), action.to.url, std::string(wire::kOpenRoute),
                wire::write_open(action.request, action.request.secret.view(), {}), kControlTimeout,
                [this, ref = action.ref](const StatusOr<std::string>& answer) {
                  const auto reply = answer.ok() ? wire::read_open_reply(*answer) : answer.status();
                  head_->open_answered(ref, reply, timeline_.now());
                  drain_head();
                });
}

void World::ask(const head::AskCursor& action) {
  const wire::CursorsRequest request{{{action.ref.session, action.to.range.begin}}};
  if (action.ref.index == 0) {
    return head_->cursor_answered(action.ref, embedded_->table().cursors(request).hops[0], timeline_.now());
  }
  network_.post(
      std::string(kHeadUrl), action.to.url, std::string(wire::kCursorsRoute), wire::write_cursors(request),
      kControlTimeout, [this, ref = action.ref](const StatusOr<std::string>& answer) {
        const auto reply = answer.ok() ? wire::read_cursors_reply(*answer) : answer.status();
        if (reply.ok() && reply->hops.size() == 1) {
          head_->cursor_answered(ref, reply->hops[0], timeline_.now());
        } else {
          head_->cursor_answered(ref, error(StatusCode::kUnavailable, "no cursor"), timeline_.now());
        }
        drain_head();
      });
}

void World::renew(const head::RenewLease& action) {
  const wire::RenewRequest request{{action.ref.session}, action.lease_ms};
  if (action.ref.index == 0) {
    const bool known = embedded_->table().renew(request, timeline_.now()).unknown.empty();
    return head_->renew_answered(action.ref, known, timeline_.now());
  }
  network_.post(std::string(kHeadUrl), action.to.url, std::string(wire::kRenewRoute),
                wire::write_renew(request, {}), kControlTimeout,
                [this, ref = action.ref](const StatusOr<std::string>& answer) {
                  const auto reply = answer.ok() ? wire::read_renew_reply(*answer) : answer.status();
                  if (reply.ok()) head_->renew_answered(ref, reply->unknown.empty(), timeline_.now());
                  drain_head();
                });
}

void World::close(const head::CloseHop& action) {
  if (action.ref.index == 0) {
    embedded_->table().close(action.request, timeline_.now());
    return head_->close_answered(action.ref, absl::OkStatus(), timeline_.now());
  }
  network_.post(std::string(kHeadUrl), action.to.url, std::string(wire::kCloseRoute),
                wire::write_close(action.request), kControlTimeout,
                [this, ref = action.ref](const StatusOr<std::string>& answer) {
                  head_->close_answered(ref, answer.status(), timeline_.now());
                  drain_head();
                });
}

void World::carry_out(head::HeadAction& action) {
  if (auto* wanted = std::get_if<head::RouteWanted>(&action)) {
    timeline_.after(milliseconds(1), [this, wanted = *wanted] {
      if (auto hops = routes_->route(wanted)) {
        head_->route_found(wanted.session, wanted.request, *std::move(hops), timeline_.now());
      }
      drain_head();
    });
  } else if (auto* opening = std::get_if<head::OpenHop>(&action)) {
    open(*opening);
  } else if (auto* question = std::get_if<head::AskCursor>(&action)) {
    ask(*question);
  } else if (auto* renewal = std::get_if<head::RenewLease>(&action)) {
    renew(*renewal);
  } else if (auto* closing = std::get_if<head::CloseHop>(&action)) {
    close(*closing);
  } else if (auto* ids = std::get_if<head::SendIds>(&action)) {
    const wire::SegmentAnswer answer = embedded_->table().accept(std::move(ids->segment), timeline_.now());
    head_->ids_answered(ids->ref, answer, timeline_.now());
  } else if (auto* token = std::get_if<head::TokenReady>(&action)) {
    results_[index_.at(token->session)].text.push_back(token->token);
  } else if (auto* finished = std::get_if<head::Finished>(&action)) {
    SessionResult& result = results_[index_.at(finished->session)];
    if (result.finished) violation("a session finished twice");
    result.finished = true;
    result.status = finished->status;
  }
}

std::size_t World::errors() const {
  return static_cast<std::size_t>(
      std::count_if(results_.begin(), results_.end(), [](const auto& r) { return !r.status.ok(); }));
}

std::uint64_t World::hit_blocks() const {
  std::uint64_t blocks = embedded_->hit_blocks();
  for (const auto& node : nodes_) blocks += node->hit_blocks();
  return blocks;
}

std::uint64_t World::moves() const {
  std::uint64_t moves = embedded_->moves();
  for (const auto& node : nodes_) moves += node->moves();
  return moves;
}

std::uint64_t World::evictions() const {
  std::uint64_t count = embedded_->table().stats().prefix_evictions;
  for (const auto& node : nodes_) count += node->table().stats().prefix_evictions;
  return count;
}

std::uint64_t World::stale_directives() const {
  std::uint64_t count = 0;
  for (const auto& agent : agents_) count += agent->stale_directives();
  return count;
}

void World::check() {
  if (tracker_ && !tracker_->complete()) violation("the model's layers are not covered at the end");
  for (std::size_t i = 0; i < results_.size(); ++i) {
    const SessionResult& r = results_[i];
    const std::string name = "session " + std::to_string(i);
    if (!r.finished && !r.cancelled) violation(name + " never ended");
    const bool whole = r.finished && r.status.ok();
    const std::size_t common = std::min(r.text.size(), r.expected.size());
    if (r.text.size() > r.expected.size() || (whole && r.text.size() != r.expected.size()) ||
        !std::equal(r.text.begin(), r.text.begin() + static_cast<std::ptrdiff_t>(common),
                    r.expected.begin())) {
      violation(name + " has the wrong text");
    }
    if (!r.status.ok() && r.status.message().empty()) violation(name + " has an error without a message");
  }
  const auto leaks = [&](const SimNode& node, pipeline::HopTable& table) {
    const pipeline::HopStats stats = table.stats();
    if (stats.sessions + stats.steps_running + stats.segments_waiting + node.caches() + node.bytes_in_use() >
        0) {
      violation("state was left behind at " + node.url());
    }
    if (!node.blocks_agree()) violation("blocks leaked at " + node.url());
  };
  leaks(*embedded_, embedded_->table());
  for (const auto& node : nodes_) leaks(*node, node->table());
  if (head_->stats().sessions > 0) violation("sessions were left behind at the head");
}

}  // namespace mesh::sim
