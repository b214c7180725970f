#include "node/agent/agent.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace mesh {
namespace {

using std::chrono::milliseconds;

constexpr Duration kFirstBackOff = milliseconds(250);
constexpr Duration kLongestBackOff = std::chrono::seconds(15);
constexpr std::uint32_t kLongestDouble = 6;  // 250 ms · 2⁶ is beyond the longest
constexpr std::size_t kPastKept = 1024;
constexpr std::size_t kWaitingAtMost = 256;

std::string shard_name(const wire::CatalogueEntry* model, const LayerRange& layers) {
  return fmt::format("layers {} of {}", to_string(layers),
                     model == nullptr ? "an unknown model" : model->name);
}

bool accepts(const std::vector<std::string>& accepted, const std::string& value) {
  return std::find(accepted.begin(), accepted.end(), value) != accepted.end();
}

}  // namespace

AgentCore::AgentCore(AgentOptions options, TimePoint now)
    : options_(std::move(options)),
      next_call_(now),
      random_(options_.jitter_seed),
      heartbeat_(milliseconds(2000)),
      lease_time_(milliseconds(6000)),
      highest_epoch_(options_.highest_epoch) {}

void AgentCore::on_time(TimePoint now) {
  if (state_ == AgentState::kLeft) return;
  note_lapse(now);
  if (active_ == std::nullopt) begin_next(now);
  if (in_flight_ != Call::kNone || now < next_call_) return;
  if (state_ == AgentState::kApart) {
    send_join(now);
  } else {
    send_heartbeat(now);
  }
}

TimePoint AgentCore::next_wakeup() const {
  if (state_ == AgentState::kLeft) return TimePoint::max();
  TimePoint next = in_flight_ == Call::kNone ? next_call_ : TimePoint::max();
  if (state_ == AgentState::kMember) next = std::min(next, lease_until_);
  return next;
}

bool AgentCore::accepts_new_work(TimePoint now) const {
  return state_ == AgentState::kMember && !draining_ && now < lease_until_;
}

void AgentCore::send_join(TimePoint now) {
  wire::Join join = options_.self;
  join.stamp.number = ++number_;
  join.shards = shards_;
  join.highest_epoch = highest_epoch_;
  state_ = AgentState::kJoining;
  in_flight_ = Call::kJoin;
  call_sent_ = now;
  effects_.push_back(SendJoin{std::move(join)});
}

void AgentCore::send_heartbeat(TimePoint now) {
  wire::Heartbeat beat;
  beat.stamp = {options_.self.stamp.start, ++number_};
  beat.lease = lease_;
  beat.last_reply = last_reply_;
  beat.highest_epoch = highest_epoch_;
  beat.draining = draining_;
  beat.shards = shards_;
  carried_.clear();
  for (const auto& [id, status] : unacknowledged_) {
    beat.directives.push_back(status);
    if (is_final(status.state)) carried_.push_back(id);
  }
  beat.load = load_;
  beat.stage_times = stages_;
  beat.links = links_;
  in_flight_ = Call::kHeartbeat;
  call_sent_ = now;
  effects_.push_back(SendHeartbeat{std::move(beat)});
}

void AgentCore::on_join_reply(TimePoint now, const wire::JoinReply& reply) {
  if (state_ == AgentState::kLeft || in_flight_ != Call::kJoin) return;
  in_flight_ = Call::kNone;
  const wire::Stamp asked{options_.self.stamp.start, number_};
  if (reply.answers != asked || reply.node != options_.node) {
    say(Say::Level::kWarning, "the tracker's reply to the join answers another message; joining again");
    return back_off(now);
  }
  state_ = AgentState::kMember;
  failures_ = 0;
  lease_ = reply.lease;
  last_reply_ = reply.reply;
  heartbeat_ = milliseconds(std::max<std::uint32_t>(reply.heartbeat_ms, 100));
  lease_time_ = milliseconds(std::max<std::uint32_t>(reply.lease_ms, 300));
  lease_until_ = call_sent_ + lease_time_;
  catalogue_ = reply.catalogue;
  note_epoch(reply.epoch);
  next_call_ = now;  // the first heartbeat's reply brings what there is to load
  say(Say::Level::kInfo, fmt::format("joined the tracker (version {}), {} models in its catalogue",
                                     reply.program_version, catalogue_.size()));
}

