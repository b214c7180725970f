#pragma once

namespace mesh::pipeline {

/// Mistakes that a hop could make, for the simulator to prove that it would find them. Only HopTableTester
/// can pass them; a hop table made by anybody else has none.
struct HopFaults {
  bool accept_gaps = false;        ///< applies a seq beyond last + 1 at once
  bool apply_duplicates = false;   ///< appends a segment that it had before
  bool ignore_generation = false;  ///< takes segments of a lower generation
  bool forget_tokens = false;      ///< the tail sends its token once and does not keep it
  bool stale_blocks = false;       ///< a prefix block let go of is offered still, under an id used anew
  bool block_before = false;       ///< keeps the block before the one that the key stands for
  bool stay_on_host = false;       ///< a cache whose turn comes is not brought back from host memory
  bool forget_host_bytes = false;  ///< a cache that ends in host memory counts there for ever
  bool latest_first = false;       ///< the cache that began to wait last comes in first
  bool crowd_in = false;           ///< a cache comes in although nobody leaves
};

}  // namespace mesh::pipeline
