#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "node/engine/engine.h"

namespace mesh::hub {
class Checkpoint;
}

namespace mesh::tools {

struct CompareOptions {
  engine::EngineOptions engine;
  engine::Quantization quantization = engine::Quantization::kNone;
  /// Most normalised mean square error of a row, Σ(ours − reference)² ÷ Σ reference²; none: 1e-8 when
  /// computing in float32, else 1e-3.
  std::optional<double> tolerance;
};

/// One operation of the engine that the reference has values of.
struct ComparedOperation {
  std::string name;     ///< "layer.3.q", "logits"
  double worst = 0;     ///< normalised mean square error of its worst row
  std::size_t row = 0;  ///< that row
  bool wrong = false;   ///< beyond the tolerance
};

struct Comparison {
  std::vector<ComparedOperation> operations;  ///< in the order of computing
  double tolerance = 0;
  const ComparedOperation* first_wrong() const;
};

/// Runs the whole model over the ids of `golden` and compares what each operation gives. `golden` is a
/// SafeTensors file: `ids`, I32 or I64 [T], and F32 [T, width] for each operation, named as
/// engine::OperationObserver says with "layer.N." before those of layers; any of them may be missing.
/// kInvalidArgument for values of operations or layers that this model does not have, of a wrong shape or
/// type, and without any.
StatusOr<Comparison> compare(hub::Checkpoint& checkpoint, const std::filesystem::path& golden,
                             const CompareOptions& options);

std::string to_text(const Comparison& comparison);

}  // namespace mesh::tools
