#pragma once

#include "common/log/log.h"
#include "tracker/settings.h"

namespace mesh::tracker {

/// Runs meshnet-tracker until a signal; its exit code.
int run_tracker(const TrackerSettings& settings, const log::Logger& log);

}  // namespace mesh::tracker
