#include "node/engine/weights/part_reader.h"

#include <algorithm>

#include "common/hub/checkpoint.h"
#include "node/engine/ops/elementwise.h"
#include "node/engine/ops/quantise.h"
#include "node/engine/weights/quantised_rows.h"

namespace mesh::engine {

ops::MatrixFormat format_of(Quantization quantization) {
  switch (quantization) {
    case Quantization::kNf4:
      return ops::MatrixFormat::kNf4;
    case Quantization::kFp8:
      return ops::MatrixFormat::kFp8;
    default:
      return ops::MatrixFormat::kInt8;
  }
}

StatusOr<ops::MatrixFormat> memory_format(const TensorCatalogue& catalogue, const MatrixPlan& plan,
                                          const Precision& precision, MatrixUse use) {
  const Quantization stored = catalogue.stored(plan.weights[0]).quantization;
  for (const TensorSource& source : plan.weights) {
    if (catalogue.stored(source).quantization != stored) {
      return error(StatusCode::kInvalidArgument,
                   "of {} and {}, which make one matrix, one alone is quantised; quantise both or none",
                   catalogue.disk_name(plan.weights[0]), catalogue.disk_name(source));
    }
  }
  const bool make = precision.quantization != Quantization::kNone && !precision.stored;
  if (stored != Quantization::kNone) return format_of(stored);
  if (make && use == MatrixUse::kHead) return ops::MatrixFormat::kInt8;
  if (make && use == MatrixUse::kLayer)
    return ops::quantised_format(format_of(precision.quantization), static_cast<std::int64_t>(plan.in));
  const bool narrow = std::ranges::all_of(
      plan.weights, [&](const TensorSource& source) { return catalogue.element(source) == Element::kBf16; });
  const bool bfloat16 =
      narrow || precision.compute == WeightFormat::kBfloat16 || precision.quantization != Quantization::kNone;
  return bfloat16 ? ops::MatrixFormat::kBf16 : ops::MatrixFormat::kF32;
}

std::uint64_t packed_bytes(const MatrixPlan& plan, ops::MatrixFormat format) {
  constexpr auto kPanel = static_cast<std::uint64_t>(ops::PackedLinear::kPanel);
  const auto bytes = ops::PackedLinear::packed_bytes(static_cast<std::int64_t>(plan.out),
                                                     static_cast<std::int64_t>(plan.in), format);
  const std::uint64_t padded = (plan.out + kPanel - 1) / kPanel * kPanel;
  return bytes.value() + (plan.biases.empty() ? 0 : padded * sizeof(float));
}

std::uint64_t reading_bytes(const TensorCatalogue& catalogue, const TensorSource& source,
                            ops::MatrixFormat format, bool transposed) {
  const std::uint64_t bytes = catalogue.bytes(source);
  const std::uint64_t mapped = transposed ? bytes : std::min(bytes, kReadSlice);
  if (!ops::is_quantised(format) || source.shape.size() != 2) return mapped;
  // The scales as stored (a float for each 64 or each row, and their codes), and rows on their way.
  const std::uint64_t values = source.shape[0] * source.shape[1];
  const std::uint64_t longest = std::max(source.shape[0], source.shape[1]);
  return mapped + values / 12 + longest * kQuantisedRows * 10;
}

MatrixPlan table_plan(const TensorSource& source) {
  return {
      .weights = {source}, .biases = {}, .transposed = false, .out = source.shape[0], .in = source.shape[1]};
}

StatusOr<std::vector<float>> PartReader::values(const TensorSource& source) const {
  MESH_ASSIGN_OR_RETURN(const std::string_view bytes, checkpoint_.tensor(catalogue_.disk_name(source)));
  std::vector<float> values(source.shape[0]);
  ops::widen(bytes.data(), catalogue_.element(source), static_cast<std::int64_t>(values.size()),
             values.data());
  checkpoint_.release(bytes);
  MESH_RETURN_IF_ERROR(finished(catalogue_.bytes(source)));
  return values;
}

StatusOr<NormWeights> PartReader::norm(const NormPlan& plan) const {
  NormWeights norm;
  MESH_ASSIGN_OR_RETURN(const std::vector<float> weight, values(plan.weight));
  MESH_ASSIGN_OR_RETURN(norm.weight, context_.ops.upload_vector(weight));
  if (plan.bias) {
    MESH_ASSIGN_OR_RETURN(const std::vector<float> bias, values(*plan.bias));
    MESH_ASSIGN_OR_RETURN(norm.bias, context_.ops.upload_vector(bias));
  }
  return norm;
}

PartReader::Memory PartReader::piece_memory() const {
  std::unique_ptr<PieceMemory> memory;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      memory = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (!memory) memory = std::make_unique<PieceMemory>();
  return {memory.release(), [this](PieceMemory* used) {
            const std::lock_guard lock(mutex_);
            idle_.emplace_back(used);
          }};
}

}  // namespace mesh::engine
