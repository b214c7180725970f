#include "node/engine/weights/part_reader.h"

#include <algorithm>

#include "common/hub/checkpoint.h"
#include "node/engine/ops/elementwise.h"
#include "node/engine/ops/quantise.h"
#include "node/engine/weights/bitsandbytes.h"
#include "node/engine/weights/quantised_rows.h"

namespace mesh::engine {

StatusOr<ops::MatrixFormat> memory_format(const TensorCatalogue& catalogue, const MatrixPlan& plan,
                                          const Precision& precision, MatrixUse use) {
  const Quantization stored = catalogue.stored(plan.weights[0]).quantization;
  for (const TensorSource& source : plan.weights) {
    if (catalogue.stored(source).quantization != stored) {
      return error(StatusCode::kInvalidArgument,
                   "of {} and {}, which make one matrix, one alone is quantised",
                   catalogue.disk_name(plan.weights[0]), catalogue.disk_name(source));
    }
  }
  const bool make = precision.quantization != Quantization::kNone && !precision.stored;
  if (stored == Quantization::kInt8 || (make && use == MatrixUse::kHead)) return ops::MatrixFormat::kInt8;
  if (stored == Quantization::kNf4) return ops::MatrixFormat::kNf4;
  if (make && use == MatrixUse::kLayer) {
    return ops::quantised_format(
        precision.quantization == Quantization::kNf4 ? ops::MatrixFormat::kNf4 : ops::MatrixFormat::kInt8,
        static_cast<std::int64_t>(plan.in));
  }
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

Status PartReader::finished(const TensorSource& source) {
  done_ += catalogue_.bytes(source);
  if (progress_ && !progress_({.fetching = false, .bytes_done = done_, .bytes_total = total_})) {
    return error(StatusCode::kCancelled, "loading was cancelled after {} of {} bytes", done_, total_);
  }
  return absl::OkStatus();
}

StatusOr<std::vector<float>> PartReader::values(const TensorSource& source) {
  MESH_ASSIGN_OR_RETURN(const std::string_view bytes, checkpoint_.tensor(catalogue_.disk_name(source)));
  std::vector<float> values(source.shape[0]);
  ops::widen(bytes.data(), catalogue_.element(source), static_cast<std::int64_t>(values.size()),
             values.data());
  checkpoint_.release(bytes);
  MESH_RETURN_IF_ERROR(finished(source));
  return values;
}

StatusOr<NormWeights> PartReader::norm(const NormPlan& plan) {
  NormWeights norm;
  MESH_ASSIGN_OR_RETURN(const std::vector<float> weight, values(plan.weight));
  MESH_ASSIGN_OR_RETURN(norm.weight, context_.ops.upload_vector(weight));
  if (plan.bias) {
    MESH_ASSIGN_OR_RETURN(const std::vector<float> bias, values(*plan.bias));
    MESH_ASSIGN_OR_RETURN(norm.bias, context_.ops.upload_vector(bias));
  }
  return norm;
}

template <class Take>
Status PartReader::for_each_piece(const TensorSource& source, std::uint64_t rows, std::uint64_t row_bytes,
                                  const Take& take) {
  const std::uint64_t step = std::max<std::uint64_t>(1, kReadSlice / row_bytes);
  for (std::uint64_t row = 0; row < rows; row += step) {
    const std::uint64_t count = std::min(step, rows - row);
    MESH_ASSIGN_OR_RETURN(
        const std::string_view bytes,
        checkpoint_.slice(catalogue_.disk_name(source), row * row_bytes, count * row_bytes));
    MESH_RETURN_IF_ERROR(take(bytes, static_cast<std::int64_t>(row), static_cast<std::int64_t>(count)));
    checkpoint_.release(bytes);
  }
  return finished(source);
}

template <class Take>
Status PartReader::whole(const TensorSource& source, const Take& take) {
  MESH_ASSIGN_OR_RETURN(const std::string_view bytes, checkpoint_.tensor(catalogue_.disk_name(source)));
  MESH_RETURN_IF_ERROR(take(bytes));
  checkpoint_.release(bytes);
  return finished(source);
}

template <class Loader>
StatusOr<LinearPtr> PartReader::with_bias(const MatrixPlan& plan, Loader& loader) {
  std::int64_t first = 0;
  for (const TensorSource& source : plan.biases) {
    MESH_ASSIGN_OR_RETURN(const std::vector<float> bias, values(source));
    MESH_RETURN_IF_ERROR(loader.set_bias(first, bias));
    first += static_cast<std::int64_t>(bias.size());
  }
  return loader.finish();
}

StatusOr<LinearPtr> PartReader::dense_matrix(const MatrixPlan& plan, Element stored) {
  const auto in = static_cast<std::int64_t>(plan.in);
  MESH_ASSIGN_OR_RETURN(const std::unique_ptr<LinearLoader> loader,
                        context_.ops.linear_loader(static_cast<std::int64_t>(plan.out), in, stored));
  for (const TensorSource& source : plan.weights) {
    const Element element = catalogue_.element(source);
    if (plan.transposed) {
      const auto outs = static_cast<std::int64_t>(source.shape[1]);
      MESH_RETURN_IF_ERROR(whole(source, [&](std::string_view bytes) {
        return loader->append_transposed(bytes.data(), element, outs, outs);
      }));
    } else {
      const auto row_bytes = static_cast<std::uint64_t>(in * ops::element_size(element));
      MESH_RETURN_IF_ERROR(for_each_piece(source, source.shape[0], row_bytes,
                                          [&](std::string_view bytes, std::int64_t, std::int64_t rows) {
                                            return loader->append_rows(bytes.data(), element, rows, in);
                                          }));
    }
  }
  return with_bias(plan, *loader);
}

StatusOr<LinearPtr> PartReader::quantised_matrix(const MatrixPlan& plan, ops::MatrixFormat format) {
  const auto in = static_cast<std::int64_t>(plan.in);
  MESH_ASSIGN_OR_RETURN(const std::unique_ptr<QuantisedLoader> loader,
                        context_.ops.quantised_loader(static_cast<std::int64_t>(plan.out), in, format));
  for (const TensorSource& source : plan.weights) {
    const StoredTensor& stored = catalogue_.stored(source);
    const std::uint64_t outs = source.shape[plan.transposed ? 1 : 0];
    Status status;
    if (stored.quantization != Quantization::kNone) {
      MESH_ASSIGN_OR_RETURN(const std::vector<float> scales,
                            bitsandbytes::read_scales(checkpoint_, stored, outs, plan.in));
      const auto row_bytes = static_cast<std::uint64_t>(ops::code_bytes(format, in));
      status = for_each_piece(source, outs, row_bytes,
                              [&](std::string_view bytes, std::int64_t first, std::int64_t rows) {
                                return append_stored(format, bytes, scales, in, first, rows, *loader);
                              });
    } else if (plan.transposed) {
      status = whole(source, [&](std::string_view bytes) {
        return quantise_transposed(format, bytes, stored.element, static_cast<std::int64_t>(outs), in,
                                   *loader);
      });
    } else {
      const auto row_bytes = static_cast<std::uint64_t>(in * ops::element_size(stored.element));
      status = for_each_piece(source, outs, row_bytes,
                              [&](std::string_view bytes, std::int64_t, std::int64_t rows) {
                                return quantise_rows(format, bytes, stored.element, rows, in, *loader);
                              });
    }
    if (!status.ok()) return with_context(status, catalogue_.disk_name(source));
  }
  return with_bias(plan, *loader);
}

StatusOr<LinearPtr> PartReader::matrix(const MatrixPlan& plan, MatrixUse use) {
  MESH_ASSIGN_OR_RETURN(const ops::MatrixFormat format, memory_format(catalogue_, plan, precision_, use));
  if (ops::is_quantised(format)) return quantised_matrix(plan, format);
  return dense_matrix(plan, format == ops::MatrixFormat::kBf16 ? Element::kBf16 : Element::kF32);
}

}  // namespace mesh::engine
