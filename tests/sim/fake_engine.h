#pragma once

#include <map>
#include <set>
#include <vector>

#include "node/pipeline/step.h"

namespace mesh::sim {

/// A model whose layer l gives, at position p, a hash of (l, its output at p − 1, its input at p): of all its
/// inputs 0 … p. So a hole, a doubled or a stale input changes every later token, and it does not matter how
/// the layers are split over hops. A row of hidden states is one 64-bit hash, that is hidden size 4.
class FakeEngine {
 public:
  static constexpr std::uint32_t kHidden = 4;
  static constexpr TokenId kVocabulary = 997;

  pipeline::StepOutput run(const pipeline::StepWork& work);
  void carry_out(const pipeline::CacheOrder& order);
  std::size_t caches() const { return caches_.size(); }
  /// Tokens that caches on the device reserve, and those of kept blocks.
  std::uint64_t device_tokens() const;
  std::uint64_t host_tokens() const;  ///< in whole blocks
  std::size_t blocks() const { return blocks_.size(); }
  /// A step had a cache that is in host memory.
  bool misused() const { return misused_; }
  /// Makes the next step fail for all its sessions.
  void fail_next_step() { fail_next_ = true; }

  // The model's parts.
  static std::uint64_t embedded(TokenId id);
  static std::uint64_t layer_output(std::uint32_t layer, std::uint64_t before, std::uint64_t input);
  static TokenId sampled(std::uint64_t output);

  /// What the unsplit model of `layers` layers answers to `prompt`, greedily.
  static std::vector<TokenId> expected(std::uint32_t layers, std::vector<TokenId> prompt, std::size_t count,
                                       const std::vector<TokenId>& eos);

 private:
  /// Outputs of every layer of the range, by position: [position][layer].
  using Cache = std::vector<std::vector<std::uint64_t>>;
  std::map<pipeline::CacheId, Cache> caches_;
  std::map<pipeline::CacheId, std::uint32_t> reserved_;  ///< tokens, of those on the device
  std::map<pipeline::CacheId, std::uint32_t> left_;      ///< the same, of those in host memory
  std::set<pipeline::CacheId> on_host_;
  bool misused_ = false;
  std::map<pipeline::PrefixBlockId, Cache> blocks_;
  std::set<pipeline::CacheId> not_begun_;  ///< lacked a block that they were to begin with
  bool fail_next_ = false;
};

}  // namespace mesh::sim