void AgentCore::on_heartbeat_reply(TimePoint now, const wire::HeartbeatReply& reply,
                                   const std::vector<CheckedDirective>& directives) {
  if (state_ == AgentState::kLeft || in_flight_ != Call::kHeartbeat) return;
  in_flight_ = Call::kNone;
  next_call_ = std::max(now, call_sent_ + heartbeat_);
  if (reply.answers != wire::Stamp{options_.self.stamp.start, number_}) {
    say(Say::Level::kWarning, "a reply of the tracker answers another heartbeat; ignored");
    return;
  }
  if (reply.lease != lease_) return rejoin_now(now, "the tracker began another lease");
  failures_ = 0;
  last_reply_ = reply.reply;
  lease_until_ = call_sent_ + lease_time_;
  if (now >= lease_until_) {
    // The reply came too late to be worth anything: the tracker may have given the layers away.
    note_lapse(now);
  } else if (state_ == AgentState::kLapsed) {
    state_ = AgentState::kMember;
    say(Say::Level::kInfo, "the tracker answers again");
  }
  for (const auto& id : carried_) {
    const auto found = unacknowledged_.find(id);
    if (found != unacknowledged_.end() && is_final(found->second.state)) unacknowledged_.erase(found);
  }
  carried_.clear();
  if (reply.catalogue) catalogue_ = *reply.catalogue;
  note_epoch(reply.epoch);
  if (state_ == AgentState::kMember) {
    for (const auto& checked : directives) take_directive(now, checked);
  }
  begin_next(now);
}

void AgentCore::on_call_failed(TimePoint now, const CallFailure& failure) {
  if (state_ == AgentState::kLeft || in_flight_ == Call::kNone) return;
  const bool joining = in_flight_ == Call::kJoin;
  in_flight_ = Call::kNone;
  carried_.clear();
  const std::string& code = failure.error.code;
  if (code == "upgrade" || (joining && (code == "join_key" || code == "signature"))) {
    state_ = AgentState::kLeft;
    const std::string install =
        failure.error.install.empty()
            ? ""
            : fmt::format(": install meshnet {} on this machine", failure.error.install);
    effects_.push_back(GiveUp{error(StatusCode::kFailedPrecondition, "the tracker refuses this node: {}{}",
                                    failure.error.message, install)});
    return;
  }
  if (!joining && (code == "unknown_node" || code == "wrong_lease"))
    return rejoin_now(now, "the tracker does not know this node's lease");
  if (failures_ == 0 || said_ != message_of(failure.status)) {
    said_ = message_of(failure.status);
    say(Say::Level::kWarning,
        fmt::format("the tracker cannot be reached: {}; trying again by itself", said_));
  }
  note_lapse(now);
  back_off(now);
}

void AgentCore::rejoin_now(TimePoint now, const std::string& why) {
  say(Say::Level::kInfo, why + ": joining again with what is loaded");
  state_ = AgentState::kApart;
  // Spread over a second, so that the nodes of a restarted tracker do not all come at once.
  next_call_ = now + Duration(static_cast<std::int64_t>(jitter() * 1e9));
}

void AgentCore::back_off(TimePoint now) {
  const Duration ceiling =
      std::min(kLongestBackOff, kFirstBackOff * (1 << std::min(failures_, kLongestDouble)));
  ++failures_;
  if (state_ == AgentState::kJoining) state_ = AgentState::kApart;
  const bool member = state_ == AgentState::kMember || state_ == AgentState::kLapsed;
  const Duration longest = member ? std::min(ceiling, heartbeat_) : ceiling;
  next_call_ =
      now + Duration(static_cast<std::int64_t>(static_cast<double>(longest.count()) * (0.5 + jitter() / 2)));
}

void AgentCore::note_epoch(Epoch epoch) {
  if (epoch <= highest_epoch_) return;
  highest_epoch_ = epoch;
  effects_.push_back(StoreEpoch{epoch});
}

void AgentCore::note_lapse(TimePoint now) {
  if (state_ != AgentState::kMember || now < lease_until_) return;
  state_ = AgentState::kLapsed;
  say(Say::Level::kWarning,
      "the lease ended without an answer of the tracker: no new sessions until it returns");
}

void AgentCore::set_shards(std::vector<wire::ShardStatus> shards) {
  shards_ = std::move(shards);
}

void AgentCore::set_figures(wire::NodeLoad load, std::vector<wire::StageTime> stages,
                            std::vector<wire::LinkFigure> links) {
  load_ = load;
  stages_ = std::move(stages);
  links_ = std::move(links);
}

