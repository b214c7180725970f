#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/wire/segment.h"

namespace mesh::pipeline {

/// Numbers a session's cache at this node's engine; never used twice.
using CacheId = std::uint64_t;
/// Names a full block of 128 tokens that is kept for later sessions; never used twice.
using PrefixBlockId = std::uint64_t;

/// What the hop table must know of the shard that covers a range.
struct ShardView {
  std::uint32_t hidden_size = 0;
  std::uint64_t cache_bytes_per_token = 0;  ///< of the opened range alone
  std::uint32_t max_tokens = 0;             ///< the model's context length
  bool ends_model = false;                  ///< the opened range ends the model: outputs are tokens
};

/// A session's cache begins with `tokens` tokens of kept blocks: one for every 128, none where the range has
/// no layers.
struct BeginCache {
  wire::HopKey hop;
  CacheId cache = 0;
  ModelIdentity identity;
  LayerRange range;
  bool takes_ids = false;
  std::uint32_t max_tokens = 0;
  Position tokens = 0;
  std::vector<PrefixBlockId> blocks;
};
/// Block `index` of a cache is kept under `id` from now on.
struct ShareBlock {
  CacheId cache = 0;
  std::uint32_t index = 0;
  PrefixBlockId id = 0;
};
/// A kept block is let go of; sessions that have it keep it.
struct DropBlock {
  PrefixBlockId id = 0;
};
/// The session is gone, or begins anew with another cache.
struct FreeCache {
  CacheId cache = 0;
};
/// A cache makes room: its tokens go to host memory. No step has it until it comes back.
struct SpillCache {
  CacheId cache = 0;
};
struct RestoreCache {
  CacheId cache = 0;
};
/// What the engine is to do with caches, between steps.
using CacheOrder = std::variant<BeginCache, ShareBlock, DropBlock, FreeCache, SpillCache, RestoreCache>;

/// How a SpillCache (`to_host`) or RestoreCache went.
struct CacheMoved {
  CacheId cache = 0;
  bool to_host = false;
  Status status;
  std::uint64_t bytes = 0;  ///< copied
  Duration took{};
};

/// One session's rows in a step. The engine makes the cache when no BeginCache came for its id, trims it to
/// `start` when it is longer, appends the rows, and never sees start beyond the cache's length.
struct StepSegment {
  wire::HopKey hop;
  CacheId cache = 0;
  std::uint32_t max_tokens = 0;  ///< what the session reserved: the cache's final length
  Position start = 0;
  std::uint32_t rows = 0;
  wire::Payload hidden;      ///< bf16 [rows, hidden_size]; null when the step takes ids
  std::vector<TokenId> ids;  ///< one per row when the step takes ids
  wire::RotaryPositions positions;
  std::vector<wire::MaskSpan> spans;
  std::vector<wire::SideTensor> sides;
  bool sample = false;  ///< at the tail: sample after the last row, with `sampling`, as token start + rows
  wire::Sampling sampling;
};

/// One forward over one layer range of one model.
struct StepWork {
  std::uint64_t id = 0;
  ModelIdentity identity;
  LayerRange range;
  bool takes_ids = false;   ///< inputs are token ids, to be embedded
  bool ends_model = false;  ///< no hidden states are wanted, tokens where `sample` is set
  wire::Lane lane = wire::Lane::kDecode;
  std::uint32_t rows = 0;  ///< of all segments
  std::vector<StepSegment> segments;
};

struct SampledToken {
  TokenId token = 0;
  float logprob = 0;
};

/// The result for one StepSegment. A bad status (NaN, no memory) fails that session alone; its cache is then
/// back at the segment's start, or, when it could not begin as it was ordered to, without tokens.
struct SegmentOutput {
  Status status;
  bool cache_lost = false;            ///< with a bad status: the cache has no tokens
  wire::Payload hidden;               ///< bf16 [rows, hidden_size] unless the step ends the model
  std::optional<SampledToken> token;  ///< where the step ends the model and `sample` was set
};

/// Results in the order of StepWork::segments.
struct StepOutput {
  std::uint64_t id = 0;
  std::vector<SegmentOutput> segments;
};

}  // namespace mesh::pipeline
