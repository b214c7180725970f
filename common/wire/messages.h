#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/wire/prefix_key.h"

/// Control messages of a session (proto-docs/session.md gives the rules, proto-docs/http.md the JSON).
namespace mesh::wire {

/// The version that this program speaks; a frame of another version is refused.
inline constexpr std::uint16_t kWireVersion = 1;
/// Positions of one session: prompt and answer together.
inline constexpr std::uint32_t kMaxSessionTokens = 1u << 24;
/// Sessions named by one cursors or renew message.
inline constexpr std::size_t kMaxSessionsPerMessage = 1024;

/// Who runs a layer range and where it is reached: `url` is scheme://host:port without a path.
struct HopAddress {
  NodeId node;
  std::string url;
  LayerRange range;

  friend auto operator<=>(const HopAddress&, const HopAddress&) = default;
};

/// One session's state at one hop is found by the session and the range's first layer: a node may run two
/// ranges.
struct HopKey {
  SessionId session;
  std::uint32_t begin = 0;

  friend auto operator<=>(const HopKey&, const HopKey&) = default;
};

/// How far a hop is: `applied` is the last seq of `generation` whose step began, `next` the tokens in its
/// cache.
struct Cursor {
  Generation generation;
  Seq applied;
  Position next = 0;

  friend auto operator<=>(const Cursor&, const Cursor&) = default;
};

/// What a sender may have outstanding: seq ≤ applied + segments, and so many rows with a seq above `applied`.
/// The receiver has reserved the rows' bytes. Version 1 grants the default, always.
struct Window {
  std::uint32_t segments = 16;
  std::uint32_t rows = 1024;

  friend auto operator<=>(const Window&, const Window&) = default;
};

/// temperature 0 is greedy. Random numbers are keyed by (seed, choice, position) alone.
struct Sampling {
  float temperature = 0;
  float top_p = 1;
  std::uint32_t top_k = 0;  ///< 0: no limit
  std::uint64_t seed = 0;
  std::uint32_t choice = 0;

  friend bool operator==(const Sampling&, const Sampling&) = default;
};

/// What only the tail needs: how to sample, and the ids known so far (prompt and answer).
struct TailSetup {
  Sampling sampling;
  std::vector<TokenId> ids;

  friend bool operator==(const TailSetup&, const TailSetup&) = default;
};

/// Opens a session at a hop, or re-opens it with a higher generation. Harmless when repeated. A fresh opening
/// has emit_from 0; in a recovery the hop is first fenced without emit_from (it applies nothing and sends
/// nothing), then opened again with the same generation and the position that its successor named.
struct OpenRequest {
  SessionId session;
  Generation generation;
  ModelIdentity identity;
  LayerRange range;        ///< exactly what to run; empty only at hop 0 with no layers of its own
  bool takes_ids = false;  ///< hop 0: inputs are token ids, embedded here; else hidden states
  std::uint32_t max_tokens =
      0;  ///< most positions that the session will reach; the hop reserves room for them
  std::uint32_t lease_ms = 30'000;
  std::optional<HopAddress> next;  ///< none at the tail
  std::string head_url;            ///< where reports and tokens go
  std::optional<TailSetup> tail;   ///< exactly at the tail
  std::optional<Position> emit_from;
  /// Keys of the prompt's full blocks, at most max_tokens ÷ kKvBlockTokens; never with emit_from. A hop
  /// that begins the session answers with the tokens of them that it has as its cursor's `next`.
  std::vector<PrefixKey> prefix;
  SessionSecret secret;  ///< of this generation; crosses the wire sealed to the node's key

  friend bool operator==(const OpenRequest&, const OpenRequest&) = default;
  HopKey key() const { return {session, range.begin}; }
};

enum class OpenCode : std::uint8_t {
  kOpened,
  kStaleGeneration,  ///< a higher one was seen
  kClosed,           ///< the session was closed here
  kShardNotHeld,     ///< the node is not ready to run this range of this identity
  kNoRoom,           ///< cache, window or session budget; HTTP 429
  kDraining,
  kBadRequest,
};

/// `kept_from`: outputs of [kept_from, cursor.next) can be sent again without computing them (at the tail:
/// tokens).
struct OpenReply {
  OpenCode code = OpenCode::kOpened;
  Cursor cursor;
  Window window;
  Position kept_from = 0;
  std::string message;  ///< when refused: what is wrong and the fix

  friend bool operator==(const OpenReply&, const OpenReply&) = default;
  bool opened() const { return code == OpenCode::kOpened; }
};

/// Ends the session at a node, for every range it runs. A later opening is refused.
struct CloseRequest {
  SessionId session;
  Generation generation;

  friend bool operator==(const CloseRequest&, const CloseRequest&) = default;
};

/// Asked by the head (all hops at once) and by a blocked sender (its next hop).
struct CursorsRequest {
  std::vector<HopKey> hops;

  friend bool operator==(const CursorsRequest&, const CursorsRequest&) = default;
};

/// `known` false: the node has no such session (restarted, lease ended, closed); then the rest is zero.
/// Outputs of positions below `computed` exist; the hop holds work when the hop before it has computed more.
/// `waits_for_room`: it holds work, but the session's cache is not on the device and waits for its turn
/// there.
struct CursorEntry {
  HopKey hop;
  bool known = false;
  Cursor cursor;
  Position kept_from = 0;
  Position computed = 0;
  bool waits_for_room = false;

  friend bool operator==(const CursorEntry&, const CursorEntry&) = default;
};
struct CursorsReply {
  std::vector<CursorEntry> hops;

  friend bool operator==(const CursorsReply&, const CursorsReply&) = default;
};

/// Extends the leases of sessions; the reply lists those that the node does not know.
struct RenewRequest {
  std::vector<SessionId> sessions;
  std::uint32_t lease_ms = 30'000;

  friend bool operator==(const RenewRequest&, const RenewRequest&) = default;
};
struct RenewReply {
  std::vector<SessionId> unknown;

  friend bool operator==(const RenewReply&, const RenewReply&) = default;
};

enum class ReportCode : std::uint8_t {
  kNextHopUnreachable,  ///< frames to the next hop fail
  kNextHopRefuses,      ///< it does not know the session, or refuses its segments
  kStepFailed,          ///< this hop could not compute; its cursor is back at the failed segment's start
  kOutputsDropped,      ///< kept outputs before kept_from are gone
  kDeadline,            ///< the segment's time was up
  kCacheDropped,        ///< the cache made room for others and is to be filled again from the cursor
};

/// A hop tells the head that its session is in trouble there.
struct Report {
  HopKey hop;
  Generation generation;
  ReportCode code = ReportCode::kStepFailed;
  Position kept_from = 0;
  std::string message;

  friend bool operator==(const Report&, const Report&) = default;
};

}  // namespace mesh::wire
