#include "tests/sim/sim_node.h"

#include <algorithm>

#include "common/wire/frame.h"
#include "common/wire/session_json.h"
#include "common/wire/token_codec.h"
#include "tests/sim/hop_table_tester.h"

namespace mesh::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kFrameTimeout = seconds(1);
constexpr std::size_t kStepsAtOnce = 2;
constexpr std::uint64_t kBytesPerToken = 16;

}  // namespace

SimNode::SimNode(Setup setup, Timeline& timeline, Network& network, Random& random,
                 std::function<void(const std::string&)> violation)
    : setup_(std::move(setup)),
      timeline_(timeline),
      network_(network),
      random_(random),
      violation_(std::move(violation)) {}

void SimNode::start() {
  table_ = pipeline::HopTableTester::make(setup_.options, setup_.faults);
  network_.listen(setup_.url,
                  [this](const std::string& route, const std::string& body) { return handle(route, body); });
}

void SimNode::crash() {
  network_.stop(setup_.url);
  ++life_;
  table_.reset();
  engine_ = FakeEngine();
  cache_owner_.clear();
  block_owner_.clear();
  steps_running_ = 0;
  armed_.reset();
}

void SimNode::crash_at(CrashPoint point, int occurrence, Duration down) {
  crash_point_ = point;
  crash_countdown_ = occurrence;
  down_ = down;
}

bool SimNode::hit(CrashPoint point) {
  return crash_countdown_ > 0 && point == crash_point_ && --crash_countdown_ == 0;
}

void SimNode::die() {
  ++crashes_;
  crash();
  timeline_.after(down_, [this] { start(); });
}

void SimNode::freeze(Duration how_long) {
  frozen_until_ = timeline_.now() + how_long;
  timeline_.at(frozen_until_, guarded([this] { drain(); }));
}

bool SimNode::blocks_agree() const {
  return engine_.blocks() * kBytesPerToken * kKvBlockTokens == table_->stats().prefix_bytes;
}

std::size_t SimNode::bytes_in_use() const {
  const pipeline::HopStats stats = table_->stats();
  return stats.cache_bytes + stats.spilled_bytes + stats.inbound_bytes + stats.kept_bytes;
}

std::function<void()> SimNode::guarded(std::function<void()> what) {
  return [this, life = life_, what = std::move(what)] {
    if (life == life_ && table_) what();
  };
}

template <class Done>
Network::Done SimNode::reply_to(Done done) {
  return [this, life = life_, done = std::move(done)](StatusOr<std::string> answer) {
    if (life != life_ || !table_) return;
    done(answer);
    drain();
  };
}

wire::OpenReply SimNode::open(const wire::OpenRequest& request) {
  std::optional<pipeline::ShardView> view;
  const bool held = std::any_of(setup_.shards.begin(), setup_.shards.end(),
                                [&](const LayerRange& shard) { return shard.contains(request.range); });
  if (held && request.identity == setup_.identity) {
    view = pipeline::ShardView{FakeEngine::kHidden, kBytesPerToken, 1u << 20,
                               request.range.end == setup_.layers};
  }
  return table_->open(request, view, timeline_.now());
}

StatusOr<std::string> SimNode::take_frame(const std::string& body) {
  MESH_ASSIGN_OR_RETURN(std::vector<wire::ReceivedSegment> segments, wire::parse_frame(body));
  std::vector<wire::SegmentAnswer> answers;
  for (wire::ReceivedSegment& received : segments) {
    const wire::HopKey hop = received.segment.key();
    const auto keys = table_->keys(hop);
    const Generation generation = received.segment.generation;
    const Seq seq = received.segment.seq;
    if (keys && keys->generation == generation) {
      if (!wire::mac_fits(received, keys->secret)) {
        answers.push_back({hop, seq, wire::AnswerCode::kBadMac, {}});
        continue;
      }
    }
    MESH_RETURN_IF_ERROR(wire::decode_hidden(received, codec_));
    answers.push_back(table_->accept(std::move(received.segment), timeline_.now()));
    if (answers.back().code == wire::AnswerCode::kAccepted && keys && generation < keys->generation) {
      violation_("a segment of a stale generation was accepted");
    }
  }
  return wire::encode_segment_answers(answers);
}

