#include "node/runtime/lane.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "common/identity/signed_message.h"
#include "common/net/message.h"
#include "common/wire/frame.h"
#include "common/wire/session_json.h"
#include "common/wire/token_codec.h"

namespace mesh {
namespace {

using std::chrono::seconds;

constexpr Duration kConnectTimeout = seconds(2);
constexpr Duration kAnswerTimeout = seconds(3);
/// A connection that was used so lately is taken to be open.
constexpr Duration kStaysOpen = seconds(10);
constexpr const char* kHealthRoute = "/health";
/// A decode frame is small: its bytes are out long before its answer is back.
constexpr Duration kLongestPause = std::chrono::milliseconds(5);
/// Slowest link that is waited for, beyond kAnswerTimeout.
constexpr double kSlowestBytesPerSecond = 128 * 1024;

Duration timeout_for(std::size_t body_bytes) {
  const double extra = static_cast<double>(body_bytes) / kSlowestBytesPerSecond;
  return kAnswerTimeout + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(extra));
}

}  // namespace

void Precedence::decode_begins() {
  const std::lock_guard lock(mutex_);
  ++decoding_;
}

void Precedence::decode_ended() {
  {
    const std::lock_guard lock(mutex_);
    --decoding_;
  }
  changed_.notify_all();
}

void Precedence::let_decode_pass(Duration longest) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, longest, [&] { return decoding_ == 0; });
}

class Lane::Worker {
 public:
  explicit Worker(Lane& lane) : lane_(lane) {
    thread_ = lane.options_.start_thread([this] { loop(); });
  }
  ~Worker() { thread_.join(); }

  void cancel() {
    const std::lock_guard lock(client_mutex_);
    if (client_ != nullptr) client_->cancel();
  }

 private:
  bool is_decode() const { return lane_.options_.lane == wire::Lane::kDecode; }

  void loop() {
    while (auto item = lane_.queue_.pop(turn_)) {
      const bool passes_bulk = is_decode() && !std::holds_alternative<Warm>(*item);
      if (passes_bulk) lane_.options_.precedence->decode_begins();
      std::visit([this](auto& one) { post(one); }, *item);
      if (passes_bulk) lane_.options_.precedence->decode_ended();
      lane_.note_done();
    }
  }

  Status make_client() {
    if (lane_.queue_.closed()) return error(StatusCode::kCancelled, "the node stops");
    if (client_ != nullptr) return absl::OkStatus();
    net::ClientOptions options;
    options.addresses = lane_.options_.peers;
    options.connect_timeout = kConnectTimeout;
    MESH_ASSIGN_OR_RETURN(auto made, net::Client::make(lane_.options_.url, options));
    const std::lock_guard lock(client_mutex_);
    client_ = std::move(made);
    return absl::OkStatus();
  }

  // A connection is made by a request, the cheapest there is; one that the other side has closed is made
  // anew.
  void post(const Warm&) {
    if (clock_.now() - last_answer_ < kStaysOpen || !make_client().ok()) return;
    net::CallOptions options;
    options.timeout = kConnectTimeout;
    if (client_->get(kHealthRoute, options).ok()) last_answer_ = clock_.now();
  }

  StatusOr<net::Reply> call(std::string_view route, const std::string& body, std::string_view type,
                            bool sign) {
    MESH_RETURN_IF_ERROR(make_client());
    net::CallOptions options;
    options.timeout = timeout_for(body.size());
    options.idempotent = true;
    if (!is_decode())
      options.before_piece = [this] { lane_.options_.precedence->let_decode_pass(kLongestPause); };
    if (sign && lane_.options_.identity != nullptr) {
      const MessageSignature signature = sign_message(*lane_.options_.identity, route, body);
      options.headers.add(kKeyHeader, signature.key_hex);
      options.headers.add(kSignatureHeader, signature.signature_hex);
    }
    auto reply = client_->post(std::string(route), body, type, options);
    if (!reply.ok()) {
      lane_.note_failure();
      return reply.status();
    }
    if (const Status refused = reply->as_status(); !refused.ok()) {
      lane_.note_failure();
      return with_context(refused, lane_.options_.url);
    }
    last_answer_ = clock_.now();
    return reply;
  }

  void post(pipeline::OutFrame& frame) {
    pass(lane_.options_.faults, FaultPoint::kBeforeCoding);
    wire::FrameWriter writer;
    for (const pipeline::OutSegment& out : frame.segments) {
      wire::Codec codec;
      const std::uint64_t raw = out.segment.hidden == nullptr ? 0 : out.segment.hidden->size();
      {
        const std::lock_guard lock(lane_.mutex_);
        codec = lane_.chooser_.choose(raw);
      }
      const std::uint64_t coded_before = writer.coded_bytes();
      const TimePoint began = clock_.now();
      writer.add(out.segment, out.secret, codec, coder_);
      if (codec != wire::Codec::kIdentity) {
        const std::lock_guard lock(lane_.mutex_);
        lane_.chooser_.encoded(raw, writer.coded_bytes() - coded_before, clock_.now() - began);
      }
    }
    const std::uint64_t raw = writer.raw_bytes();
    const std::uint64_t coded = writer.coded_bytes();
    const std::string body = writer.finish();
    const TimePoint began = clock_.now();
    pass(lane_.options_.faults, FaultPoint::kBeforeSend);
    const auto reply = call(wire::kFramesRoute, body, wire::kFrameContentType, false);
    if (!reply.ok()) return lane_.events_.frame_done(frame.id, reply.status());
    pass(lane_.options_.faults, FaultPoint::kAfterSend);
    lane_.note_posted(raw, coded, body.size(), clock_.now() - began);
    lane_.events_.frame_done(frame.id, wire::parse_segment_answers(reply->body));
  }

