#include "node/runtime/health.h"

#include <string_view>
#include <utility>

namespace mesh {
namespace {

std::string_view name_of(wire::ShardState state) {
  switch (state) {
    case wire::ShardState::kLoading:
      return "loading";
    case wire::ShardState::kReady:
      return "ready";
    case wire::ShardState::kDraining:
      return "draining";
  }
  return "unknown";
}

/// The `reason` of a refusal.
constexpr std::pair<wire::AnswerCode, const char*> kReasons[] = {
    {wire::AnswerCode::kUnknownSession, "unknown_session"},
    {wire::AnswerCode::kClosed, "closed"},
    {wire::AnswerCode::kStaleGeneration, "stale_generation"},
    {wire::AnswerCode::kNotOpenedYet, "not_opened_yet"},
    {wire::AnswerCode::kWindow, "window"},
    {wire::AnswerCode::kGap, "gap"},
    {wire::AnswerCode::kBadSegment, "bad_segment"},
    {wire::AnswerCode::kBadMac, "bad_mac"},
    {wire::AnswerCode::kDeadline, "deadline"},
};

template <class Value>
void raise_to(metrics::Counter& counter, Value value) {
  const double more = static_cast<double>(value) - counter.value();
  if (more > 0) counter.add(more);
}

}  // namespace

json::Value health_of(Node& node) {
  json::Array shards;
  for (const wire::ShardStatus& shard : node.shards()) {
    const LayerRange ready = wire::layers_in_use(shard);
    shards.push_back(json::Object{{"model", shard.model.hex()},
                                  {"layers", json::Array{shard.layers.begin, shard.layers.end}},
                                  {"ready", json::Array{ready.begin, ready.end}},
                                  {"state", name_of(shard.state)},
                                  {"bytes_done", shard.bytes_done},
                                  {"bytes_total", shard.bytes_total}});
  }
  const NodeFigures figures = node.figures();
  return json::Object{{"status", "ok"},
                      {"sessions", figures.hop.sessions},
                      {"cache_blocks", figures.memory.cache_blocks},
                      {"steps", figures.steps},
                      {"shards", std::move(shards)}};
}

NodeMetrics::NodeMetrics(metrics::Registry& registry) {
  const auto gauge = [&](const char* name, const char* help) { return registry.gauge(name, help); };
  const auto counter = [&](const char* name, const char* help) { return registry.counter(name, help); };
  sessions_ = gauge("meshnet_sessions", "Sessions open at this node");
  waiting_ = gauge("meshnet_node_waiting_segments", "Segments received and not yet computed");
  cache_bytes_ = gauge("meshnet_node_cache_bytes", "KV caches reserved");
  blocks_used_ = gauge("meshnet_kv_blocks_used", "KV blocks reserved: 128 tokens of one layer each");
  blocks_capacity_ =
      gauge("meshnet_kv_blocks_capacity", "KV blocks reserved and those that memory still has room for");
  blocks_cached_ = gauge("meshnet_kv_blocks_cached", "KV blocks of prompts kept for later sessions");
  const auto offered = [&](const char* result) {
    return registry.counter("meshnet_prefix_tokens_total",
                            "Tokens of prompts that new sessions could begin with", {{"result", result}});
  };
  prefix_hits_ = offered("hit");
  prefix_misses_ = offered("miss");
  prefix_evictions_ = counter("meshnet_prefix_evictions_total", "Blocks of kept prompts that made room");
  spilled_bytes_ = gauge("meshnet_node_spilled_bytes", "Caches of sessions in host memory");
  spills_ = counter("meshnet_cache_spills_total", "Caches that went to host memory to make room");
  dropped_caches_ =
      counter("meshnet_cache_drops_total", "Caches let go of to make room, to be computed again");
  weight_bytes_ = gauge("meshnet_node_weight_bytes", "Weights held");
  budget_bytes_ = gauge("meshnet_node_memory_budget_bytes", "Memory that the node may use");
  kept_bytes_ = gauge("meshnet_node_kept_output_bytes", "Outputs kept for a resend");
  const auto of_kind = [&](const char* name, const char* help, const char* kind) {
    return registry.counter(name, help, {{"kind", kind}});
  };
  decode_steps_ = of_kind("meshnet_steps_total", "Forwards run", "decode");
  prefill_steps_ = of_kind("meshnet_steps_total", "Forwards run", "prefill");
  decode_rows_ = of_kind("meshnet_step_rows_total", "Token rows of all forwards", "decode");
  prefill_rows_ = of_kind("meshnet_step_rows_total", "Token rows of all forwards", "prefill");
  layer_rows_ = counter("meshnet_layer_rows_total", "Rows times layers of all forwards");
  segments_ = counter("meshnet_node_step_segments_total", "Segments of all forwards");
  duplicates_ = counter("meshnet_node_duplicate_segments_total", "Segments received twice and dropped");
  resent_ = counter("meshnet_resent_rows_total", "Rows of kept outputs sent again");
  frames_ = counter("meshnet_node_frames_sent_total", "Frames sent to next hops");
  raw_bytes_ = counter("meshnet_sent_raw_bytes_total", "Hidden states sent, before coding");
  wire_bytes_ = counter("meshnet_sent_wire_bytes_total", "Bytes of frames sent");
  failures_ = counter("meshnet_node_send_failures_total", "Posts to next hops and heads that failed");
  received_bytes_ = counter("meshnet_received_wire_bytes_total", "Bytes of frames received");
  const auto refused = [&](const char* reason) {
    return registry.counter("meshnet_frames_refused_total",
                            "Malformed frames, and refused segments of others", {{"reason", reason}});
  };
  malformed_ = refused("malformed");
  for (const auto& [code, reason] : kReasons) refused_.emplace(code, refused(reason));
  const auto seconds = [&](const char* kind) {
    return registry.histogram("meshnet_step_seconds", "Time of a forward", metrics::seconds_buckets(),
                              {{"kind", kind}});
  };
  decode_seconds_ = seconds("decode");
  prefill_seconds_ = seconds("prefill");
}

void NodeMetrics::on_step(wire::Lane lane, Duration took) {
  metrics::Histogram& seconds = lane == wire::Lane::kDecode ? decode_seconds_ : prefill_seconds_;
  seconds.observe(std::chrono::duration<double>(took).count());
}

void NodeMetrics::on_frame(std::size_t body_bytes) {
  received_bytes_.add(static_cast<double>(body_bytes));
}

void NodeMetrics::on_malformed_frame() {
  malformed_.add();
}

void NodeMetrics::on_refused_segment(wire::AnswerCode why) {
  if (const auto found = refused_.find(why); found != refused_.end()) found->second.add();
}

void NodeMetrics::update(const NodeFigures& now) {
  sessions_.set(static_cast<double>(now.hop.sessions));
  waiting_.set(static_cast<double>(now.hop.segments_waiting));
  cache_bytes_.set(static_cast<double>(now.memory.cache_bytes));
  blocks_used_.set(static_cast<double>(now.memory.cache_blocks));
  blocks_capacity_.set(static_cast<double>(now.cache_blocks_capacity));
  blocks_cached_.set(static_cast<double>(now.memory.shared_blocks));
  raise_to(prefix_hits_, now.hop.prefix_hits);
  raise_to(prefix_misses_, now.hop.prefix_misses);
  raise_to(prefix_evictions_, now.hop.prefix_evictions);
  spilled_bytes_.set(static_cast<double>(now.memory.spilled_bytes));
  raise_to(spills_, now.hop.spills);
  raise_to(dropped_caches_, now.hop.dropped_caches);
  weight_bytes_.set(static_cast<double>(now.memory.weight_bytes));
  budget_bytes_.set(static_cast<double>(now.memory.budget_bytes));
  kept_bytes_.set(static_cast<double>(now.hop.kept_bytes));
  raise_to(decode_steps_, now.decode_steps);
  raise_to(prefill_steps_, now.steps - now.decode_steps);
  raise_to(decode_rows_, now.decode_rows);
  raise_to(prefill_rows_, now.step_rows - now.decode_rows);
  raise_to(layer_rows_, now.layer_rows);
  raise_to(segments_, now.step_segments);
  raise_to(duplicates_, now.hop.duplicates);
  raise_to(resent_, now.hop.resent_rows);
  LinkCounters sum;
  for (const LinkCounters& link : now.links) {
    sum.frames += link.frames;
    sum.raw_bytes += link.raw_bytes;
    sum.wire_bytes += link.wire_bytes;
    sum.failures += link.failures;
  }
  raise_to(frames_, sum.frames);
  raise_to(raw_bytes_, sum.raw_bytes);
  raise_to(wire_bytes_, sum.wire_bytes);
  raise_to(failures_, sum.failures);
}

}  // namespace mesh
