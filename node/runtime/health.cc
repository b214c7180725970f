#include "node/runtime/health.h"

#include <string_view>

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

template <class Value>
void raise_to(metrics::Counter& counter, Value value) {
  const double more = static_cast<double>(value) - counter.value();
  if (more > 0) counter.add(more);
}

}  // namespace

json::Value health_of(Node& node) {
  json::Array shards;
  for (const wire::ShardStatus& shard : node.shards()) {
    shards.push_back(json::Object{{"model", shard.model.hex()},
                                  {"layers", json::Array{shard.layers.begin, shard.layers.end}},
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
  cache_blocks_ = gauge("meshnet_node_cache_blocks", "KV blocks reserved, of all layers");
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
  seconds_ = counter("meshnet_node_step_seconds_total", "Time in forwards");
  duplicates_ = counter("meshnet_node_duplicate_segments_total", "Segments received twice and dropped");
  refused_ = counter("meshnet_node_refused_segments_total", "Segments refused");
  resent_ = counter("meshnet_resent_rows_total", "Rows of kept outputs sent again");
  frames_ = counter("meshnet_node_frames_sent_total", "Frames sent to next hops");
  raw_bytes_ = counter("meshnet_sent_raw_bytes_total", "Hidden states sent, before coding");
  wire_bytes_ = counter("meshnet_sent_wire_bytes_total", "Bytes of frames sent");
  failures_ = counter("meshnet_node_send_failures_total", "Posts to next hops and heads that failed");
}

void NodeMetrics::update(const NodeFigures& now) {
  sessions_.set(static_cast<double>(now.hop.sessions));
  waiting_.set(static_cast<double>(now.hop.segments_waiting));
  cache_bytes_.set(static_cast<double>(now.memory.cache_bytes));
  cache_blocks_.set(static_cast<double>(now.memory.cache_blocks));
  weight_bytes_.set(static_cast<double>(now.memory.weight_bytes));
  budget_bytes_.set(static_cast<double>(now.memory.budget_bytes));
  kept_bytes_.set(static_cast<double>(now.hop.kept_bytes));
  raise_to(decode_steps_, now.decode_steps);
  raise_to(prefill_steps_, now.steps - now.decode_steps);
  raise_to(decode_rows_, now.decode_rows);
  raise_to(prefill_rows_, now.step_rows - now.decode_rows);
  raise_to(layer_rows_, now.layer_rows);
  raise_to(segments_, now.step_segments);
  raise_to(seconds_, now.step_seconds);
  raise_to(duplicates_, now.hop.duplicates);
  raise_to(refused_, now.hop.refused);
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
