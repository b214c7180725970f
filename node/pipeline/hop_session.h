#pragma once

#include <map>
#include <optional>
#include <string>

#include "node/pipeline/inbound.h"
#include "node/pipeline/kept_outputs.h"
#include "node/pipeline/outbound.h"
#include "node/pipeline/step.h"

namespace mesh::pipeline {

/// The tail's last token, until the next one is sampled.
struct LastToken {
  wire::TokenMessage message;
  bool settled = false;  ///< the head has it, or does not want it: no repeats
};

struct PendingReport {
  wire::Report report;
  enum class State { kDue, kSent, kDone } state = State::kDue;
};

/// A step that was handed out and has not come back.
struct RunningRows {
  wire::Segment input;  ///< without its payload
  std::optional<TimePoint> deadline;
};

/// One session at one hop.
struct HopSession {
  HopSession(const wire::OpenRequest& opening, const ShardView& view, CacheId cache_id, wire::Window window,
             HopFaults faults)
      : request(opening), shard(view), cache(cache_id), inbound(window, faults), outbound(window) {}

  wire::OpenRequest request;  ///< the last opening
  ShardView shard;
  CacheId cache;
  TimePoint lease_until;
  Inbound inbound;
  Outbound outbound;                    ///< at the tail: only emit_from and held() mean something
  Position next = 0;                    ///< tokens in the cache, those of the running step included
  std::vector<wire::PrefixKey> prefix;  ///< of the blocks that may be kept
  std::uint32_t blocks_seen = 0;        ///< of these, had at the beginning or handed to the prefix cache
  std::optional<RunningRows> running;
  std::optional<std::uint64_t> waiting_order;  ///< its place among the sessions that wait for a step
  KeptOutputs kept;
  std::optional<LastToken> token;
  Position tail_emit_from = 0;
  std::map<wire::ReportCode, PendingReport> reports;
  std::optional<TimePoint> failing_since;  ///< frames to the next hop fail
  Duration ask_backoff{};
  int mac_failures = 0;

  wire::HopKey key() const { return request.key(); }
  bool is_tail() const { return request.tail.has_value(); }
  wire::Cursor cursor() const { return {request.generation, inbound.applied(), next}; }
  Position computed() const { return running ? running->input.start : next; }
  /// Outputs from here to `next` are kept or being computed; at the tail, the position before the last
  /// token's.
  Position kept_from() const;
};

}  // namespace mesh::pipeline
