#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "node/engine/models/model_profile.h"

namespace mesh::hub {
class Checkpoint;  // common/hub/checkpoint.h
}

/// The engine's public face, free of torch. docs/engine-contract.md says what holds between its parts.
namespace mesh::engine {

enum class Device : std::uint8_t { kAuto, kCpu, kCuda };
/// How a GPU computes; the others are for comparison, and what a GPU cannot do falls back by itself.
enum class CudaPath : std::uint8_t {
  kGraphs,    ///< fused kernels, replayed as CUDA graphs
  kLaunches,  ///< fused kernels, launched one by one
  kAmpere,    ///< fused kernels without what only compute capability 9.0 has
  kPortable,  ///< fused kernels without tensor cores of our own: what compute capability 7.5 runs
  kEager,     ///< ATen, op by op
};
/// On a CPU arithmetic is float32 in both; kBfloat16 keeps matrices and KV in bfloat16 (kFloat32: KV in
/// float32, and matrices in float32 unless they are bfloat16 on disk). kAuto: kBfloat16.
enum class ComputeType : std::uint8_t { kAuto, kBfloat16, kFloat32 };

StatusOr<Device> parse_device(std::string_view name);       ///< auto, cpu, cuda
StatusOr<CudaPath> parse_cuda_path(std::string_view name);  ///< graphs, launches, ampere, portable, eager
StatusOr<ComputeType> parse_compute_type(std::string_view name);  ///< auto, bfloat16, float32

/// Is shown what each operation of a forward gives, in the order of computing; for comparisons with a
/// reference. Operations: embedding; in a layer attention_norm, q, k, v, q_norm, k_norm, q_rotated,
/// k_rotated, attention (before the output matrix), attention_residual, mlp_norm, gate, up, mlp_activation,
/// hidden (after the layer), as far as the family has them; final_norm, logits.
class OperationObserver {
 public:
  virtual ~OperationObserver() = default;
  /// `values` [rows, cols], the next rows of that operation. No `layer` outside of layers. Called by the
  /// thread that runs the step.
  virtual void seen(std::string_view operation, std::optional<std::uint32_t> layer, std::size_t rows,
                    std::size_t cols, std::span<const float> values) = 0;
};

/// Refuses memory on demand, to show what becomes of a step that gets none. Any thread.
class AllocationFaults {
 public:
  virtual ~AllocationFaults() = default;
  /// Asked before `bytes` for KV, for KV in host memory or for a step's activations are taken; not OK: they
  /// cannot be had.
  virtual Status check(std::uint64_t bytes) = 0;
};

struct EngineOptions {
  Device device = Device::kAuto;
  ComputeType compute = ComputeType::kAuto;
  unsigned threads = 0;  ///< CPU threads of one step, 0: one per core
  std::uint64_t memory_bytes =
      0;  ///< budget for weights, KV blocks and working space; 0: free memory less 1 GiB
  /// Host memory for caches that leave the device; 0: none does. None: with a GPU a quarter of what is free
  /// less 1 GiB; a CPU's caches lie there already, so 0.
  std::optional<std::uint64_t> spill_bytes = std::nullopt;
  std::string cuda_library;  ///< libmeshnet_cuda.so; empty: beside the program
  CudaPath cuda_path = CudaPath::kGraphs;
  /// What the CPU's kernels may use: portable, avx2, avx512 or avx512_bf16; auto: the best that it has.
  std::string cpu_path = "auto";
  OperationObserver* observer = nullptr;          ///< outlives the engine; forwards then go op by op
  AllocationFaults* allocation_faults = nullptr;  ///< outlives the engine; for tests
};

/// Layers [begin, end) with or without the embedding and the head. [0, 0) with embedding embeds only.
struct ShardSpec {
  LayerRange range;
  bool embedding = false;
  bool head = false;
  Quantization quantization = Quantization::kNone;  ///< as asked for: ModelProfile::quantization()

