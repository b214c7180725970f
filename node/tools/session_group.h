#pragma once

#include <memory>
#include <vector>

#include "node/engine/engine.h"

namespace mesh::tools {

/// Sessions of one shard that go forward together, over one range or over a chain of them in one process as
/// hops would run it. Ranges that begin the model of a shard with the embedding are fed token ids, others
/// hidden states; the last one samples when the shard has the head and it ends the model.
class SessionGroup {
 public:
  /// `ranges`: each begins where the one before ends. kResourceExhausted when the caches do not fit.
  static StatusOr<std::unique_ptr<SessionGroup>> open(engine::Engine& engine,
                                                      std::shared_ptr<const engine::Shard> shard,
                                                      std::vector<LayerRange> ranges, std::size_t sessions,
                                                      Position max_positions);
  ~SessionGroup();
  SessionGroup(const SessionGroup&) = delete;
  SessionGroup& operator=(const SessionGroup&) = delete;

  std::size_t sessions() const { return sessions_.size(); }
  /// Fills every cache from 0 up to `tokens`, one session after another, in pieces of `chunk` rows.
  Status prefill(Position tokens, std::uint32_t chunk);
  /// One row of every session in one step for each range.
  Status decode();
  /// The next step begins at `position`, which is not above the cursor.
  void back_to(Position position) { position_ = position; }

 private:
  struct Session {
    std::vector<engine::CacheId> caches;  ///< of each range
    TokenId feed = 0;                     ///< of the next decode step
  };
  SessionGroup(engine::Engine& engine, std::shared_ptr<const engine::Shard> shard,
               std::vector<LayerRange> ranges)
      : engine_(engine), shard_(std::move(shard)), ranges_(std::move(ranges)) {}

  TokenId token(std::size_t seed) const;
  bool fed_ids() const { return ranges_.front().begin == 0 && shard_->spec().embedding; }
  bool samples() const {
    return ranges_.back().end == shard_->profile().layer_count() && shard_->spec().head;
  }
  void set_input(engine::Segment& segment, std::vector<TokenId> ids) const;
  /// Runs `inputs`, one for each of `which`, through all ranges; the tail's results.
  StatusOr<std::vector<engine::SegmentResult>> run(const std::vector<std::size_t>& which,
                                                   std::vector<engine::Segment> inputs, bool sample);

  engine::Engine& engine_;
  const std::shared_ptr<const engine::Shard> shard_;
  const std::vector<LayerRange> ranges_;
  std::vector<Session> sessions_;
  Position position_ = 0;
};

}  // namespace mesh::tools
