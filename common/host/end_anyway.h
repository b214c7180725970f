#pragma once

#include "common/base/clock.h"

namespace mesh {

/// Ends the process with `exit_code` after `patience`, if its orderly end hangs so long.
void end_anyway_after(Duration patience, int exit_code);

}  // namespace mesh
