#include "node/runtime/node_runtime.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/detached.h"
#include "common/base/kv_blocks.h"

namespace mesh {
namespace {

engine::WeightFormat cache_format(const engine::Engine& engine) {
  return engine.compute() == engine::ComputeType::kFloat32 ? engine::WeightFormat::kFloat32
                                                           : engine::WeightFormat::kBfloat16;
}

LaneOptions lane_options(const NodeOptions& options) {
  LaneOptions lane;
  lane.codec = options.codec;
  lane.peers = options.peers;
  lane.identity = options.identity;
  lane.faults = options.faults;
  return lane;
}

wire::OpenReply refused(wire::OpenCode code, std::string message) {
  wire::OpenReply reply;
  reply.code = code;
  reply.message = std::move(message);
  return reply;
}

}  // namespace

std::unique_ptr<Node> Node::start(NodeOptions options, std::unique_ptr<engine::Engine> engine,
                                  HeadSink* sink) {
  MESH_CHECK(options.local_head_url.empty() || sink != nullptr);
  return std::make_unique<NodeRuntime>(std::move(options), std::move(engine), sink);
}

NodeRuntime::NodeRuntime(NodeOptions options, std::unique_ptr<engine::Engine> engine, HeadSink* sink)
    : options_(std::move(options)),
      engine_(std::move(engine)),
      table_(options_.hop),
      lanes_(lane_options(options_), *this),
      local_head_(sink == nullptr ? nullptr : new LocalHead(*sink, *this)),
      executor_(
          *engine_,
          [this](pipeline::StepOutput output, const StepRecord& record) {
            step_done(std::move(output), record);
          },
          [this](pipeline::PrefixBlockId id) { strand_.post([this, id] { table_.prefix_lost(id); }); },
          options_.faults,
          [this](const pipeline::CacheMoved& moved) {
            strand_.post([this, moved] { table_.cache_moved(moved); });
          }),
      forwards_(*engine_),
      next_second_(clock_.now()) {
  alarm_.set(next_second_);
}

NodeRuntime::~NodeRuntime() {
  stop();
}

void NodeRuntime::stop() {
  book_.close();
  strand_.close();
  alarm_.stop();
  lanes_.stop();
  if (local_head_ != nullptr) local_head_->stop();
  executor_.stop();
}

template <class Call>
auto NodeRuntime::ask(Call call) -> std::optional<std::invoke_result_t<Call>> {
  using Result = std::invoke_result_t<Call>;
  auto promise = std::make_shared<std::promise<std::optional<Result>>>();
  auto future = promise->get_future();
  const bool posted =
      strand_.post([promise, call = std::move(call)]() mutable { promise->set_value(call()); });
  if (!posted) return std::nullopt;
  return future.get();
}

wire::OpenReply NodeRuntime::open(const wire::OpenRequest& request) {
  auto reply = ask([this, request] { return open_here(request); });
  return reply ? *reply : refused(wire::OpenCode::kDraining, "the node stops");
}

wire::OpenReply NodeRuntime::open_here(const wire::OpenRequest& request) {
  const auto view = shard_view(request);
  table_.set_cache_bytes(cache_bytes());
  const std::uint64_t before = table_.promised_bytes();
  wire::OpenReply reply = table_.open(request, view, now());
  if (const std::uint64_t needed = table_.promised_bytes(); needed > before) {
    // A load or a forward may have taken it since cache_bytes().
    if (const Status promised = promise(needed); !promised.ok()) {
      table_.withdraw(request.key());
      reply = refused(wire::OpenCode::kNoRoom, std::string(message_of(promised)));
    }
  }
  if (const auto keys = table_.keys(request.key())) {
    book_.set(request.key(), {*keys, request.identity, request.range, request.takes_ids});
  }
  if (reply.code == wire::OpenCode::kOpened) warm_lanes(request);
  return reply;
}

// What the session will send to: connecting takes a round trip, in which the other hops are opened.
void NodeRuntime::warm_lanes(const wire::OpenRequest& request) {
  if (request.next) {
    lanes_.warm(request.next->url, wire::Lane::kDecode);
    lanes_.warm(request.next->url, wire::Lane::kBulk);
  } else if (!is_local(request.head_url)) {
    lanes_.warm(request.head_url, wire::Lane::kDecode);
  }
}

std::optional<pipeline::ShardView> NodeRuntime::shard_view(const wire::OpenRequest& request) const {
  // A session that is here already goes on with a shard that drains.
  const bool known = table_.keys(request.key()).has_value();
  const auto shard = known ? shards_.find(request.identity, request.range, request.takes_ids)
                           : shards_.find_open(request.identity, request.range, request.takes_ids);
  if (shard == nullptr) return std::nullopt;
  const engine::ModelProfile& profile = shard->profile();
  pipeline::ShardView view;
  view.hidden_size = profile.hidden;
  view.cache_bytes_per_token = engine_->cache_bytes_per_token(*shard, request.range);
  view.max_tokens = profile.max_positions;
  view.ends_model = request.range.end == profile.layer_count();
  return view;
}

Status NodeRuntime::promise(std::uint64_t bytes) {
  if (bytes == promised_) return absl::OkStatus();
  MESH_RETURN_IF_ERROR(promise_->resize(bytes));
  promised_ = bytes;
  return absl::OkStatus();
}

void NodeRuntime::claim_room() {
  std::uint64_t bytes = cache_bytes();
  while (!promise(std::max(promised_, std::min(bytes, table_.wanted_bytes()))).ok()) {
    const std::uint64_t less = cache_bytes();  // taken meanwhile
    bytes = less < bytes ? less : promised_;
  }
  table_.set_cache_bytes(bytes);
}

std::uint64_t NodeRuntime::cache_bytes() const {
  const engine::MemoryUse memory = engine_->memory();
  const std::uint64_t others = memory.weight_bytes + memory.working_bytes + forwards_.bytes();
  return std::min(options_.hop.cache_bytes, memory.budget_bytes - std::min(memory.budget_bytes, others));
}

void NodeRuntime::close(const wire::CloseRequest& request) {
  ask([this, request] {
    table_.close(request, now());
    book_.sweep(table_);
    return true;
  });
}

wire::CursorsReply NodeRuntime::cursors(const wire::CursorsRequest& request) {
  auto reply = ask([this, request] { return table_.cursors(request); });
  if (reply) return *std::move(reply);
  wire::CursorsReply unknown;
  for (const wire::HopKey& hop : request.hops) unknown.hops.push_back({hop, false, {}, 0});
  return unknown;
}

wire::RenewReply NodeRuntime::renew(const wire::RenewRequest& request) {
  auto reply = ask([this, request] { return table_.renew(request, now()); });
  return reply ? *std::move(reply) : wire::RenewReply{request.sessions};
}

std::vector<wire::SegmentAnswer> NodeRuntime::accept(std::vector<Arrival> segments) {
  std::vector<wire::SegmentAnswer> unknown;
  for (const Arrival& one : segments) {
    unknown.push_back({one.segment.key(), one.segment.seq, wire::AnswerCode::kUnknownSession, {}});
  }
  auto answers = ask([this, segments = std::move(segments)]() mutable {
    std::vector<wire::SegmentAnswer> list;
    list.reserve(segments.size());
    for (Arrival& one : segments) list.push_back(accept_one(std::move(one)));
    return list;
  });
  return answers ? *std::move(answers) : unknown;
}

wire::SegmentAnswer NodeRuntime::accept_one(Arrival arrival) {
  if (!arrival.verified) {
    const wire::HopKey hop = arrival.segment.key();
    const auto keys = table_.keys(hop);
    if (keys && keys->generation == arrival.segment.generation) {
      // Opened between the check of the MAC and now: the sender tries again.
      return {hop, arrival.segment.seq, wire::AnswerCode::kNotOpenedYet, {}};
    }
  }
  return table_.accept(std::move(arrival.segment), now());
}

// Whatever has come meanwhile was taken in before: steps and frames then carry more.
void NodeRuntime::pump() {
  const TimePoint at = now();
  const auto due = table_.next_wakeup();
  if (due && *due <= at) table_.tick(at);
  if (at >= next_second_) every_second();
  take_orders();
  begin_steps();
  send_frames();
  send_to_heads();
  if (!orders_.empty()) executor_.carry_out(orders_);
  promise(table_.promised_bytes()).IgnoreError();  // sessions have ended; what kept prompts lack will be free
  TimePoint next = std::min(table_.next_wakeup().value_or(next_second_), next_second_);
  if (steps_.size() < engine_->steps_at_once()) next = std::min(next, table_.ahead_from().value_or(next));
  alarm_.set(next);
}

/// While a step runs the next one waits for others to share it, until just before its turn.
void NodeRuntime::begin_steps() {
  while (steps_.size() < engine_->steps_at_once()) {
    if (!steps_.empty()) {
      const auto from = table_.ahead_from();
      if (!from || *from > now()) return;
    }
    if (!begin_step()) return;
  }
}

void NodeRuntime::every_second() {
  const TimePoint at = now();
  next_second_ = at + std::chrono::seconds(1);
  table_.tick(at);
  book_.sweep(table_);
  lanes_.end_idle(at);
}

void NodeRuntime::take_orders() {
  for (pipeline::CacheOrder& order : table_.take_orders()) {
    CacheJob& job = orders_.emplace_back(CacheJob{std::move(order), nullptr});
    if (const auto* begins = std::get_if<pipeline::BeginCache>(&job.order))
      job.shard = shards_.find(begins->identity, begins->range, begins->takes_ids);
  }
}

bool NodeRuntime::begin_step() {
  if (table_.waits_for_room()) claim_room();
  auto work = table_.next_step(now());
  take_orders();  // who was let in for it
  if (!work) return false;
  StepJob job;
  job.orders = std::exchange(orders_, {});
  job.shard = shards_.find(work->identity, work->range, work->takes_ids);
  std::vector<wire::HopKey>& heads = steps_[work->id];
  for (const pipeline::StepSegment& segment : work->segments) {
    if (work->takes_ids) heads.push_back(segment.hop);
  }
  job.work = *std::move(work);
  return executor_.run(std::move(job));
}

void NodeRuntime::step_done(pipeline::StepOutput output, const StepRecord& record) {
  if (options_.observer != nullptr) options_.observer->on_step(record.lane, record.took);
  shards_.note_step(record.identity, record.range, record.lane, record.rows, record.took);
  {
    const std::lock_guard lock(totals_mutex_);
    ++totals_.steps;
    totals_.step_rows += record.rows;
    totals_.step_segments += record.segments;
    totals_.layer_rows += std::uint64_t{record.rows} * record.range.size();
    if (record.lane == wire::Lane::kDecode) {
      ++totals_.decode_steps;
      totals_.decode_rows += record.rows;
    }
  }
  auto shared = std::make_shared<pipeline::StepOutput>(std::move(output));
  strand_.post([this, shared] {
    const auto step = steps_.extract(shared->id);
    table_.step_done(std::move(*shared), now());
    if (local_head_ == nullptr || step.mapped().empty()) return;
    const wire::CursorsReply cursors = table_.cursors({std::move(step.mapped())});
    for (const wire::CursorEntry& entry : cursors.hops) {
      if (entry.known) local_head_->send(entry);
    }
  });
}

void NodeRuntime::send_frames() {
  while (auto frame = table_.next_frame(now())) {
    const std::uint64_t id = frame->id;
    if (const Status sent = lanes_.send(*std::move(frame)); !sent.ok()) table_.frame_failed(id, sent, now());
  }
  while (auto question = table_.next_ask(now())) {
    const std::uint64_t id = question->id;
    if (!lanes_.send(*std::move(question)).ok()) table_.ask_failed(id, now());
  }
}

bool NodeRuntime::is_local(const std::string& head_url) const {
  return local_head_ != nullptr && head_url == options_.local_head_url;
}

void NodeRuntime::send_to_heads() {
  while (auto tokens = table_.next_tokens(now())) {
    const std::uint64_t id = tokens->id;
    const bool local = is_local(tokens->head_url);
    const bool sent = local ? local_head_->send(*std::move(tokens)) : lanes_.send(*std::move(tokens)).ok();
    if (!sent) table_.tokens_failed(id, now());
  }
  while (auto report = table_.next_report(now())) {
    const std::uint64_t id = report->id;
    const bool local = is_local(report->head_url);
    const bool sent = local ? local_head_->send(*std::move(report)) : lanes_.send(*std::move(report)).ok();
    if (!sent) table_.report_failed(id, now());
  }
}

void NodeRuntime::frame_done(std::uint64_t id, StatusOr<std::vector<wire::SegmentAnswer>> answers) {
  if (!answers.ok()) answers = detached(answers.status());
  strand_.post([this, id, answers = std::move(answers)] {
    if (answers.ok()) {
      table_.frame_answered(id, *answers, now());
    } else {
      table_.frame_failed(id, answers.status(), now());
    }
  });
}

void NodeRuntime::ask_done(std::uint64_t id, StatusOr<wire::CursorsReply> reply) {
  if (!reply.ok()) reply = detached(reply.status());
  strand_.post([this, id, reply = std::move(reply)] {
    if (reply.ok()) {
      table_.ask_answered(id, *reply, now());
    } else {
      table_.ask_failed(id, now());
    }
  });
}

void NodeRuntime::tokens_done(std::uint64_t id, StatusOr<std::vector<wire::TokenAnswer>> answers) {
  if (!answers.ok()) answers = detached(answers.status());
  strand_.post([this, id, answers = std::move(answers)] {
    if (answers.ok()) {
      table_.tokens_answered(id, *answers, now());
    } else {
      table_.tokens_failed(id, now());
    }
  });
}

void NodeRuntime::report_done(std::uint64_t id, const Status& status) {
  strand_.post([this, id, delivered = status.ok()] {
    if (delivered) {
      table_.report_answered(id);
    } else {
      table_.report_failed(id, now());
    }
  });
}

Status NodeRuntime::load_shard(const std::shared_ptr<hub::Checkpoint>& files, const ModelIdentity& identity,
                               const engine::ShardSpec& spec, const engine::ProgressCallback& progress) {
  MESH_ASSIGN_OR_RETURN(const bool needed, shards_.begin_load(identity, spec));
  if (!needed) return absl::OkStatus();
  LayerRange part;  // that takes sessions while the rest is loaded
  const auto note = [&](const engine::LoadProgress& so_far) {
    shards_.note_progress(identity, spec, so_far.bytes_done, so_far.bytes_total);
    if (so_far.ready.size() > part.size() && offer_part(*files, identity, spec, so_far.ready))
      part = so_far.ready;
    return !strand_.closed() && (!progress || progress(so_far));
  };
  auto shard = engine_->load(*files, identity, spec, note);
  if (shard.status().code() == StatusCode::kResourceExhausted && let_prefixes_go())
    shard = engine_->load(*files, identity, spec, note);
  if (!shard.ok()) {
    shards_.abandon_load(identity, spec);
    return shard.status();
  }
  shards_.finish_load(*std::move(shard));
  return absl::OkStatus();
}

bool NodeRuntime::offer_part(hub::Checkpoint& files, const ModelIdentity& identity,
                             const engine::ShardSpec& spec, const LayerRange& ready) {
  auto shard = engine_->load(files, identity, {ready, spec.embedding, false, spec.quantization}, {});
  if (shard.ok()) shards_.note_part(spec, *std::move(shard));
  return shard.ok();
}

/// Prompts are kept in memory that nothing else wants; a shard wants it. Waits until the engine has it back.
bool NodeRuntime::let_prefixes_go() {
  const auto freed = ask([this] {
    const std::uint64_t bytes = table_.shrink_prefixes(~std::uint64_t{0});
    promise(table_.promised_bytes()).IgnoreError();
    take_orders();
    executor_.carry_out(orders_);
    return bytes;
  });
  if (!freed || *freed == 0) return false;
  auto done = std::make_shared<std::promise<void>>();
  auto future = done->get_future();
  if (!executor_.call([done] { done->set_value(); })) return false;
  return future.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
}

Status NodeRuntime::drop_shard(const ModelIdentity& identity, const LayerRange& range) {
  MESH_RETURN_IF_ERROR(shards_.begin_drain(identity, range));
  // Sessions go on without a pause when another shard holds their layers.
  book_.wait_unused(identity, range, now() + options_.drain, [this](const SessionBook::Entry& session) {
    return shards_.find_open(session.identity, session.range, session.takes_ids) != nullptr;
  });
  shards_.remove(identity, range);
  return absl::OkStatus();
}

StatusOr<engine::ModelProfile> NodeRuntime::profile(const ModelIdentity& identity) const {
  return shards_.profile(identity);
}

StatusOr<ForwardReply> NodeRuntime::forward(ForwardRequest request) {
  const auto shard = shards_.find(request.identity, request.range, !request.ids.empty());
  if (shard == nullptr) {
    return error(StatusCode::kNotFound, "layers {} of this model with {} as input are not held here",
                 to_string(request.range), request.ids.empty() ? "hidden states" : "text");
  }
  auto promise = std::make_shared<std::promise<StatusOr<ForwardReply>>>();
  auto future = promise->get_future();
  auto shared = std::make_shared<ForwardRequest>(std::move(request));
  const bool queued = executor_.call([this, promise, shard, shared] {
    promise->set_value(forwards_.run(shard, std::move(*shared), now()));
  });
  if (!queued) return error(StatusCode::kUnavailable, "the node stops");
  return future.get();
}

NodeFigures NodeRuntime::figures() {
  NodeFigures figures;
  {
    const std::lock_guard lock(totals_mutex_);
    figures = totals_;
  }
  if (auto stats = ask([this] { return table_.stats(); })) figures.hop = *stats;
  figures.memory = engine_->memory();
  figures.shards = shards_.figures();
  if (const std::uint64_t widest = shards_.widest_cache(cache_format(*engine_)); widest > 0) {
    figures.cache_blocks_capacity = figures.memory.cache_blocks + figures.memory.shared_blocks +
                                    figures.memory.free_bytes() / (widest * kKvBlockTokens);
  }
  figures.links = lanes_.counters();
  return figures;
}

void NodeRuntime::set_draining(bool draining) {
  ask([this, draining] {
    table_.set_draining(draining);
    return true;
  });
}

void NodeRuntime::wait_idle(Duration longest) {
  book_.wait_empty(now() + longest);
}

}  // namespace mesh
