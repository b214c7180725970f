#include "node/engine/weights/part_reader.h"

#include <algorithm>

#include "common/hub/checkpoint.h"
#include "node/engine/ops/elementwise.h"

namespace mesh::engine {

Element stored_element(const TensorCatalogue& catalogue, const MatrixPlan& plan, WeightFormat compute) {
  if (compute == WeightFormat::kBfloat16) return Element::kBf16;
  const bool narrow = std::ranges::all_of(
      plan.weights, [&](const TensorSource& source) { return catalogue.element(source) == Element::kBf16; });
  return narrow ? Element::kBf16 : Element::kF32;
}

std::uint64_t packed_bytes(const TensorCatalogue& catalogue, const MatrixPlan& plan, WeightFormat compute) {
  constexpr auto kPanel = static_cast<std::uint64_t>(ops::PackedLinear::kPanel);
  const auto size = static_cast<std::uint64_t>(ops::element_size(stored_element(catalogue, plan, compute)));
  const std::uint64_t padded = (plan.out + kPanel - 1) / kPanel * kPanel;
  return padded * plan.in * size + (plan.biases.empty() ? 0 : padded * sizeof(float));
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

Status PartReader::read_rows(const TensorSource& source, std::int64_t in, LinearLoader& loader) {
  const Element element = catalogue_.element(source);
  const std::uint64_t row_bytes = static_cast<std::uint64_t>(in * ops::element_size(element));
  const std::uint64_t step = std::max<std::uint64_t>(1, kReadSlice / row_bytes);
  for (std::uint64_t row = 0; row < source.shape[0]; row += step) {
    const std::uint64_t rows = std::min(step, source.shape[0] - row);
    MESH_ASSIGN_OR_RETURN(const std::string_view bytes,
                          checkpoint_.slice(catalogue_.disk_name(source), row * row_bytes, rows * row_bytes));
    MESH_RETURN_IF_ERROR(loader.append_rows(bytes.data(), element, static_cast<std::int64_t>(rows), in));
    checkpoint_.release(bytes);
  }
  return finished(source);
}

Status PartReader::read_transposed(const TensorSource& source, LinearLoader& loader) {
  const auto outs = static_cast<std::int64_t>(source.shape[1]);
  MESH_ASSIGN_OR_RETURN(const std::string_view bytes, checkpoint_.tensor(catalogue_.disk_name(source)));
  MESH_RETURN_IF_ERROR(loader.append_transposed(bytes.data(), catalogue_.element(source), outs, outs));
  checkpoint_.release(bytes);
  return finished(source);
}

StatusOr<LinearPtr> PartReader::matrix(const MatrixPlan& plan) {
  const auto in = static_cast<std::int64_t>(plan.in);
  MESH_ASSIGN_OR_RETURN(const std::unique_ptr<LinearLoader> loader,
                        context_.ops.linear_loader(static_cast<std::int64_t>(plan.out), in,
                                                   stored_element(catalogue_, plan, context_.compute)));
  for (const TensorSource& source : plan.weights) {
    MESH_RETURN_IF_ERROR(plan.transposed ? read_transposed(source, *loader) : read_rows(source, in, *loader));
  }
  std::int64_t first = 0;
  for (const TensorSource& source : plan.biases) {
    MESH_ASSIGN_OR_RETURN(const std::vector<float> bias, values(source));
    MESH_RETURN_IF_ERROR(loader->set_bias(first, bias));
    first += static_cast<std::int64_t>(bias.size());
  }
  return loader->finish();
}

}  // namespace mesh::engine
