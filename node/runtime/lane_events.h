#pragma once

#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "common/wire/messages.h"
#include "common/wire/segment.h"

namespace mesh {

/// How what a lane sent came back, by the id that the hop table gave it. Called from the lanes' threads.
class LaneEvents {
 public:
  virtual ~LaneEvents() = default;
  virtual void frame_done(std::uint64_t id, StatusOr<std::vector<wire::SegmentAnswer>> answers) = 0;
  virtual void ask_done(std::uint64_t id, StatusOr<wire::CursorsReply> reply) = 0;
  virtual void tokens_done(std::uint64_t id, StatusOr<std::vector<wire::TokenAnswer>> answers) = 0;
  virtual void report_done(std::uint64_t id, const Status& status) = 0;
};

}  // namespace mesh
