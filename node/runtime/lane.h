#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "common/identity/key_pair.h"
#include "common/net/client.h"
#include "common/wire/codec_chooser.h"
#include "node/node.h"
#include "node/pipeline/hop_table.h"
#include "node/runtime/lane_events.h"
#include "node/runtime/lane_queue.h"

namespace mesh {

/// Lets bulk pieces to one next hop wait while something for the decode lane is on its way. Any thread.
class Precedence {
 public:
  void decode_begins();
  void decode_ended();
  /// Returns when no decode is on its way, at the latest after `longest`.
  void let_decode_pass(Duration longest);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t decoding_ = 0;
};

using StartThread = std::function<std::thread(std::function<void()>)>;

struct LaneOptions {
  std::string url;
  wire::CodecPolicy codec = wire::CodecPolicy::kAuto;
  net::AddressPolicy peers = net::AddressPolicy::any();
  std::shared_ptr<const KeyPair> identity;  ///< signs questions and reports; may be null
  std::shared_ptr<Precedence> precedence;   ///< shared by both lanes of one next hop
  wire::Lane lane = wire::Lane::kDecode;
  FaultPoints* faults = nullptr;
  std::size_t connections = 2;  ///< so that one answer's way back does not hold up the next frame
  /// May throw std::system_error, as std::thread does when the system has none left.
  StartThread start_thread = [](std::function<void()> run) { return std::thread(std::move(run)); };
};

/// One lane to one next hop or head: a queue and the threads that post from it, each over its own kept
/// connection. Coding happens here, off the strand and the executor. A failed post is told, never repeated:
/// the hop table backs off.
class Lane {
 public:
  /// Makes the connection, and says nothing of it: what is sent next need not wait for it.
  struct Warm {};
  using Item =
      std::variant<pipeline::OutFrame, pipeline::OutAsk, pipeline::OutTokens, pipeline::OutReport, Warm>;

  /// With as many connections as there are threads to be had. kResourceExhausted: not even one.
  static StatusOr<std::unique_ptr<Lane>> start(LaneOptions options, LaneEvents& events);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  /// False when full or stopped; `item` is then untouched.
  bool send(Item& item);
  /// Opens the connections that are not open; at most once in a while.
  void warm();
  /// Cuts off posts under way; their events still come.
  void stop();
  /// When something was sent last; none from when it is given to send() until its event has come.
  std::optional<TimePoint> idle_since() const;
  LinkCounters counters() const;

 private:
  class Worker;
  friend class Worker;

  Lane(LaneOptions options, LaneEvents& events);
  void note_done();
  void note_posted(std::uint64_t raw_bytes, std::uint64_t coded_bytes, std::size_t body_bytes, Duration took);
  void note_failure();

  const LaneOptions options_;
  LaneEvents& events_;
  LaneQueue<Item> queue_{64};

  mutable std::mutex mutex_;
  wire::CodecChooser chooser_;
  LinkCounters counters_;
  Duration shortest_{};  ///< smallest round trip seen; 0: none yet
  TimePoint last_used_;
  std::size_t pending_ = 0;  ///< given to send(), not done
  TimePoint warm_until_;

  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace mesh