  friend bool operator==(const ShardSpec&, const ShardSpec&) = default;
};
/// The usual shard of a range: embedding when it begins the model, head when it ends it.
inline ShardSpec shard_of(const ModelProfile& profile, const LayerRange& range,
                          Quantization quantization = Quantization::kNone) {
  return {range, range.begin == 0, range.end == profile.layer_count(), quantization};
}
std::string to_string(const ShardSpec& spec);

/// A loaded shard; immutable. It may be destroyed by any thread, and a running step keeps it alive.
class Shard {
 public:
  virtual ~Shard() = default;
  virtual const ModelProfile& profile() const = 0;
  virtual const ShardSpec& spec() const = 0;
  virtual const ModelIdentity& identity() const = 0;
  virtual std::uint64_t bytes()
      const = 0;  ///< memory of its weights, parts shared with other shards included
};

struct LoadProgress {
  bool fetching =
      false;  ///< bytes come to this machine (remote files only); else they are packed into memory
  std::uint64_t bytes_done = 0;  ///< of this phase
  std::uint64_t bytes_total = 0;
  /// Layers of the range, from its first on and not all of it, that are ready: a shard of them, without the
  /// head, is loaded at once and without reading, from this callback too.
  LayerRange ready = {};
};
/// Called on the thread that called load(). False cancels the load (StatusCode::kCancelled), while packing
/// after the pieces under way.
using ProgressCallback = std::function<bool(const LoadProgress&)>;

struct ShardNeeds {
  std::uint64_t weight_bytes = 0;   ///< new bytes: parts that the engine already holds are not counted
  std::uint64_t loading_bytes = 0;  ///< needed beside them while loading
  std::uint64_t working_bytes = 0;  ///< activations of a step, as far as not yet set aside for other shards
  std::uint64_t total() const { return weight_bytes + loading_bytes + working_bytes; }
};

/// A cache of one session at one place of its route: KV of the layers of one range.
using CacheId = Ordinal<struct CacheTag>;

/// What one full block of 128 tokens of a cache holds, of all layers of its range. Immutable; counts as cache
/// bytes. Any thread may drop it.
class SharedBlock {
 public:
  virtual ~SharedBlock() = default;
};

/// Bytes that caches and shared blocks may come to take, those that are open among them: loads are not given
/// them. Dropped: what is open counts alone. One thread at a time.
class CachePromise {
 public:
  virtual ~CachePromise() = default;
  /// Less is always granted. kResourceExhausted with needed and free bytes: the promise is what it was.
  virtual Status resize(std::uint64_t bytes) = 0;
};

/// Of engines that give memory to caches alone.
class UncountedPromise final : public CachePromise {
 public:
  Status resize(std::uint64_t /*bytes*/) override { return absl::OkStatus(); }
};

struct SamplingParams {
  float temperature = 0;    ///< 0: greedy
  std::uint32_t top_k = 0;  ///< 0: all
  float top_p = 1;          ///< (0, 1]
  std::uint64_t seed = 0;
  std::uint32_t choice = 0;  ///< which of several answers to one prompt
};

/// Visibility given by the caller instead of the causal rule.
struct AttentionMask {
  /// [rows, start + rows], row-major, added to the scaled scores; −inf hides. A row must see at least one
  /// key.
  std::vector<float> additive;
};

enum class Want : std::uint8_t {
  kNothing,  ///< fill the cache only
  kHidden,   ///< hidden states after the last layer of the range, before the final norm
  kTokens,   ///< sampled tokens; the range must end the model and the shard have the head
};
enum class HiddenType : std::uint8_t { kBfloat16, kFloat32 };

inline constexpr std::uint32_t kMaxSegmentRows = 1024;
inline constexpr std::uint32_t kMaxTop = 64;

class PendingStep;

/// Consecutive rows of one session. Input is `ids`, `hidden` or what another step gives.
struct Segment {
  CacheId cache;
  Position start = 0;      ///< tokens in the cache before it; above the cursor is an error, below trims first
  std::uint32_t rows = 0;  ///< 1 … kMaxSegmentRows
  std::vector<TokenId> ids;  ///< [rows]; the shard must have the embedding and the range begin at 0
  std::string hidden;        ///< [rows, H] of hidden_type, little-endian
  HiddenType hidden_type = HiddenType::kBfloat16;
  /// The hidden states, in bfloat16, of segment `from_segment` of a step of the same engine that was begun
  /// and not finished; they need not be there yet. Only begin() looks at it: the step lives until that
  /// returns, and another thread may finish it meanwhile.
  PendingStep* from = nullptr;
  std::size_t from_segment = 0;
  std::vector<Position> rotary_positions;  ///< [rows]; empty: start, start + 1, …
  std::optional<AttentionMask> mask;       ///< empty: causal
  Want want = Want::kHidden;
  HiddenType out_type = HiddenType::kBfloat16;
  std::vector<std::uint32_t> sample_rows;  ///< kTokens: rows whose next token is sampled; empty: the last row
  SamplingParams sampling;
  std::uint32_t top = 0;     ///< kTokens: how many best ids to report beside the sampled one, ≤ kMaxTop
  bool want_logits = false;  ///< kTokens: also the whole logits (tests, debugging)
};

struct RankedToken {
  TokenId id = 0;
  float logprob = 0;
};

struct SampledToken {
  TokenId id = 0;
  float logprob = 0;             ///< log-softmax of the plain logits (no temperature, no top_k or top_p)
  std::vector<RankedToken> top;  ///< best first
};

/// What one segment gave. An error concerns that segment alone; its cache is then back at `start`.
struct SegmentResult {
  Status status;
  std::string hidden;                ///< [rows, H] of out_type
  std::vector<SampledToken> tokens;  ///< one per sampled row
  std::vector<float> logits;         ///< [sampled rows, V] when asked for
};

/// A step that was begun. It holds its shard and caches; dropped without finish() it waits for the device,
/// and its cursors are as if it had been finished.
class PendingStep {
 public:
  virtual ~PendingStep() = default;
  /// Whether finish() returns without waiting. Of the thread that began it.
  virtual bool ended() const = 0;
  /// What Engine::step gives, once. Any thread, also while another step begins.
  virtual StatusOr<std::vector<SegmentResult>> finish() = 0;
};

/// Of engines whose begin() runs the step.
class StepThatRan final : public PendingStep {
 public:
  explicit StepThatRan(StatusOr<std::vector<SegmentResult>> results) : results_(std::move(results)) {}
  bool ended() const override { return true; }
  StatusOr<std::vector<SegmentResult>> finish() override { return std::move(results_); }

