#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/wire/codec.h"
#include "node/pipeline/hop_faults.h"
#include "node/pipeline/hop_table.h"
#include "tests/sim/fake_engine.h"
#include "tests/sim/network.h"

namespace mesh::sim {

/// Where a node may be made to crash.
enum class CrashPoint : std::uint8_t {
  kFrameArrived,   ///< nothing of it was looked at
  kFrameAccepted,  ///< queued, but the answer never leaves
  kAnswerSent,
  kStepBegun,
  kStepComputed,  ///< the result is not taken over
  kResultSent,    ///< a frame or token message is on its way
};

/// A node's runtime on the simulated network: a HopTable, a fake engine and the real wire formats. Also the
/// tracker's embedded node. Signatures and sealing are left out: secrets travel as they are.
class SimNode {
 public:
  struct Setup {
    NodeId id;
    std::string url;
    std::vector<LayerRange> shards;
    std::uint32_t layers = 0;  ///< of the model
    ModelIdentity identity;
    pipeline::HopOptions options;
    pipeline::HopFaults faults;
    std::function<int(const SessionId&)> principal_of;  ///< who asked
    std::chrono::nanoseconds copy_time_per_byte{1};     ///< to and from host memory
  };

  SimNode(Setup setup, Timeline& timeline, Network& network, Random& random,
          std::function<void(const std::string&)> violation);

  /// Begins with nothing but its shards.
  void start();
  /// Loses everything at once; what it had sent is still on the way.
  void crash();
  bool running() const { return table_ != nullptr; }
  /// Crashes at the `occurrence`-th time from now, and starts again `down` later.
  void crash_at(CrashPoint point, int occurrence, Duration down);
  int crashes() const { return crashes_; }
  /// Stops answering and computing without closing its connections, as a stopped process does.
  void freeze(Duration how_long);
  void fail_next_step() { engine_.fail_next_step(); }

  const NodeId& id() const { return setup_.id; }
  const std::string& url() const { return setup_.url; }
  const std::vector<LayerRange>& shards() const { return setup_.shards; }
  void set_shards(std::vector<LayerRange> shards) { setup_.shards = std::move(shards); }
  pipeline::HopTable& table() { return *table_; }
  std::size_t caches() const { return engine_.caches(); }
  std::size_t bytes_in_use() const;
  /// Whether the engine keeps exactly the blocks that the table counts.
  bool blocks_agree() const;
  /// Blocks that sessions began with, since the world began.
  std::uint64_t hit_blocks() const { return hit_blocks_; }
  std::uint64_t moves() const { return moves_; }  ///< of caches to host memory and back, likewise

  wire::OpenReply open(const wire::OpenRequest& request);
  /// Takes effects out and arms the next wake-up; call it after every event.
  void drain();

 private:
  StatusOr<std::string> handle(const std::string& route, const std::string& body);
  StatusOr<std::string> take_frame(const std::string& body);
  void send_frames();
  void send_messages();
  void run_steps();
  void carry_out_orders();
  /// Runs `what` unless the node was restarted meanwhile.
  std::function<void()> guarded(std::function<void()> what);
  template <class Done>
  Network::Done reply_to(Done done);
  bool hit(CrashPoint point);
  void die();

  Setup setup_;
  Timeline& timeline_;
  Network& network_;
  Random& random_;
  std::function<void(const std::string&)> violation_;
  std::unique_ptr<pipeline::HopTable> table_;
  FakeEngine engine_;
  wire::HiddenCodec codec_;
  std::size_t steps_running_ = 0;
  std::uint64_t life_ = 0;
  TimePoint frozen_until_{};
  CrashPoint crash_point_{};
  int crash_countdown_ = 0;
  Duration down_{};
  int crashes_ = 0;
  std::map<pipeline::CacheId, int> cache_owner_;
  std::map<pipeline::PrefixBlockId, int> block_owner_;
  std::uint64_t hit_blocks_ = 0, moves_ = 0;
  std::optional<TimePoint> armed_;
};

}  // namespace mesh::sim
