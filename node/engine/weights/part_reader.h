#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "common/safetensors/read_buffer.h"
#include "node/engine/weights/load_crew.h"
#include "node/engine/weights/quantised_rows.h"
#include "node/engine/weights/shard_loader.h"
#include "node/engine/weights/tensor_catalogue.h"

namespace mesh::engine {

/// Most source bytes that a thread has at a time, one row at least; Conv1D matrices are read whole.
inline constexpr std::uint64_t kReadSlice = 4u << 20;

/// What the parts of one load become.
struct Precision {
  WeightFormat compute = WeightFormat::kBfloat16;
  Quantization quantization = Quantization::kNone;  ///< made at load, unless the checkpoint has it
  bool stored = false;                              ///< the checkpoint is quantised
};
/// What a matrix is for: a layer's, one that logits are made with, or rows that are only looked up.
enum class MatrixUse : std::uint8_t { kLayer, kHead, kLookUp };

ops::MatrixFormat format_of(Quantization quantization);  ///< of one that is not kNone
/// How a matrix of these sources is kept (docs/engine-contract.md, Weights). kInvalidArgument when some of
/// its sources are quantised and some are not.
StatusOr<ops::MatrixFormat> memory_format(const TensorCatalogue& catalogue, const MatrixPlan& plan,
                                          const Precision& precision, MatrixUse use);
/// Memory of the packed matrix with its bias.
std::uint64_t packed_bytes(const MatrixPlan& plan, ops::MatrixFormat format);
/// Memory that reading `source` takes beside the packed matrix, at most.
std::uint64_t reading_bytes(const TensorCatalogue& catalogue, const TensorSource& source,
                            ops::MatrixFormat format, bool transposed);
/// A table that stands alone ([rows, H] of one tensor) as a matrix.
MatrixPlan table_plan(const TensorSource& source);

/// Reads tensors of one load; what all of its threads share. Every tensor read must have passed check().
class PartReader {
 public:
  PartReader(const LoadContext& context, hub::Checkpoint& checkpoint, const TensorCatalogue& catalogue,
             const Precision& precision, LoadMeter& meter)
      : context_(context),
        checkpoint_(checkpoint),
        catalogue_(catalogue),
        precision_(precision),
        meter_(meter) {}

  const LoadContext& context() const { return context_; }
  hub::Checkpoint& checkpoint() const { return checkpoint_; }
  const TensorCatalogue& catalogue() const { return catalogue_; }
  const Precision& precision() const { return precision_; }

  StatusOr<NormWeights> norm(const NormPlan& plan) const;
  /// A vector's values.
  StatusOr<std::vector<float>> values(const TensorSource& source) const;
  /// `bytes` of the disk's are read. kCancelled when the load ends.
  Status finished(std::uint64_t bytes) const { return meter_.add(bytes); }

  /// Memory for a piece; it goes to the next that asks.
  struct PieceMemory {
    safetensors::ReadBuffer bytes;
    RowScratch rows;
  };
  using Memory = std::unique_ptr<PieceMemory, std::function<void(PieceMemory*)>>;
  Memory piece_memory() const;

 private:
  const LoadContext& context_;
  hub::Checkpoint& checkpoint_;
  const TensorCatalogue& catalogue_;
  const Precision precision_;
  LoadMeter& meter_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<PieceMemory>> idle_;  // that nobody uses
};

}  // namespace mesh::engine
