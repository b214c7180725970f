#pragma once

#include <vector>

#include "node/engine/weights/shard_loader.h"
#include "node/engine/weights/tensor_catalogue.h"

namespace mesh::engine {

/// Most source bytes that are mapped in at a time; Conv1D matrices are read whole.
inline constexpr std::uint64_t kReadSlice = 16u << 20;

/// How a matrix of these sources is kept: float32 sources stay so under float32 compute only.
Element stored_element(const TensorCatalogue& catalogue, const MatrixPlan& plan, WeightFormat compute);
/// Memory of the packed matrix with its bias.
std::uint64_t packed_bytes(const TensorCatalogue& catalogue, const MatrixPlan& plan, WeightFormat compute);
/// A table that stands alone ([rows, H] of one tensor) as a matrix.
MatrixPlan table_plan(const TensorSource& source);

/// Reads tensors of one load, in order, and releases their pages. Every tensor read must have passed check().
class PartReader {
 public:
  PartReader(const LoadContext& context, hub::Checkpoint& checkpoint, const TensorCatalogue& catalogue,
             const ProgressCallback& progress, std::uint64_t total_bytes)
      : context_(context),
        checkpoint_(checkpoint),
        catalogue_(catalogue),
        progress_(progress),
        total_(total_bytes) {}

  StatusOr<NormWeights> norm(const NormPlan& plan);
  StatusOr<LinearPtr> matrix(const MatrixPlan& plan);

 private:
  StatusOr<std::vector<float>> values(const TensorSource& source);
  Status read_rows(const TensorSource& source, std::int64_t in, LinearLoader& loader);
  Status read_transposed(const TensorSource& source, LinearLoader& loader);
  Status finished(const TensorSource& source);

  const LoadContext& context_;
  hub::Checkpoint& checkpoint_;
  const TensorCatalogue& catalogue_;
  const ProgressCallback& progress_;
  const std::uint64_t total_;
  std::uint64_t done_ = 0;
};

}  // namespace mesh::engine
