#pragma once

#include "node/runtime/fault_points.h"

namespace mesh {

/// All of meshnet-node: a command of node/tools that the first argument names, or else a node as its settings
/// say. Returns the exit code. `faults` is null but in test
/// programs.
int start_node(int argc, char** argv, FaultPoints* faults);

}  // namespace mesh
