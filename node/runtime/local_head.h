#pragma once

#include <thread>
#include <variant>

#include "common/base/bounded_queue.h"
#include "node/node.h"
#include "node/runtime/lane_events.h"

namespace mesh {

/// The lane to a head in the same process: one thread that hands things to a HeadSink.
class LocalHead {
 public:
  using Item = std::variant<pipeline::OutTokens, pipeline::OutReport, wire::CursorEntry>;

  LocalHead(HeadSink& sink, LaneEvents& events);
  ~LocalHead() { stop(); }
  LocalHead(const LocalHead&) = delete;
  LocalHead& operator=(const LocalHead&) = delete;

  /// False when full or stopped.
  bool send(Item item) { return queue_.try_push(item); }
  void stop();

 private:
  void loop();

  HeadSink& sink_;
  LaneEvents& events_;
  BoundedQueue<Item> queue_{4096};
  std::thread thread_;
};

}  // namespace mesh
