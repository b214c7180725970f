#pragma once

#include <cstdint>

namespace mesh {

/// Places on a frame's way through a node.
enum class FaultPoint : std::uint8_t {
  kBeforeFrameRead,  ///< its headers are in
  kAfterFrameRead,
  kBeforeAnswer,  ///< the hop owns the segments, the 202 is not sent
  kAfterAnswer,
  kBeforeCompute,
  kAfterCompute,
  kBeforeSend,  ///< a frame or tokens for the next hop or the head
  kAfterSend,
  kBeforeCoding,  ///< of a frame's payloads for the wire
};

/// Told of each passing, from whichever thread; a test program ends the process there. Production hands in
/// none.
class FaultPoints {
 public:
  virtual ~FaultPoints() = default;
  virtual void pass(FaultPoint point) = 0;
};

inline void pass(FaultPoints* faults, FaultPoint point) {
  if (faults != nullptr) faults->pass(point);
}

}  // namespace mesh
