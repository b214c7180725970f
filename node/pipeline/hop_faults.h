#pragma once

namespace mesh::pipeline {

/// Mistakes that a hop could make, for the simulator to prove that it would find them. Only HopTableTester
/// can pass them; a hop table made by anybody else has none.
struct HopFaults {
  bool accept_gaps = false;        ///< applies a seq beyond last + 1 at once
  bool apply_duplicates = false;   ///< appends a segment that it had before
  bool ignore_generation = false;  ///< takes segments of a lower generation
  bool forget_tokens = false;      ///< the tail sends its token once and does not keep it
};

}  // namespace mesh::pipeline
