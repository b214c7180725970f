#pragma once

#include <vector>

#include "node/engine/engine.h"

namespace mesh::engine {

/// Rotary (or learned) position of each row.
inline void append_positions(const Segment& segment, std::vector<Position>& positions) {
  for (std::uint32_t row = 0; row < segment.rows; ++row) {
    positions.push_back(segment.rotary_positions.empty() ? segment.start + row
                                                         : segment.rotary_positions[row]);
  }
}

inline Status not_finite(const Segment& segment, std::string_view what) {
  return error(StatusCode::kDataLoss, "the {} of tokens [{}, {}) are not finite", what, segment.start,
               segment.start + segment.rows);
}

}  // namespace mesh::engine