StatusOr<std::string> SimNode::handle(const std::string& route, const std::string& body) {
  if (timeline_.now() < frozen_until_) return error(StatusCode::kDeadlineExceeded, "frozen");
  StatusOr<std::string> answer = error(StatusCode::kNotFound, "no route {}", route);
  if (route == wire::kFramesRoute) {
    if (hit(CrashPoint::kFrameArrived)) {
      die();
      return error(StatusCode::kUnavailable, "connection reset");
    }
    answer = take_frame(body);
    if (hit(CrashPoint::kFrameAccepted)) {
      die();
      return error(StatusCode::kUnavailable, "connection reset");
    }
    if (hit(CrashPoint::kAnswerSent)) timeline_.after({}, guarded([this] { die(); }));
  } else if (route == wire::kOpenRoute) {
    MESH_ASSIGN_OR_RETURN(wire::OpenMessage message, wire::read_open(body));
    const auto secret = SessionSecret::from_bytes(message.sealed_secret);
    if (!secret) return error(StatusCode::kInvalidArgument, "secret");
    message.request.secret = *secret;
    answer = wire::write_open_reply(open(message.request));
  } else if (route == wire::kCloseRoute) {
    MESH_ASSIGN_OR_RETURN(const wire::CloseRequest request, wire::read_close(body));
    table_->close(request, timeline_.now());
    answer = std::string("{}");
  } else if (route == wire::kCursorsRoute) {
    MESH_ASSIGN_OR_RETURN(const wire::CursorsRequest request, wire::read_cursors(body));
    answer = wire::write_cursors_reply(table_->cursors(request));
  } else if (route == wire::kRenewRoute) {
    MESH_ASSIGN_OR_RETURN(const wire::RenewMessage message, wire::read_renew(body));
    answer = wire::write_renew_reply(table_->renew(message.request, timeline_.now()));
  }
  drain();
  return answer;
}

/// Watches that what a session begins with was kept of a session of the same principal.
void SimNode::carry_out_orders() {
  for (const pipeline::CacheOrder& order : table_->take_orders()) {
    if (const auto* begins = std::get_if<pipeline::BeginCache>(&order)) {
      cache_owner_[begins->cache] = setup_.principal_of(begins->hop.session);
      for (const pipeline::PrefixBlockId id : begins->blocks) {
        if (block_owner_[id] != cache_owner_[begins->cache])
          violation_("a block of another principal was shared");
      }
      hit_blocks_ += begins->blocks.size();
    } else if (const auto* shared = std::get_if<pipeline::ShareBlock>(&order)) {
      block_owner_[shared->id] = cache_owner_.at(shared->cache);
    }
    engine_.carry_out(order);
    const auto* spilled = std::get_if<pipeline::SpillCache>(&order);
    const auto* restored = std::get_if<pipeline::RestoreCache>(&order);
    if (spilled == nullptr && restored == nullptr) continue;
    const std::uint64_t bytes = random_.between(1, 2000) * kBytesPerToken;
    table_->cache_moved({spilled != nullptr ? spilled->cache : restored->cache, spilled != nullptr,
                         absl::OkStatus(), bytes, setup_.copy_time_per_byte * bytes});
    ++moves_;
  }
  if (engine_.device_tokens() * kBytesPerToken > setup_.options.cache_bytes)
    violation_("the device holds more than it has");
  if (engine_.host_tokens() * kBytesPerToken > setup_.options.spill_bytes)
    violation_("host memory holds more than it may");
  if (engine_.misused()) violation_("a step had a cache that is in host memory");
}