 private:
  StatusOr<std::vector<SegmentResult>> results_;
};

struct CacheState {
  LayerRange range;
  Position next = 0;  ///< the cursor: tokens in the cache
  Position max_positions = 0;
  std::uint64_t blocks = 0;  ///< blocks of 128 tokens × layers that it reserves on the device
  std::uint64_t bytes = 0;
  bool on_host = false;          ///< spill() took it off the device: it reserves nothing there
  std::uint64_t host_bytes = 0;  ///< what it takes in host memory
};

struct MemoryUse {
  std::uint64_t budget_bytes = 0;
  std::uint64_t weight_bytes = 0;
  std::uint64_t cache_bytes = 0;
  std::uint64_t cache_blocks = 0;   ///< that caches reserve
  std::uint64_t shared_blocks = 0;  ///< that handles hold, counted in cache_bytes too
  std::uint64_t caches = 0;
  std::uint64_t working_bytes = 0;  ///< set aside for activations
  std::uint64_t spill_budget_bytes = 0;
  std::uint64_t spilled_bytes = 0;  ///< host memory of caches that left the device
  /// What is promised to caches that are not open yet is among it.
  std::uint64_t free_bytes() const {
    const std::uint64_t used = weight_bytes + cache_bytes + working_bytes;
    return used >= budget_bytes ? 0 : budget_bytes - used;
  }
};

/// Why the CPU computes although a GPU was allowed; both empty: that is not so.
struct DeviceNote {
  std::string brief;    ///< one short line for a machine's owner
  std::string details;  ///< what was found, what is needed, how to get it
};

/// How the forwards of all steps were run.
struct ForwardCounts {
  std::uint64_t graphs = 0;  ///< as a CUDA graph
  std::uint64_t launches =
      0;                  ///< fused kernels one by one: the first time of a shape, and shapes without a graph
  std::uint64_t ops = 0;  ///< op by op: every forward on a CPU
};

/// Runs shards. Every method may be called from any thread; steps run one after another, and a load never
/// waits for one or holds one up. The engine must outlive its shards' loads and steps.
class Engine {
 public:
  /// Errors: kFailedPrecondition when kCuda is asked for and no GPU can be used; the message says what was
  /// found, what is needed and how to get it. With kAuto device_note() says so and the CPU is used.
  static StatusOr<std::unique_ptr<Engine>> create(const EngineOptions& options);
  virtual ~Engine() = default;

  virtual Device device() const = 0;  ///< kCpu or kCuda
  virtual ComputeType compute() const = 0;
  virtual const DeviceNote& device_note() const = 0;

  /// Bytes of a shard before it is loaded, from headers alone. kResourceExhausted when it does not fit, with
  /// needed and free bytes; kInvalidArgument for a range that the model does not allow; the errors of load()
  /// for tensors.
  virtual StatusOr<ShardNeeds> shard_needs(hub::Checkpoint& checkpoint, const ModelIdentity& identity,
                                           const ShardSpec& spec) const = 0;
  /// Loads on the calling thread, while steps go on. Parts that the engine holds under the same `identity`
  /// are shared, not read. Errors name the tensors that are missing, left over or of a wrong shape.
  /// `progress` may be empty.
  virtual StatusOr<std::shared_ptr<const Shard>> load(hub::Checkpoint& checkpoint,
                                                      const ModelIdentity& identity, const ShardSpec& spec,
                                                      const ProgressCallback& progress) = 0;

