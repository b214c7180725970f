#pragma once

#include "common/base/status.h"
#include "common/log/log.h"
#include "node/runtime/fault_points.h"
#include "node/settings.h"

namespace mesh {

/// Runs meshnet-node until a signal ends it (SIGTERM and SIGINT drain, a second one ends at once) or it
/// cannot go on. The caller has blocked both signals in every thread. Returns the exit code.
int run_node(const NodeSettings& settings, const log::Logger& log, FaultPoints* faults);

}  // namespace mesh
