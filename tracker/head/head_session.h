#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "node/pipeline/outbound.h"
#include "tracker/head/head_table.h"

namespace mesh::head {

/// A question to every hop at once.
enum class Wave : std::uint8_t {
  kNone,
  kProbe,   ///< cursors, while a step is late
  kFence,   ///< openings of a new generation without emit_from: from now on cursors stand still
  kResume,  ///< openings with emit_from
};

enum class Phase : std::uint8_t {
  kRouting,  ///< waits for routes: the first, or of lost hops
  kOpening,  ///< a fence or resume wave is out
  kRunning,  ///< perhaps with a probe wave
  kClosing,  ///< over for the client; hops are being told
};

struct HopState {
  wire::HopAddress address;
  bool lost = false;
  bool opened = false, refused = false;  ///< ever; refused: it said that it opens nothing
  // the present wave
  bool pending = false;
  std::uint32_t attempts = 0;
  std::optional<TimePoint> answer_due;
  std::optional<TimePoint> retry_at;
  // what it said last
  wire::CursorEntry state;
  std::uint32_t step_failures = 0;
};

/// Consecutive lost hops, and who will run their layers.
struct LostGroup {
  LayerRange range;
  std::size_t first = 0, last = 0;  ///< of the hops, inclusive
  std::uint64_t request = 0;
  std::optional<std::vector<wire::HopAddress>> found;
};

struct Closing {
  wire::HopAddress to;
  std::size_t index = 0;  ///< in the route it was part of
  Generation generation;
  bool frees_room = true;
  TimePoint next_try{};
  TimePoint until{};
};

struct HeadSession {
  explicit HeadSession(StartRequest start)
      : request(std::move(start)), ids(request.prompt), outbound(wire::Window{}) {
    if (request.salt) offer = wire::prefix_keys(request.identity, *request.salt, request.prompt);
  }

  StartRequest request;
  std::vector<TokenId> ids;            ///< prompt and answer
  std::vector<wire::PrefixKey> offer;  ///< keys of the prompt's full blocks
  Generation generation;
  Phase phase = Phase::kRouting;
  std::vector<HopState> hops;

  Wave wave = Wave::kNone;
  std::uint32_t wave_number = 0;

  std::vector<LostGroup> groups;
  std::map<NodeId, TimePoint> excluded;  ///< until when
  TimePoint route_retry_at{};
  TimePoint route_wait_until{};
  Status route_status;  ///< what to say when the wait is over
  std::deque<TimePoint> failovers;
  std::optional<Position> refilled_at;  ///< what it waited for when a cache of it was last dropped

  pipeline::Outbound outbound;  ///< ids to hop 0
  std::optional<TimePoint> credit_at;
  std::optional<TimePoint> step_started;  ///< of a single decode step: measured when its token comes
  TimePoint step_deadline{};
  std::optional<TimePoint> next_probe;
  std::uint32_t stalled_probes = 0;
  TimePoint renew_at{};
  std::map<std::uint32_t, Closing> closings;  ///< by the wave of their CloseHop

  const SessionId& id() const { return request.session; }
  std::uint32_t max_positions() const {
    return static_cast<std::uint32_t>(request.prompt.size()) + request.max_tokens;
  }
  Position awaited() const { return static_cast<Position>(ids.size()); }
};

}  // namespace mesh::head
