#pragma once

#include <cstddef>

#include "common/base/clock.h"
#include "common/wire/segment.h"

namespace mesh {

/// Told of single events that figures at a scrape cannot tell: distributions and refusals. Called from any
/// thread; must neither block nor call the node.
class NodeObserver {
 public:
  virtual ~NodeObserver() = default;
  virtual void on_step(wire::Lane lane, Duration took) = 0;
  /// A frame came whole; `body_bytes` on the wire.
  virtual void on_frame(std::size_t body_bytes) = 0;
  virtual void on_malformed_frame() = 0;
  /// A segment of a frame was answered with anything but kAccepted.
  virtual void on_refused_segment(wire::AnswerCode why) = 0;
};

}  // namespace mesh