void AgentCore::take_directive(TimePoint now, const CheckedDirective& checked) {
  const wire::Directive& directive = checked.directive;
  if (!checked.signature.ok()) {
    say(Say::Level::kError, fmt::format("refused a directive: {}", message_of(checked.signature)));
    if (!directive.id.empty()) {
      const std::string why(message_of(checked.signature));
      unacknowledged_[directive.id] = {directive.id, wire::DirectiveState::kRefused, why};
    }
    return;
  }
  const auto same = [&](const auto& known) { return known.id == directive.id; };
  if (unacknowledged_.contains(directive.id)) return;
  if (const auto known = std::find_if(past_.begin(), past_.end(), same); known != past_.end()) {
    unacknowledged_[directive.id] = *known;
    return;
  }
  if (const Status refusal = verdict(directive); !refusal.ok()) {
    say(Say::Level::kWarning, fmt::format("refused a directive: {}", message_of(refusal)));
    return finish(directive.id, wire::DirectiveState::kRefused, std::string(message_of(refusal)));
  }
  note_epoch(directive.epoch);
  unacknowledged_[directive.id] = {directive.id, wire::DirectiveState::kAccepted, ""};
  waiting_.push_back({directive, now + milliseconds(directive.expires_in_ms)});
}

Status AgentCore::verdict(const wire::Directive& directive) const {
  if (directive.node != options_.node) {
    return error(StatusCode::kPermissionDenied, "it is for node {}, this is {}", directive.node.hex(),
                 options_.node.hex());
  }
  if (directive.epoch < highest_epoch_) {
    return error(StatusCode::kFailedPrecondition, "its epoch {} is older than {}, already seen",
                 directive.epoch.value, highest_epoch_.value);
  }
  if (directive.expires_in_ms == 0) return error(StatusCode::kDeadlineExceeded, "it has expired");
  if (waiting_.size() >= kWaitingAtMost) {
    return error(StatusCode::kResourceExhausted, "{} directives wait already", waiting_.size());
  }
  if (directive.kind == wire::DirectiveKind::kDropShard) return absl::OkStatus();
  if (draining_) return error(StatusCode::kUnavailable, "this node is draining");
  const wire::CatalogueEntry* model = find_model(directive.model);
  if (model == nullptr) {
    return error(StatusCode::kNotFound, "model {} is not in the catalogue", directive.model.hex());
  }
  return verdict_load(directive, *model);
}

Status AgentCore::verdict_load(const wire::Directive& directive, const wire::CatalogueEntry& model) const {
  if (directive.layers.empty() || directive.layers.end > model.layer_count) {
    return error(StatusCode::kOutOfRange, "layers {} are empty or outside {}, which has {}",
                 to_string(directive.layers), model.name, model.layer_count);
  }
  if (directive.quantization != model.quantization) {
    return error(StatusCode::kInvalidArgument,
                 "it says quantization {}, the catalogue says {} for this model", directive.quantization,
                 model.quantization);
  }
  if (!accepts(options_.self.quantizations, model.quantization)) {
    return error(StatusCode::kPermissionDenied, "this node does not accept quantization {} (--quantization)",
                 model.quantization);
  }
  if (!accepts(options_.self.compute_types, model.compute_type)) {
    return error(StatusCode::kPermissionDenied, "this node does not compute in {} (--dtype)",
                 model.compute_type);
  }
  return absl::OkStatus();
}

void AgentCore::begin_next(TimePoint now) {
  if (state_ != AgentState::kMember) return;
  while (!active_ && !waiting_.empty()) {
    const Pending next = waiting_.front();
    waiting_.pop_front();
    const wire::Directive& directive = next.directive;
    if (now >= next.expires) {
      finish(directive.id, wire::DirectiveState::kFailed, "it expired before it could begin");
      continue;
    }
    const auto* model = find_model(directive.model);
    const auto held = std::find_if(shards_.begin(), shards_.end(), [&](const wire::ShardStatus& shard) {
      const bool range = directive.kind == wire::DirectiveKind::kLoadShard
                             ? shard.layers.contains(directive.layers)
                             : shard.layers == directive.layers;
      return shard.model == directive.model && range;
    });
    if (directive.kind == wire::DirectiveKind::kLoadShard) {
      if (held != shards_.end() && held->state == wire::ShardState::kReady) {
        finish(directive.id, wire::DirectiveState::kDone, "");
        continue;
      }
      if (model == nullptr) {
        finish(directive.id, wire::DirectiveState::kFailed, "its model left the catalogue");
        continue;
      }
      say(Say::Level::kInfo, "loading " + shard_name(model, directive.layers));
      effects_.push_back(BeginLoad{directive.id, *model, directive.layers});
    } else {
      if (held == shards_.end()) {
        finish_missing_drop(directive);
        continue;
      }
      say(Say::Level::kInfo, "draining and dropping " + shard_name(model, directive.layers));
      effects_.push_back(BeginDrop{directive.id, directive.model, directive.layers});
    }
    unacknowledged_[directive.id] = {directive.id, wire::DirectiveState::kWorking, ""};
    active_ = next;
  }
}