  /// What a token takes in caches of this range here, which may be more than its values (blocks have gaps).
  virtual std::uint64_t cache_bytes_per_token(const Shard& shard, const LayerRange& range) const {
    return shard.profile().kv_bytes_per_token(
        range, compute() == ComputeType::kFloat32 ? WeightFormat::kFloat32 : WeightFormat::kBfloat16);
  }
  /// A promise of no bytes yet. What was promised adds up, and caches are opened out of it, whosever they are
  /// (docs/engine-contract.md, Promised bytes).
  virtual std::unique_ptr<CachePromise> promise_caches() { return std::make_unique<UncountedPromise>(); }
  /// Reserves the KV blocks of `max_positions` tokens. kResourceExhausted with needed and free bytes.
  virtual StatusOr<CacheId> open_cache(const std::shared_ptr<const Shard>& shard, const LayerRange& range,
                                       Position max_positions) = 0;
  /// Forgets the tokens from `position` on. kOutOfRange above the cursor, kUnavailable while a step uses the
  /// cache.
  virtual Status trim(CacheId cache, Position position) = 0;
  /// A handle of full block `index` of a cache, for other caches of this range to begin with
  /// (docs/engine-contract.md, Shared blocks). Called by the thread that runs steps, as attach() is.
  /// kResourceExhausted when the budget has no room for it, kOutOfRange when the block is not full.
  virtual StatusOr<std::shared_ptr<const SharedBlock>> share(CacheId /*cache*/, std::uint32_t /*index*/) {
    return error(StatusCode::kFailedPrecondition, "this engine keeps no blocks");
  }
  /// A cache without tokens begins with `tokens` tokens: those of `blocks`, one for every 128, or of none
  /// when its range has no layers. kInvalidArgument when they do not fit the cache.
  virtual Status attach(CacheId /*cache*/, std::span<const std::shared_ptr<const SharedBlock>> /*blocks*/,
                        Position /*tokens*/) {
    return error(StatusCode::kFailedPrecondition, "this engine keeps no blocks");
  }
  /// Moves a cache's tokens to host memory and gives back what it reserved on the device; the bytes that were
  /// copied, 0 when it is there already. There it may be trimmed and closed; everything else is refused until
  /// restore(). Called by one thread at a time, as restore() is, beside steps of other caches if it likes.
  /// kResourceExhausted: there is no host memory for it, and it stays as it was.
  virtual StatusOr<std::uint64_t> spill(CacheId /*cache*/) {
    return error(StatusCode::kFailedPrecondition, "this engine keeps all caches on its device");
  }
  /// Moves it back. kResourceExhausted with needed and free bytes; it then stays in host memory.
  virtual StatusOr<std::uint64_t> restore(CacheId /*cache*/) { return std::uint64_t{0}; }
  /// Gives the blocks back (after the step that uses them, if one runs). Unknown ids are ignored.
  virtual void close_cache(CacheId cache) = 0;
  virtual StatusOr<CacheState> cache_state(CacheId cache) const = 0;
  virtual MemoryUse memory() const = 0;
  virtual ForwardCounts forward_counts() const { return {}; }

  /// One forward of `range`, which the shard must hold, over all segments' rows. Each cache must have been
  /// opened for this range of this model, and occurs at most once per step. Results are in the segments'
  /// order; a Status means that no segment ran.
  virtual StatusOr<std::vector<SegmentResult>> step(const std::shared_ptr<const Shard>& shard,
                                                    const LayerRange& range,
                                                    std::span<const Segment> segments) = 0;

  /// How many steps may be begun and not finished, so that the device goes from one to the next without
  /// waiting for the host; 1: begin() runs the step.
  virtual std::size_t steps_at_once() const { return 1; }
  /// step() in two parts: takes the input in and hands the step to the device, which runs steps in this
  /// order; PendingStep::finish() waits for it. Until then the step's caches are in it. With steps_at_once()
  /// of them under way it waits for the first. A Status means that no segment runs.
  virtual StatusOr<std::unique_ptr<PendingStep>> begin(const std::shared_ptr<const Shard>& shard,
                                                       const LayerRange& range,
                                                       std::vector<Segment> segments) {
    return std::make_unique<StepThatRan>(step(shard, range, segments));
  }
};

}  // namespace mesh::engine