  void post(pipeline::OutAsk& ask) {
    const auto reply = call(wire::kCursorsRoute, wire::write_cursors(ask.request), net::kJsonType, true);
    if (!reply.ok()) return lane_.events_.ask_done(ask.id, reply.status());
    lane_.events_.ask_done(ask.id, wire::read_cursors_reply(reply->body));
  }

  void post(pipeline::OutTokens& tokens) {
    std::vector<wire::SignedToken> list;
    list.reserve(tokens.tokens.size());
    for (const pipeline::OutToken& one : tokens.tokens) list.push_back({one.message, one.secret});
    pass(lane_.options_.faults, FaultPoint::kBeforeSend);
    const auto reply = call(wire::kTokensRoute, wire::encode_tokens(list), wire::kTokensContentType, false);
    if (!reply.ok()) return lane_.events_.tokens_done(tokens.id, reply.status());
    pass(lane_.options_.faults, FaultPoint::kAfterSend);
    lane_.events_.tokens_done(tokens.id, wire::parse_token_answers(reply->body));
  }

  void post(pipeline::OutReport& report) {
    const auto reply = call(wire::kReportRoute, wire::write_report(report.report), net::kJsonType, true);
    lane_.events_.report_done(report.id, reply.status());
  }

  Lane& lane_;
  LaneQueue<Item>::Turn turn_;
  const SteadyClock clock_;
  wire::HiddenCodec coder_;
  std::mutex client_mutex_;  ///< guards the pointer against cancel()
  std::unique_ptr<net::Client> client_;
  TimePoint last_answer_{};
  std::thread thread_;
};

Lane::Lane(LaneOptions options, LaneEvents& events)
    : options_(std::move(options)),
      events_(events),
      chooser_(options_.codec),
      last_used_(SteadyClock().now()) {
  counters_.address = options_.url;
}

StatusOr<std::unique_ptr<Lane>> Lane::start(LaneOptions options, LaneEvents& events) {
  std::unique_ptr<Lane> lane(new Lane(std::move(options), events));
  try {
    while (lane->workers_.size() < lane->options_.connections)
      lane->workers_.push_back(std::make_unique<Worker>(*lane));
  } catch (const std::system_error& failure) {
    if (lane->workers_.empty()) {
      return error(StatusCode::kResourceExhausted,
                   "no thread is left to send to {} ({}): raise this system's limit on threads (ulimit -u, a "
                   "service's TasksMax, a container's pids limit)",
                   lane->options_.url, failure.what());
    }
  }
  return lane;
}

Lane::~Lane() {
  stop();
  workers_.clear();
}

void Lane::stop() {
  queue_.close();
  for (const auto& worker : workers_) worker->cancel();
}

bool Lane::send(Item& item) {
  {
    const std::lock_guard lock(mutex_);
    ++pending_;
    last_used_ = SteadyClock().now();
  }
  if (queue_.try_push(item)) return true;
  note_done();
  return false;
}

void Lane::warm() {
  {
    const std::lock_guard lock(mutex_);
    const TimePoint now = SteadyClock().now();
    if (now < warm_until_) return;
    warm_until_ = now + kStaysOpen;
  }
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Item item = Warm{};
    send(item);
  }
}

std::optional<TimePoint> Lane::idle_since() const {
  const std::lock_guard lock(mutex_);
  if (pending_ > 0) return std::nullopt;
  return last_used_;
}

void Lane::note_done() {
  const std::lock_guard lock(mutex_);
  --pending_;
  last_used_ = SteadyClock().now();
}

LinkCounters Lane::counters() const {
  const std::lock_guard lock(mutex_);
  LinkCounters counters = counters_;
  counters.bytes_per_second = chooser_.bandwidth();
  counters.round_trip_seconds = std::chrono::duration<double>(shortest_).count();
  return counters;
}

void Lane::note_posted(std::uint64_t raw_bytes, std::uint64_t coded_bytes, std::size_t body_bytes,
                       Duration took) {
  const std::lock_guard lock(mutex_);
  ++counters_.frames;
  counters_.raw_bytes += raw_bytes;
  counters_.wire_bytes += body_bytes;
  if (shortest_ == Duration{} || took < shortest_) shortest_ = took;
  if (took > shortest_) chooser_.sent(coded_bytes, took - shortest_);
}

void Lane::note_failure() {
  const std::lock_guard lock(mutex_);
  ++counters_.failures;
}

}  // namespace mesh
