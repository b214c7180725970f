#pragma once

#include "node/runtime/fault_points.h"

namespace mesh {

/// All of meshnet-node: reads its settings and runs it. Returns the exit code. `faults` is null but in test
/// programs.
int start_node(int argc, char** argv, FaultPoints* faults);

}  // namespace mesh
