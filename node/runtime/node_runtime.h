#pragma once

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include "common/base/alarm.h"
#include "common/base/strand.h"
#include "node/node.h"
#include "node/runtime/executor.h"
#include "node/runtime/forward.h"
#include "node/runtime/lane_events.h"
#include "node/runtime/lanes.h"
#include "node/runtime/local_head.h"
#include "node/runtime/session_book.h"
#include "node/runtime/shard_set.h"

namespace mesh {

/// Node with its threads. The hop table belongs to a strand: whatever happened, on whichever thread, is a
/// command of it, and commands never wait for a device, a socket or another program.
class NodeRuntime final : public Node, private LaneEvents {
 public:
  NodeRuntime(NodeOptions options, std::unique_ptr<engine::Engine> engine, HeadSink* sink);
  ~NodeRuntime() override;

  wire::OpenReply open(const wire::OpenRequest& request) override;
  void close(const wire::CloseRequest& request) override;
  wire::CursorsReply cursors(const wire::CursorsRequest& request) override;
  wire::RenewReply renew(const wire::RenewRequest& request) override;
  std::vector<wire::SegmentAnswer> accept(std::vector<Arrival> segments) override;
  std::optional<pipeline::SessionKeys> keys(const wire::HopKey& hop) override { return book_.keys(hop); }

  Status load_shard(const std::shared_ptr<hub::Checkpoint>& files, const ModelIdentity& identity,
                    const engine::ShardSpec& spec, const engine::ProgressCallback& progress) override;
  Status drop_shard(const ModelIdentity& identity, const LayerRange& range) override;
  std::vector<wire::ShardStatus> shards() const override { return shards_.statuses(); }
  StatusOr<engine::ModelProfile> profile(const ModelIdentity& identity) const override;

  StatusOr<ForwardReply> forward(ForwardRequest request) override;

  NodeFigures figures() override;
  engine::MemoryUse memory() const override { return engine_->memory(); }
  engine::Engine& engine() override { return *engine_; }
  void set_draining(bool draining) override;
  void wait_idle(Duration longest) override;
  void stop() override;

 private:
  void frame_done(std::uint64_t id, StatusOr<std::vector<wire::SegmentAnswer>> answers) override;
  void ask_done(std::uint64_t id, StatusOr<wire::CursorsReply> reply) override;
  void tokens_done(std::uint64_t id, StatusOr<std::vector<wire::TokenAnswer>> answers) override;
  void report_done(std::uint64_t id, const Status& status) override;
  void step_done(pipeline::StepOutput output, const StepRecord& record);

  /// Runs `call` on the strand and waits for it; nothing when the node stops.
  template <class Call>
  auto ask(Call call) -> std::optional<std::invoke_result_t<Call>>;

  /// The first layers of a shard that is being loaded take sessions; false when they cannot.
  bool offer_part(hub::Checkpoint& files, const ModelIdentity& identity, const engine::ShardSpec& spec,
                  const LayerRange& ready);
  bool let_prefixes_go();

  // On the strand only.
  void pump();
  void take_orders();
  void begin_steps();
  bool begin_step();
  void send_frames();
  void send_to_heads();
  void every_second();
  wire::OpenReply open_here(const wire::OpenRequest& request);
  void warm_lanes(const wire::OpenRequest& request);
  /// Has the engine keep `bytes` for the table's caches and kept prompts.
  Status promise(std::uint64_t bytes);
  /// Tells the table what it may use, and has as much kept as sessions that wait may take at once.
  void claim_room();
  /// What shards, steps and forwards leave of the engine's memory for the table's caches and kept prompts.
  std::uint64_t cache_bytes() const;
  std::optional<pipeline::ShardView> shard_view(const wire::OpenRequest& request) const;
  wire::SegmentAnswer accept_one(Arrival arrival);
  TimePoint now() const { return clock_.now(); }
  bool is_local(const std::string& head_url) const;

  const NodeOptions options_;
  const SteadyClock clock_;
  std::unique_ptr<engine::Engine> engine_;
  const std::unique_ptr<engine::CachePromise> promise_ = engine_->promise_caches();
  std::uint64_t promised_ = 0;  ///< with it
  ShardSet shards_;
  SessionBook book_;
  pipeline::HopTable table_;
  Lanes lanes_;
  std::unique_ptr<LocalHead> local_head_;
  Executor executor_;
  std::vector<CacheJob> orders_;  ///< on their way to the executor
  ForwardSessions forwards_;      ///< executor thread only

  std::map<std::uint64_t, std::vector<wire::HopKey>>
      steps_;  ///< that run, by id: their sessions whose input is ids
  TimePoint next_second_;

  mutable std::mutex totals_mutex_;
  NodeFigures totals_;  ///< the step counters alone
  Strand strand_{8192, [this] { pump(); }};
  Alarm alarm_{[this] { strand_.post([] {}); }};  ///< for what is due when nothing happens
};

}  // namespace mesh
