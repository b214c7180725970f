#pragma once

#include <optional>
#include <vector>

#include "node/engine/weights/load_crew.h"
#include "node/engine/weights/shard_loader.h"
#include "node/engine/weights/tensor_catalogue.h"

namespace mesh::engine {

/// Most source bytes that a thread has mapped in at a time; Conv1D matrices are read whole.
inline constexpr std::uint64_t kReadSlice = 4u << 20;

/// What the parts of one load become.
struct Precision {
  WeightFormat compute = WeightFormat::kBfloat16;
  Quantization quantization = Quantization::kNone;  ///< made at load, unless the checkpoint has it
  bool stored = false;                              ///< the checkpoint is quantised
};
/// What a matrix is for: a layer's, one that logits are made with, or rows that are only looked up.
enum class MatrixUse : std::uint8_t { kLayer, kHead, kLookUp };

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

/// Reads tensors of one load and releases their pages. While a piece is packed, the disk reads those behind
/// it. For several threads at once, each with tensors of its own. Every tensor read must have passed check().
class PartReader {
 public:
  PartReader(const LoadContext& context, hub::Checkpoint& checkpoint, const TensorCatalogue& catalogue,
             const Precision& precision, LoadMeter& meter)
      : context_(context),
        checkpoint_(checkpoint),
        catalogue_(catalogue),
        precision_(precision),
        meter_(meter) {}

  StatusOr<NormWeights> norm(const NormPlan& plan) const;
  StatusOr<LinearPtr> matrix(const MatrixPlan& plan, MatrixUse use) const;
  /// Lets the first pieces of a tensor be read from disk.
  void announce(const TensorSource& source) const;

 private:
  StatusOr<std::vector<float>> values(const TensorSource& source) const;
  StatusOr<LinearPtr> dense_matrix(const MatrixPlan& plan, Element element) const;
  StatusOr<LinearPtr> quantised_matrix(const MatrixPlan& plan, ops::MatrixFormat format) const;
  Status append_dense(const MatrixPlan& plan, const TensorSource& source, LinearLoader& loader) const;
  Status append_quantised(const MatrixPlan& plan, const TensorSource& source, ops::MatrixFormat format,
                          QuantisedLoader& loader) const;
  Status append_codes(const TensorSource& source, std::uint64_t outs, std::int64_t in,
                      ops::MatrixFormat format, QuantisedLoader& loader) const;
  /// The key of a matrix of made-up weights.
  std::optional<std::uint64_t> made_of(const MatrixPlan& plan) const;
  /// The matrix's rows count as read.
  Status made(const MatrixPlan& plan) const;
  template <class Loader>
  StatusOr<LinearPtr> with_bias(const MatrixPlan& plan, Loader& loader) const;
  /// take(bytes, first row, rows) for each piece of whole rows of `row_bytes` bytes.
  template <class Take>
  Status for_each_piece(const TensorSource& source, std::uint64_t rows, std::uint64_t row_bytes,
                        const Take& take) const;
  /// take(bytes) with the whole tensor.
  template <class Take>
  Status whole(const TensorSource& source, const Take& take) const;
  Status finished(const TensorSource& source) const { return meter_.add(catalogue_.bytes(source)); }

  const LoadContext& context_;
  hub::Checkpoint& checkpoint_;
  const TensorCatalogue& catalogue_;
  const Precision precision_;
  LoadMeter& meter_;
};

}  // namespace mesh::engine
