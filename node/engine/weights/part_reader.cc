#include "node/engine/weights/part_reader.h"

#include <algorithm>

#include "common/hub/checkpoint.h"
#include "node/engine/ops/elementwise.h"
#include "node/engine/ops/quantise.h"
#include "node/engine/weights/bitsandbytes.h"
#include "node/engine/weights/fp8.h"
#include "node/engine/weights/quantised_rows.h"

namespace mesh::engine {
namespace {

// Pieces that the disk reads while one is packed.
constexpr std::uint64_t kAhead = 4;
constexpr float kDeviation = 0.02f;  // of made-up weights

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

}  // namespace

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
  MESH_RETURN_IF_ERROR(finished(source));
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

void PartReader::announce(const TensorSource& source) const {
  checkpoint_.read_ahead(catalogue_.disk_name(source), 0, kAhead * kReadSlice);
}

template <class Take>
Status PartReader::for_each_piece(const TensorSource& source, std::uint64_t rows, std::uint64_t row_bytes,
                                  const Take& take) const {
  const std::string name = catalogue_.disk_name(source);
  const std::uint64_t step = std::max<std::uint64_t>(1, kReadSlice / row_bytes), piece = step * row_bytes;
  checkpoint_.read_ahead(name, piece, (kAhead - 1) * piece);
  for (std::uint64_t row = 0; row < rows; row += step) {
    const std::uint64_t count = std::min(step, rows - row);
    checkpoint_.read_ahead(name, row * row_bytes + kAhead * piece, piece);
    MESH_ASSIGN_OR_RETURN(const std::string_view bytes,
                          checkpoint_.slice(name, row * row_bytes, count * row_bytes));
    const Status taken = take(bytes, static_cast<std::int64_t>(row), static_cast<std::int64_t>(count));
    checkpoint_.release(bytes);
    MESH_RETURN_IF_ERROR(taken);
    if (meter_.stopped()) return meter_.cancelled();
  }
  return finished(source);
}

template <class Take>
Status PartReader::whole(const TensorSource& source, const Take& take) const {
  MESH_ASSIGN_OR_RETURN(const std::string_view bytes, checkpoint_.tensor(catalogue_.disk_name(source)));
  const Status taken = take(bytes);
  checkpoint_.release(bytes);
  MESH_RETURN_IF_ERROR(taken);
  return finished(source);
}

template <class Loader>
StatusOr<LinearPtr> PartReader::with_bias(const MatrixPlan& plan, Loader& loader) const {
  std::int64_t first = 0;
  for (const TensorSource& source : plan.biases) {
    MESH_ASSIGN_OR_RETURN(const std::vector<float> bias, values(source));
    MESH_RETURN_IF_ERROR(loader.set_bias(first, bias));
    first += static_cast<std::int64_t>(bias.size());
  }
  return loader.finish();
}

std::optional<std::uint64_t> PartReader::made_of(const MatrixPlan& plan) const {
  return checkpoint_.made_of(catalogue_.disk_name(plan.weights[0]));
}

Status PartReader::made(const MatrixPlan& plan) const {
  for (const TensorSource& source : plan.weights) MESH_RETURN_IF_ERROR(finished(source));
  return absl::OkStatus();
}

Status PartReader::append_dense(const MatrixPlan& plan, const TensorSource& source,
                                LinearLoader& loader) const {
  const Element element = catalogue_.element(source);
  if (plan.transposed) {
    const auto outs = static_cast<std::int64_t>(source.shape[1]);
    return whole(source, [&](std::string_view bytes) {
      return loader.append_transposed(bytes.data(), element, outs, outs);
    });
  }
  const auto in = static_cast<std::int64_t>(plan.in);
  const auto row_bytes = static_cast<std::uint64_t>(in * ops::element_size(element));
  return for_each_piece(source, source.shape[0], row_bytes,
                        [&](std::string_view bytes, std::int64_t, std::int64_t rows) {
                          return loader.append_rows(bytes.data(), element, rows, in);
                        });
}

StatusOr<LinearPtr> PartReader::dense_matrix(const MatrixPlan& plan, Element stored) const {
  MESH_ASSIGN_OR_RETURN(const std::unique_ptr<LinearLoader> loader,
                        context_.ops.linear_loader(static_cast<std::int64_t>(plan.out),
                                                   static_cast<std::int64_t>(plan.in), stored));
  bool filled = false;
  if (const auto key = made_of(plan)) {
    MESH_ASSIGN_OR_RETURN(filled, loader->fill_normal(*key, kDeviation));
  }
  if (filled) {
    MESH_RETURN_IF_ERROR(made(plan));
  } else {
    for (const TensorSource& source : plan.weights) MESH_RETURN_IF_ERROR(append_dense(plan, source, *loader));
  }
  return with_bias(plan, *loader);
}

Status PartReader::append_codes(const TensorSource& source, std::uint64_t outs, std::int64_t in,
                                ops::MatrixFormat format, QuantisedLoader& loader) const {
  const StoredTensor& stored = catalogue_.stored(source);
  const auto row_bytes = static_cast<std::uint64_t>(ops::code_bytes(format, in));
  if (stored.quantization == Quantization::kFp8) {
    MESH_ASSIGN_OR_RETURN(const fp8::Scales scales,
                          fp8::read_scales(checkpoint_, stored, outs, static_cast<std::uint64_t>(in)));
    return for_each_piece(source, outs, row_bytes,
                          [&](std::string_view bytes, std::int64_t first, std::int64_t rows) {
                            return append_fp8(bytes, scales, in, first, rows, loader);
                          });
  }
  MESH_ASSIGN_OR_RETURN(const std::vector<float> scales,
                        bitsandbytes::read_scales(checkpoint_, stored, outs, static_cast<std::uint64_t>(in)));
  return for_each_piece(source, outs, row_bytes,
                        [&](std::string_view bytes, std::int64_t first, std::int64_t rows) {
                          return append_stored(format, bytes, scales, in, first, rows, loader);
                        });
}

Status PartReader::append_quantised(const MatrixPlan& plan, const TensorSource& source,
                                    ops::MatrixFormat format, QuantisedLoader& loader) const {
  const auto in = static_cast<std::int64_t>(plan.in);
  const StoredTensor& stored = catalogue_.stored(source);
  const std::uint64_t outs = source.shape[plan.transposed ? 1 : 0];
  if (stored.quantization != Quantization::kNone) return append_codes(source, outs, in, format, loader);
  if (plan.transposed) {
    return whole(source, [&](std::string_view bytes) {
      return quantise_transposed(format, bytes, stored.element, static_cast<std::int64_t>(outs), in, loader);
    });
  }
  const auto row_bytes = static_cast<std::uint64_t>(in * ops::element_size(stored.element));
  return for_each_piece(source, outs, row_bytes,
                        [&](std::string_view bytes, std::int64_t, std::int64_t rows) {
                          return quantise_rows(format, bytes, stored.element, rows, in, loader);
                        });
}

StatusOr<LinearPtr> PartReader::quantised_matrix(const MatrixPlan& plan, ops::MatrixFormat format) const {
  MESH_ASSIGN_OR_RETURN(const std::unique_ptr<QuantisedLoader> loader,
                        context_.ops.quantised_loader(static_cast<std::int64_t>(plan.out),
                                                      static_cast<std::int64_t>(plan.in), format));
  bool filled = false;
  if (const auto key = made_of(plan)) {
    MESH_ASSIGN_OR_RETURN(filled, loader->fill_random(*key));
  }
  if (filled) {
    MESH_RETURN_IF_ERROR(made(plan));
  } else {
    for (const TensorSource& source : plan.weights) {
      const Status status = append_quantised(plan, source, format, *loader);
      if (!status.ok()) return with_context(status, catalogue_.disk_name(source));
    }
  }
  return with_bias(plan, *loader);
}

StatusOr<LinearPtr> PartReader::matrix(const MatrixPlan& plan, MatrixUse use) const {
  MESH_ASSIGN_OR_RETURN(const ops::MatrixFormat format, memory_format(catalogue_, plan, precision_, use));
  if (ops::is_quantised(format)) return quantised_matrix(plan, format);
  return dense_matrix(plan, format == ops::MatrixFormat::kBf16 ? Element::kBf16 : Element::kF32);
}

}  // namespace mesh::engine
