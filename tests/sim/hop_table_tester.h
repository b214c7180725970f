#pragma once

#include <memory>

#include "node/pipeline/hop_faults.h"
#include "node/pipeline/hop_table.h"

namespace mesh::pipeline {

/// Makes hop tables with planted faults.
class HopTableTester {
 public:
  static std::unique_ptr<HopTable> make(const HopOptions& options, const HopFaults& faults) {
    return std::unique_ptr<HopTable>(new HopTable(options, faults));
  }
};

}  // namespace mesh::pipeline
