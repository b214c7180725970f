#include "tests/sim/schedule.h"

#include <algorithm>

#include "common/base/kv_blocks.h"
#include "tests/sim/hop_table_tester.h"

namespace mesh::sim {
namespace {

using std::chrono::duration_cast;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr const char* kHeadUrl = "sim://head";
constexpr Duration kLongest = std::chrono::minutes(20);
constexpr Duration kStep = milliseconds(4);
constexpr Duration kRow = microseconds(60);
constexpr Duration kShortestTurn = milliseconds(100);
constexpr Duration kLongestTurn = seconds(2);

template <class Id>
Id numbered(std::uint64_t number) {
  Id id;
  for (std::size_t i = 0; i < Id::kSize; ++i)
    id.bytes[i] = static_cast<std::uint8_t>(mix(number * 64 + i / 8) >> (i % 8 * 8));
  return id;
}

pipeline::HopOptions hop_options(const SchedulePlan& plan, const ScheduleModel& model) {
  const std::uint64_t block = kKvBlockTokens * model.bytes_per_token;
  pipeline::HopOptions options;
  options.cache_bytes = plan.device_blocks * block;
  options.spill_bytes = plan.host_blocks * block;
  options.prefix_bytes = plan.prefix_blocks * block;
  return options;
}

head::HeadOptions head_options() {
  head::HeadOptions options;
  options.head_url = kHeadUrl;
  return options;
}

tracker::AdmissionOptions admission_options() {
  tracker::AdmissionOptions options;
  options.depth = 1000;
  options.longest_wait = 2 * kLongest;
  return options;
}

}  // namespace

SchedulePlan SchedulePlan::random(std::uint64_t seed) {
  Random r(mix(seed) ^ 0x5c4ed);
  SchedulePlan plan;
  plan.seed = seed;
  plan.steps_at_once = 1 + seed % 2;
  plan.requests = r.between(4, 14);
  plan.arrivals_last = milliseconds(r.between(0, 800));
  plan.cancels = r.chance(0.5) ? 0.3 : 0;
  plan.repeats = r.chance(0.6) ? 0.7 : 0;
  const std::uint64_t largest = kv_blocks(plan.longest_prompt + plan.most_tokens);
  plan.device_blocks = r.between(largest, 4 * largest);
  plan.host_blocks = r.chance(0.3) ? 0 : r.between(largest, 12 * largest);
  plan.prefix_blocks = r.chance(0.5) ? r.between(1, largest) : 0;
  constexpr double kRates[] = {1e9, 2e7, 4e6, 5e5};
  plan.copy_bytes_per_second = kRates[r.between(0, 3)];
  plan.failures = r.chance(0.15) ? 0.02 : 0;
  return plan;
}

Schedule::Schedule(const SchedulePlan& plan, ScheduleModel model, engine::Engine& engine,
                   std::shared_ptr<const engine::Shard> shard)
    : plan_(plan),
      model_(std::move(model)),
      engine_(engine),
      random_(mix(plan.seed + 1)),
      table_(pipeline::HopTableTester::make(hop_options(plan, model_), plan.faults)),
      head_(head_options(), numbered<SessionSecret>(plan.seed)),
      queue_(admission_options()),
      stage_(engine, std::move(shard)) {}

Schedule::~Schedule() = default;

void Schedule::plan_requests() {
  constexpr std::uint32_t kShort = 40;
  for (std::size_t i = 0; i < plan_.requests; ++i) {
    Request request;
    if (i > 0 && random_.chance(plan_.repeats)) {
      request.prompt = requests_[random_.between(0, i - 1)].prompt;
      if (random_.chance(0.5)) request.prompt.resize(random_.between(1, request.prompt.size()));
    }
    const std::uint64_t most = random_.chance(0.3) ? kShort : plan_.longest_prompt;
    const std::size_t length =
        std::min<std::size_t>(plan_.longest_prompt, request.prompt.size() + random_.between(1, most));
    while (request.prompt.size() < length)
      request.prompt.push_back(
          static_cast<TokenId>(random_.between(0, static_cast<std::uint64_t>(model_.vocabulary) - 1)));
    request.tokens = static_cast<std::uint32_t>(random_.between(2, plan_.most_tokens));
    request.principal = random_.chance(0.3) ? 1 : 0;
    request.cancelled = random_.chance(plan_.cancels);
    request.expected = model_.alone(request.prompt, request.tokens);
    requests_.push_back(std::move(request));
    const auto last = static_cast<std::uint64_t>(duration_cast<milliseconds>(plan_.arrivals_last).count());
    timeline_.after(milliseconds(random_.between(0, last)), [this, i] { arrive(i); });
  }
}

void Schedule::arrive(std::size_t number) {
  Request& request = requests_[number];
  if (queue_.enter({number, std::to_string(request.principal), {}}, timeline_.now()))
    violation("a request was refused");
  if (request.cancelled) {
    timeline_.after(milliseconds(random_.between(1, 800)), [this, number] {
      Request& leaving = requests_[number];
      if (leaving.finished) return;
      if (leaving.session) head_.cancel(*leaving.session, timeline_.now());
      leaving.session.reset();
      leaving.finished = true;
      ++totals_.cancelled;
      queue_.leave(number, timeline_.now());
      drain();
    });
  }
  drain();
}

Schedule::Request* Schedule::of(const SessionId& session) {
  const auto at = sessions_.find(session);
  if (at == sessions_.end() || requests_[at->second].session != session) return nullptr;
  return &requests_[at->second];
}

void Schedule::admit() {
  for (const auto& refused : queue_.take_refused(timeline_.now()))
    violation("request " + std::to_string(refused.ticket) + " waited too long");
  while (const auto ticket = queue_.admit(timeline_.now())) {
    Request& request = requests_[*ticket];
    head::StartRequest start;
    start.session = numbered<SessionId>(++last_session_);
    start.layers = model_.layers;
    start.prompt = request.prompt;
    start.max_tokens = request.tokens;
    start.chunk = 32u << random_.between(0, 2);
    if (plan_.prefix_blocks > 0)
      start.salt = numbered<wire::PrefixSalt>(50 + static_cast<std::uint64_t>(request.principal));
    request.session = start.session;
    request.last_token = timeline_.now();
    sessions_[start.session] = *ticket;
    if (!head_.start(std::move(start), timeline_.now()).ok()) violation("a session did not start");
  }
}

void Schedule::carry_out(head::HeadAction& action) {
  const TimePoint now = timeline_.now();
  if (const auto* wanted = std::get_if<head::RouteWanted>(&action)) {
    head_.route_found(wanted->session, wanted->request, {{NodeId{}, kHeadUrl, {0, model_.layers}}}, now);
  } else if (const auto* opening = std::get_if<head::OpenHop>(&action)) {
    const pipeline::ShardView view{1, model_.bytes_per_token, 1u << 20, true};
    const wire::OpenReply reply = table_->open(opening->request, view, now);
    totals_.refused_room += reply.code == wire::OpenCode::kNoRoom;
    head_.open_answered(opening->ref, reply, now);
  } else if (const auto* question = std::get_if<head::AskCursor>(&action)) {
    head_.cursor_answered(question->ref, table_->cursors({{{question->ref.session, 0}}}).hops[0], now);
  } else if (const auto* renewal = std::get_if<head::RenewLease>(&action)) {
    const bool known = table_->renew({{renewal->ref.session}, renewal->lease_ms}, now).unknown.empty();
    head_.renew_answered(renewal->ref, known, now);
  } else if (const auto* closing = std::get_if<head::CloseHop>(&action)) {
    table_->close(closing->request, now);
    head_.close_answered(closing->ref, absl::OkStatus(), now);
    if (closing->frees_room && !without_room_.contains(closing->ref.session)) queue_.room_changed();
  } else if (auto* ids = std::get_if<head::SendIds>(&action)) {
    if (of(ids->ref.session)) queue_.opened(sessions_.at(ids->ref.session), now);
    const wire::SegmentAnswer answer = table_->accept(std::move(ids->segment), now);
    head_.ids_answered(ids->ref, answer, now);
  } else if (const auto* token = std::get_if<head::TokenReady>(&action)) {
    Request* request = of(token->session);
    if (!request) return;
    request->text.push_back(token->token);
    totals_.longest_gap = std::max<Duration>(totals_.longest_gap, now - request->last_token);
    request->last_token = now;
  } else if (const auto* finished = std::get_if<head::Finished>(&action)) {
    finish(*finished);
  }
}

void Schedule::finish(const head::Finished& finished) {
  Request* request = of(finished.session);
  if (!request) return;
  const std::size_t ticket = sessions_.at(finished.session);
  request->session.reset();
  if (finished.status.code() == StatusCode::kResourceExhausted && request->text.empty()) {
    without_room_.insert(finished.session);
    queue_.found_no_room(ticket, timeline_.now());
    return;
  }
  request->finished = true;
  queue_.leave(ticket, timeline_.now());
  ++totals_.finished;
  if (finished.status.ok()) {
    if (request->text.size() != request->expected.size()) violation("an answer is too short");
    return;
  }
  ++totals_.errors;
  if (plan_.failures == 0) violation("an answer failed: " + std::string(message_of(finished.status)));
  if (finished.status.message().empty()) violation("an error without a message");
}

std::optional<TimePoint> Schedule::ahead_from() const {
  return steps_run_ > 0 && steps_run_ < plan_.steps_at_once ? table_->ahead_from() : std::nullopt;
}

void Schedule::run_node() {
  const TimePoint now = timeline_.now();
  table_->tick(now);
  stage_.carry_out(table_->take_orders());
  std::optional<pipeline::StepWork> work;
  const auto ahead = ahead_from();
  if (steps_run_ == 0 || (ahead && *ahead <= now)) {
    work = table_->next_step(now);
    stage_.carry_out(table_->take_orders());
  }
  // Beside steps, one after another.
  for (pipeline::CacheMoved& moved : stage_.take_moved()) {
    moved.took = microseconds(1) + duration_cast<Duration>(std::chrono::duration<double>(
                                       static_cast<double>(moved.bytes) / plan_.copy_bytes_per_second));
    copies_until_ = std::max(copies_until_, now) + moved.took;
    timeline_.at(copies_until_, [this, moved] {
      table_->cache_moved(moved);
      drain();
    });
  }
  for (const pipeline::PrefixBlockId id : stage_.take_lost()) table_->prefix_lost(id);
  check_memory();
  if (!work) return;
  const Duration took = kStep + kRow * work->rows;
  ++steps_run_;
  again_ = true;
  device_free_ = std::max(device_free_, now) + took;
  auto output = std::make_shared<pipeline::StepOutput>(stage_.run(*std::move(work)));
  timeline_.at(device_free_, [this, output] {
    --steps_run_;
    table_->step_done(std::move(*output), timeline_.now());
    drain();
  });
}

void Schedule::drain() {
  again_ = true;
  if (draining_) return;
  draining_ = true;
  const TimePoint now = timeline_.now();
  while (std::exchange(again_, false)) {
    head_.tick(now);
    admit();
    for (auto actions = head_.take_actions(); !actions.empty(); actions = head_.take_actions()) {
      for (head::HeadAction& action : actions) carry_out(action);
      again_ = true;
    }
    without_room_.clear();
    run_node();
    while (auto tokens = table_->next_tokens(now)) {
      timeline_.after(microseconds(random_.between(50, 800)), [this, tokens = *std::move(tokens)] {
        std::vector<wire::TokenAnswer> answers;
        answers.reserve(tokens.tokens.size());
        for (const pipeline::OutToken& token : tokens.tokens)
          answers.push_back(head_.token(token.message, timeline_.now()));
        table_->tokens_answered(tokens.id, answers, timeline_.now());
        drain();
      });
    }
    while (const auto report = table_->next_report(now)) {
      head_.report(NodeId{}, report->report, now);
      table_->report_answered(report->id);
      again_ = true;
    }
  }
  draining_ = false;
  std::optional<TimePoint> wakeup;
  for (const auto& one : {head_.next_wakeup(), table_->next_wakeup(), queue_.next_wakeup(), ahead_from()}) {
    if (one && (!wakeup || *one < *wakeup)) wakeup = one;
  }
  if (!wakeup || (armed_ && *armed_ <= *wakeup && *armed_ > now)) return;
  armed_ = std::max(*wakeup, now + microseconds(1));
  timeline_.at(*armed_, [this] { drain(); });
}

/// Engine and table agree after every order, and neither takes more than there is.
void Schedule::check_memory() {
  const pipeline::HopStats table = table_->stats();
  const engine::MemoryUse use = engine_.memory();
  const pipeline::HopOptions options = hop_options(plan_, model_);
  if (plan_.failures > 0) return;
  if (table.cache_bytes + table.prefix_bytes > options.cache_bytes)
    violation("more on the device than it holds");
  if (table.spilled_bytes > options.spill_bytes) violation("more in host memory than it may hold");
  if (use.cache_bytes != table.cache_bytes + table.prefix_bytes)
    violation("engine and table differ on the device");
  if (use.spilled_bytes != table.spilled_bytes) violation("engine and table differ in host memory");
}

void Schedule::run() {
  plan_requests();
  const TimePoint last = timeline_.now() + kLongest;
  const auto over = [&] {
    return std::all_of(requests_.begin(), requests_.end(), [](const Request& r) { return r.finished; });
  };
  while (timeline_.now() < last && !over() && violations_.size() < 20)
    timeline_.run(timeline_.now() + seconds(1));
  timeline_.run(timeline_.now() + seconds(5));
  check();
}

void Schedule::check() {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const Request& r = requests_[i];
    if (!r.finished) violation("request " + std::to_string(i) + " never ended");
    if (r.text.size() > r.expected.size() || !std::equal(r.text.begin(), r.text.end(), r.expected.begin()))
      violation("request " + std::to_string(i) + " has the wrong text");
  }
  const pipeline::HopStats table = table_->stats();
  totals_.spills = table.spills;
  totals_.drops = table.dropped_caches;
  totals_.prefix_hits = table.prefix_hits;
  totals_.failovers = head_.stats().failovers;
  totals_.refills = head_.stats().refills;
  const engine::MemoryUse use = engine_.memory();
  if (table.sessions + table.steps_running + table.segments_waiting > 0)
    violation("a session was left behind");
  if (table.cache_bytes + table.spilled_bytes + table.inbound_bytes > 0) violation("room was not given back");
  if (use.caches > 0 || use.spilled_bytes > 0) violation("caches leaked");
  if (use.cache_bytes != table.prefix_bytes) violation("blocks leaked");

  // Whoever waits comes in after those that wait already, each after at most one turn.
  const double cache = static_cast<double>(plan_.longest_prompt + plan_.most_tokens + kKvBlockTokens) *
                       static_cast<double>(model_.bytes_per_token);
  const Duration move =
      duration_cast<Duration>(std::chrono::duration<double>(2 * cache / plan_.copy_bytes_per_second));
  const Duration turn = std::clamp<Duration>(8 * move, kShortestTurn, kLongestTurn) + move + milliseconds(50);
  if (totals_.longest_gap > static_cast<std::int64_t>(plan_.requests) * turn)
    violation("an answer waited for longer than everybody's turns");
}

}  // namespace mesh::sim
