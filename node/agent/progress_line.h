#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/clock.h"

namespace mesh {

/// Lines such as "fetching layers [3, 6): 41 % of 120.0 MiB, 10.2 MiB/s, 7 s left", at most one per
/// `interval`.
class ProgressLine {
 public:
  ProgressLine(std::string what, Duration interval, TimePoint now)
      : what_(std::move(what)), interval_(interval), began_(now), last_(now) {}

  /// A line when one is due. A smaller `done` than before, or another `phase`, begins the measuring anew.
  std::optional<std::string> note(std::string_view phase, std::uint64_t done, std::uint64_t total,
                                  TimePoint now);

 private:
  const std::string what_;
  const Duration interval_;
  std::string phase_;
  TimePoint began_;
  TimePoint last_;
  std::uint64_t first_done_ = 0;
  std::uint64_t last_done_ = 0;
};

}  // namespace mesh