void SimNode::run_steps() {
  while (steps_running_ < kStepsAtOnce) {
    carry_out_orders();
    const std::uint64_t moves = moves_;
    const auto work = table_->next_step(timeline_.now());
    carry_out_orders();
    if (!work && moves_ == moves) return;
    if (!work) continue;  // whoever came back
    ++steps_running_;
    auto output = std::make_shared<pipeline::StepOutput>(engine_.run(*work));
    const Duration took = microseconds(random_.between(200, 3000)) + microseconds(20) * work->rows;
    if (hit(CrashPoint::kStepBegun)) timeline_.after({}, guarded([this] { die(); }));
    timeline_.after(took, guarded([this, output] {
                      if (hit(CrashPoint::kStepComputed)) return die();
                      --steps_running_;
                      table_->step_done(std::move(*output), timeline_.now());
                      drain();
                    }));
  }
}

void SimNode::send_frames() {
  while (const auto frame = table_->next_frame(timeline_.now())) {
    wire::FrameWriter writer;
    for (const pipeline::OutSegment& out : frame->segments) {
      writer.add(out.segment, out.secret, out.segment.rows > 8 ? wire::Codec::kSplit : wire::Codec::kIdentity,
                 codec_);
    }
    network_.post(setup_.url, frame->url, std::string(wire::kFramesRoute), writer.finish(), kFrameTimeout,
                  reply_to([this, id = frame->id](const StatusOr<std::string>& answer) {
                    if (!answer.ok()) return table_->frame_failed(id, answer.status(), timeline_.now());
                    const auto answers = wire::parse_segment_answers(*answer);
                    if (!answers.ok()) return table_->frame_failed(id, answers.status(), timeline_.now());
                    table_->frame_answered(id, *answers, timeline_.now());
                  }));
    if (hit(CrashPoint::kResultSent)) timeline_.after({}, guarded([this] { die(); }));
  }
}

void SimNode::send_messages() {
  while (const auto ask = table_->next_ask(timeline_.now())) {
    network_.post(setup_.url, ask->url, std::string(wire::kCursorsRoute), wire::write_cursors(ask->request),
                  kFrameTimeout, reply_to([this, id = ask->id](const StatusOr<std::string>& answer) {
                    const auto reply = answer.ok() ? wire::read_cursors_reply(*answer) : answer.status();
                    if (!reply.ok()) return table_->ask_failed(id, timeline_.now());
                    table_->ask_answered(id, *reply, timeline_.now());
                  }));
  }
  while (const auto tokens = table_->next_tokens(timeline_.now())) {
    std::vector<wire::SignedToken> list;
    for (const pipeline::OutToken& token : tokens->tokens) list.push_back({token.message, token.secret});
    network_.post(setup_.url, tokens->head_url, std::string(wire::kTokensRoute), wire::encode_tokens(list),
                  kFrameTimeout, reply_to([this, id = tokens->id](const StatusOr<std::string>& answer) {
                    const auto answers = answer.ok() ? wire::parse_token_answers(*answer) : answer.status();
                    if (!answers.ok()) return table_->tokens_failed(id, timeline_.now());
                    table_->tokens_answered(id, *answers, timeline_.now());
                  }));
    if (hit(CrashPoint::kResultSent)) timeline_.after({}, guarded([this] { die(); }));
  }
  while (const auto report = table_->next_report(timeline_.now())) {
    network_.post(setup_.url, report->head_url, fmt::format("{}?{}", wire::kReportRoute, setup_.id.hex()),
                  wire::write_report(report->report), kFrameTimeout,
                  reply_to([this, id = report->id](const StatusOr<std::string>& answer) {
                    if (answer.ok()) {
                      table_->report_answered(id);
                    } else {
                      table_->report_failed(id, timeline_.now());
                    }
                  }));
  }
}

void SimNode::drain() {
  if (!table_ || timeline_.now() < frozen_until_) return;
  table_->tick(timeline_.now());
  run_steps();
  send_frames();
  send_messages();
  carry_out_orders();
  const auto wakeup = table_->next_wakeup();
  if (!wakeup || (armed_ && *armed_ <= *wakeup && *armed_ > timeline_.now())) return;
  armed_ = std::max(*wakeup, timeline_.now() + microseconds(1));
  timeline_.at(*armed_, guarded([this] { drain(); }));
}

}  // namespace mesh::sim
