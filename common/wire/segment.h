#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/wire/messages.h"

/// What travels in frames and token messages (byte layouts: proto-docs/wire.md).
namespace mesh::wire {

inline constexpr std::uint32_t kMaxSegmentRows = 1024;
inline constexpr std::uint32_t kMaxHidden = 65'536;
inline constexpr std::size_t kMaxSegmentsPerFrame = 256;
inline constexpr std::size_t kMaxMaskSpans = 1024;
inline constexpr std::size_t kMaxSideTensors = 16;
inline constexpr std::size_t kMaxSideTensorName = 64;
inline constexpr std::size_t kMaxTokensPerMessage = 1024;

/// Decode with tokens, and bulk (prefill, replay): each link has a connection for either.
enum class Lane : std::uint8_t { kDecode, kBulk };

/// Immutable raw bytes, shared by the kept outputs and the frames that carry them. Null means none.
using Payload = std::shared_ptr<const std::string>;

/// Rows [begin, end) of the session see each other in both directions (an image's tokens).
struct MaskSpan {
  Position begin = 0;
  Position end = 0;

  friend bool operator==(const MaskSpan&, const MaskSpan&) = default;
};

/// A named bf16 tensor [rows of the segment, width] that a family needs beside the hidden states.
struct SideTensor {
  std::string name;
  std::uint32_t width = 0;
  Payload data;
};

/// Rotary positions apart from the cache positions: axes · rows values, axis-major; axes is 0 (none), 1 or 3.
struct RotaryPositions {
  std::uint8_t axes = 0;
  std::vector<std::int32_t> values;
};

/// Rows [start, start + rows) of one session on their way to one hop.
struct Segment {
  SessionId session;
  ModelIdentity identity;
  Generation generation;
  Seq seq;
  LayerRange range;  ///< of the receiver
  Position start = 0;
  std::uint32_t rows = 0;         ///< 1 … kMaxSegmentRows
  std::uint32_t hidden_size = 0;  ///< 0 when there are no hidden states
  Lane lane = Lane::kDecode;
  bool sample = false;            ///< the tail samples the token that follows the last row
  std::uint32_t deadline_ms = 0;  ///< time left for it, counted down at each hop; 0: none
  Payload hidden;                 ///< bf16 [rows, hidden_size], little-endian, row-major
  std::vector<TokenId> ids;       ///< none, or one per row (always at hop 0)
  RotaryPositions positions;
  std::vector<MaskSpan> spans;
  std::vector<SideTensor> sides;

  HopKey key() const { return {session, range.begin}; }
  Position end() const { return start + rows; }
  /// Raw bytes of everything but the header: 2·H a row for hidden states, 4 an id.
  std::uint64_t raw_bytes() const;
};

enum class AnswerCode : std::uint8_t {
  kAccepted,        ///< queued, or a duplicate
  kUnknownSession,  ///< never opened here, restarted, or the lease ended
  kClosed,
  kStaleGeneration,  ///< a higher one was seen
  kNotOpenedYet,     ///< of a higher generation than the last opening: try again soon
  kWindow,           ///< beyond the granted window
  kGap,              ///< start lies beyond the end of what came before
  kBadSegment,       ///< shape, range, identity or length do not fit the session
  kBadMac,
  kDeadline,
};

/// The answer to one segment; its cursor gives the sender credit.
struct SegmentAnswer {
  HopKey hop;
  Seq seq;
  AnswerCode code = AnswerCode::kAccepted;
  Cursor cursor;

  friend bool operator==(const SegmentAnswer&, const SegmentAnswer&) = default;
};

/// From the tail straight to the head: the token at `position`, which follows `position` tokens.
struct TokenMessage {
  SessionId session;
  Generation generation;
  Position position = 0;
  TokenId token = 0;
  float logprob = 0;  ///< natural logarithm of its probability before temperature

  friend bool operator==(const TokenMessage&, const TokenMessage&) = default;
};

enum class TokenCode : std::uint8_t {
  kTaken,           ///< taken, or had before: stop repeating
  kUnknownSession,  ///< not (or no longer) at this head
  kStaleGeneration,
  kNotAwaited,  ///< ahead of what the head waits for
  kBadMac,
};

struct TokenAnswer {
  SessionId session;
  Position position = 0;
  TokenCode code = TokenCode::kTaken;

  friend bool operator==(const TokenAnswer&, const TokenAnswer&) = default;
};

}  // namespace mesh::wire
