#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/hub/checkpoint.h"
#include "node/engine/engine.h"

/// tests/golden's checkpoints for the engine's tests.
namespace mesh::engine::testing {

struct GoldenPrompt {
  bool free = false;
  bool one_pass = false;
  std::vector<TokenId> prompt, completion;
  std::vector<double> logprobs, margins;  // of the completion
  std::vector<TokenId> argmax;            // of each row of prompt + completion
  std::vector<double> argmax_margin;
  std::vector<std::size_t> top_positions;

  std::vector<TokenId> all() const;
};

struct GoldenWire {
  std::vector<std::uint32_t> splits;
  std::size_t prompt = 0;
  std::vector<TokenId> completion;
  std::vector<double> margins;
};

struct Golden {
  std::string name;
  double bf16_nmse = 0;
  std::vector<GoldenPrompt> prompts;
  std::vector<GoldenWire> wire;
  std::shared_ptr<safetensors::MappedFile> tensors;

  /// A float32 tensor of golden.safetensors.
  std::vector<float> tensor(const std::string& name) const;
};

/// A folder as part of a test's name, where hyphens may not be.
std::string test_name(std::string folder);
/// Folder of a checkpoint in tests/golden.
std::string golden_folder(const std::string& name);
std::shared_ptr<hub::Checkpoint> open_checkpoint(const std::string& folder);
Golden read_golden(const std::string& name);
ModelIdentity identity_for(const std::string& name);

/// An engine on the CPU; 2 threads and 1 GiB unless said otherwise.
std::unique_ptr<Engine> cpu_engine(ComputeType compute, std::uint64_t memory = std::uint64_t{1} << 30);
/// The shard of `range`, which must load.
std::shared_ptr<const Shard> load(Engine& engine, const std::string& folder, const LayerRange& range);
std::shared_ptr<const Shard> load_all(Engine& engine, const std::string& folder,
                                      Quantization quantization = Quantization::kNone);

/// `ids` from `start` on; logits of its last row.
Segment token_segment(CacheId cache, std::vector<TokenId> ids, Position start = 0);

/// A chain of ranges of one model in one engine, each with a cache, as hops would run it.
class Chain {
 public:
  /// `splits`: the inner borders.
  Chain(Engine& engine, std::shared_ptr<const Shard> shard, const std::vector<std::uint32_t>& splits,
        HiddenType hand_over, Position max_positions);
  ~Chain();
  Chain(const Chain&) = delete;

  /// Feeds `ids` from the cursor on; logits [ids, V] of every row.
  std::vector<float> logits(std::span<const TokenId> ids);
  /// The same in pieces of `chunk`.
  std::vector<float> logits(std::span<const TokenId> ids, std::size_t chunk);
  /// Feeds `ids` and gives the token after them.
  SampledToken next(std::span<const TokenId> ids, const SamplingParams& sampling = {});
  Position position() const { return position_; }

 private:
  SegmentResult run(std::span<const TokenId> ids, Segment last);

  Engine& engine_;
  std::shared_ptr<const Shard> shard_;
  HiddenType hand_over_;
  std::vector<LayerRange> ranges_;
  std::vector<CacheId> caches_;
  Position position_ = 0;
};

/// Prompt, then each next token fed back: `count` greedy ids.
std::vector<TokenId> generate(Chain& chain, std::span<const TokenId> prompt, std::size_t count);

double nmse(std::span<const float> actual, std::span<const float> expected);
double max_difference(std::span<const float> actual, std::span<const float> expected);

}  // namespace mesh::engine::testing
