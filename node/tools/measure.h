#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "node/engine/engine.h"

namespace mesh::tools {

/// What is run: `sessions` decode together after a prompt of `context` tokens; a prompt of `prompt` tokens is
/// prefilled in chunks.
struct Workload {
  std::size_t sessions = 1;
  Position context = 128;
  Position decoded = 32;  ///< steps of a round
  Position prompt = 512;
  std::uint32_t chunk = 128;
  int rounds = 5;
  bool prefill = true;
};

/// Medians over all rounds.
struct Measured {
  double prefill_seconds = 0;  ///< of the whole prompt; 0: not run
  double decode_seconds = 0;   ///< of one step of all sessions
  double mean_context = 0;     ///< tokens before the decoded ones, on average
};

/// What a step must read and multiply at least.
struct Cost {
  double weight_bytes = 0;  ///< matrices that a decode step reads, lm_head among them where it runs
  double kv_bytes = 0;      ///< of one token of one session
  double layer_values = 0;  ///< of the layers' matrices
  double decode_bytes(const Workload& work, double mean_context) const {
    return weight_bytes + static_cast<double>(work.sessions) * mean_context * kv_bytes;
  }
  double prefill_flops(const Workload& work) const { return 2 * layer_values * work.prompt; }
};
/// `ranges` together, with lm_head if `head`. `compute` is that of the engine.
Cost cost_of(const engine::ModelProfile& profile, const LayerRange& range, bool head,
             engine::ComputeType compute, engine::Quantization quantization);

/// Runs the rounds; `between` is called before each of them (to measure limits).
StatusOr<Measured> measure(engine::Engine& engine, const std::shared_ptr<const engine::Shard>& shard,
                           const std::vector<LayerRange>& ranges, const Workload& work,
                           const std::function<void()>& between);

/// Of a list that is not empty; the upper one of two middles.
double median(std::vector<double> values);

}  // namespace mesh::tools