void AgentCore::finish_missing_drop(const wire::Directive& directive) {
  for (const wire::ShardStatus& shard : shards_) {
    const LayerRange& has = shard.layers;
    if (shard.model != directive.model || has.end <= directive.layers.begin ||
        directive.layers.end <= has.begin)
      continue;
    return finish(directive.id, wire::DirectiveState::kFailed,
                  fmt::format("this node holds {}, which cannot be cut to {}: a shard is dropped whole",
                              to_string(has), to_string(directive.layers)));
  }
  finish(directive.id, wire::DirectiveState::kDone, "");
}

void AgentCore::on_directive_ended(TimePoint now, const wire::DirectiveId& id, const Status& result) {
  if (!active_ || active_->directive.id != id) return;
  const wire::Directive directive = active_->directive;
  active_.reset();
  const std::string name = shard_name(find_model(directive.model), directive.layers);
  const bool load = directive.kind == wire::DirectiveKind::kLoadShard;
  if (result.ok()) {
    say(Say::Level::kInfo, (load ? "ready: " : "dropped: ") + name);
    finish(id, wire::DirectiveState::kDone, "");
  } else {
    const std::string why(message_of(result));
    say(Say::Level::kError, fmt::format("{} {} failed: {}", load ? "loading" : "dropping", name, why));
    finish(id, wire::DirectiveState::kFailed, why);
  }
  // Said at once: routes through the shard need not wait for the next beat.
  const bool member = state_ == AgentState::kMember || state_ == AgentState::kLapsed;
  if (member && in_flight_ == Call::kNone && failures_ == 0) next_call_ = now;
  begin_next(now);
}

void AgentCore::finish(const wire::DirectiveId& id, wire::DirectiveState state, const std::string& message) {
  MESH_CHECK(is_final(state));
  const wire::DirectiveStatus status{id, state, message};
  unacknowledged_[id] = status;
  past_.push_back(status);
  if (past_.size() > kPastKept) past_.pop_front();
}

void AgentCore::begin_drain(TimePoint now) {
  if (draining_ || state_ == AgentState::kLeft) return;
  draining_ = true;
  for (const Pending& pending : waiting_) {
    finish(pending.directive.id, wire::DirectiveState::kFailed, "the node began to drain");
  }
  waiting_.clear();
  if (in_flight_ == Call::kNone && failures_ == 0) next_call_ = now;
}

void AgentCore::leave(TimePoint) {
  if (state_ == AgentState::kLeft) return;
  const bool known = state_ == AgentState::kMember || state_ == AgentState::kLapsed;
  state_ = AgentState::kLeft;
  in_flight_ = Call::kNone;
  if (known) effects_.push_back(SendLeave{{{options_.self.stamp.start, ++number_}, lease_}});
}

std::vector<AgentEffect> AgentCore::take_effects() {
  return std::exchange(effects_, {});
}

const wire::CatalogueEntry* AgentCore::find_model(const ModelIdentity& model) const {
  const auto same = [&](const wire::CatalogueEntry& entry) { return entry.model == model; };
  const auto found = std::find_if(catalogue_.begin(), catalogue_.end(), same);
  return found == catalogue_.end() ? nullptr : &*found;
}

void AgentCore::say(Say::Level level, std::string text) {
  effects_.push_back(Say{level, std::move(text)});
}

double AgentCore::jitter() {
  // splitmix64 (Steele, Lea, Flood 2014): a stream from any seed; its top 53 bits make a double in [0, 1).
  random_ += 0x9e3779b97f4a7c15ull;
  std::uint64_t z = random_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1.0p-53;
}

}  // namespace mesh
