#include "node/engine/weights/matrix_reader.h"

#include <algorithm>

#include "common/hub/checkpoint.h"
#include "node/engine/ops/quantise.h"
#include "node/engine/weights/bitsandbytes.h"
#include "node/engine/weights/quantised_rows.h"

namespace mesh::engine {
namespace {

constexpr float kDeviation = 0.02f;  // of made-up weights

}  // namespace

MatrixReader::MatrixReader(const PartReader& reader, const MatrixPlan& plan, MatrixUse use)
    : reader_(reader),
      plan_(plan),
      format_(memory_format(reader.catalogue(), plan, reader.precision(), use)),
      made_of_(reader.checkpoint().made_of(reader.catalogue().disk_name(plan.weights[0]))) {
  std::int64_t first = 0;
  for (const TensorSource& tensor : plan.weights) {
    add_source(tensor, first);
    first += sources_.back()->rows;
  }
  left_ = pieces();
}

const StoredTensor& MatrixReader::stored(const Source& source) const {
  return reader_.catalogue().stored(*source.tensor);
}

void MatrixReader::add_source(const TensorSource& tensor, std::int64_t first) {
  auto source = std::make_unique<Source>();
  source->tensor = &tensor;
  source->first = first;
  source->rows = static_cast<std::int64_t>(tensor.shape[plan_.transposed ? 1 : 0]);
  const auto in = static_cast<std::int64_t>(plan_.in);
  const StoredTensor& on_disk = stored(*source);
  source->row_bytes = static_cast<std::uint64_t>(on_disk.quantization == Quantization::kNone
                                                     ? in * ops::element_size(on_disk.element)
                                                     : ops::code_bytes(format_of(on_disk.quantization), in));
  // Rows of a transposed tensor lie scattered over all of it; codes are never stored so.
  const bool scattered = plan_.transposed && on_disk.quantization == Quantization::kNone;
  const auto step = scattered ? source->rows
                              : static_cast<std::int64_t>(std::max<std::uint64_t>(
                                    1, kReadSlice / std::max<std::uint64_t>(1, source->row_bytes)));
  for (std::int64_t row = 0; row < source->rows; row += step)
    pieces_.push_back({source.get(), row, std::min(step, source->rows - row)});
  sources_.push_back(std::move(source));
}

StatusOr<LinearPtr> MatrixReader::run(std::size_t piece) {
  MESH_RETURN_IF_ERROR(format_.status());
  std::call_once(begun_, [&] { begin_status_ = make_loader(); });
  MESH_RETURN_IF_ERROR(begin_status_);
  MESH_RETURN_IF_ERROR(made_of_ ? fill_whole(*made_of_) : fill(pieces_[piece]));
  if (--left_ != 0) return LinearPtr();
  return finish();
}

Status MatrixReader::make_loader() {
  DeviceOps& ops = reader_.context().ops;
  const auto out = static_cast<std::int64_t>(plan_.out), in = static_cast<std::int64_t>(plan_.in);
  if (ops::is_quantised(*format_)) {
    MESH_ASSIGN_OR_RETURN(quantised_, ops.quantised_loader(out, in, *format_));
  } else {
    const Element element = *format_ == ops::MatrixFormat::kBf16 ? Element::kBf16 : Element::kF32;
    MESH_ASSIGN_OR_RETURN(dense_, ops.linear_loader(out, in, element));
  }
  return absl::OkStatus();
}

Status MatrixReader::fill_whole(std::uint64_t key) {
  bool filled = false;
  if (dense_) {
    MESH_ASSIGN_OR_RETURN(filled, dense_->fill_normal(key, kDeviation));
  } else {
    MESH_ASSIGN_OR_RETURN(filled, quantised_->fill_random(key));
  }
  for (const Piece& piece : pieces_) {
    MESH_RETURN_IF_ERROR(
        filled ? reader_.finished(static_cast<std::uint64_t>(piece.rows) * piece.source->row_bytes)
               : fill(piece));
  }
  return absl::OkStatus();
}

Status MatrixReader::fill(const Piece& piece) {
  const std::string name = reader_.catalogue().disk_name(*piece.source->tensor);
  const std::uint64_t begin = static_cast<std::uint64_t>(piece.row) * piece.source->row_bytes;
  const std::uint64_t length = static_cast<std::uint64_t>(piece.rows) * piece.source->row_bytes;
  const PartReader::Memory memory = reader_.piece_memory();
  MESH_ASSIGN_OR_RETURN(const std::string_view bytes,
                        reader_.checkpoint().read(name, begin, length, memory->bytes));
  const Status status = put(piece, bytes, memory->rows);
  reader_.checkpoint().release(bytes);
  if (!status.ok()) return dense_ ? status : with_context(status, name);
  return reader_.finished(length);
}

Status MatrixReader::put(const Piece& piece, std::string_view bytes, RowScratch& scratch) {
  const Source& source = *piece.source;
  const StoredTensor& on_disk = stored(source);
  const std::int64_t to = source.first + piece.row, in = static_cast<std::int64_t>(plan_.in);
  if (dense_) {
    return plan_.transposed
               ? dense_->put_transposed(to, bytes.data(), on_disk.element, piece.rows, piece.rows)
               : dense_->put_rows(to, bytes.data(), on_disk.element, piece.rows, in);
  }
  if (on_disk.quantization != Quantization::kNone) return put_stored(piece, bytes, scratch);
  const auto quantise = plan_.transposed ? quantise_transposed : quantise_rows;
  return quantise(*format_, bytes, on_disk.element, piece.rows, in, {*quantised_, to, scratch});
}

Status MatrixReader::put_stored(const Piece& piece, std::string_view bytes, RowScratch& scratch) {
  Source& source = *piece.source;
  std::call_once(source.scales_read, [&] { source.scales_status = read_scales(source); });
  MESH_RETURN_IF_ERROR(source.scales_status);
  const QuantisedRows to{*quantised_, source.first + piece.row, scratch};
  const auto in = static_cast<std::int64_t>(plan_.in);
  if (stored(source).quantization == Quantization::kFp8)
    return put_fp8(bytes, source.fp8_scales, in, piece.row, piece.rows, to);
  return engine::put_stored(*format_, bytes, source.scales, in, piece.row, piece.rows, to);
}

Status MatrixReader::read_scales(Source& source) const {
  hub::Checkpoint& checkpoint = reader_.checkpoint();
  const auto outs = static_cast<std::uint64_t>(source.rows);
  if (stored(source).quantization == Quantization::kFp8) {
    MESH_ASSIGN_OR_RETURN(source.fp8_scales, fp8::read_scales(checkpoint, stored(source), outs, plan_.in));
  } else {
    MESH_ASSIGN_OR_RETURN(source.scales,
                          bitsandbytes::read_scales(checkpoint, stored(source), outs, plan_.in));
  }
  // They count with the tensor.
  return reader_.finished(stored(source).bytes - outs * source.row_bytes);
}

StatusOr<LinearPtr> MatrixReader::finish() {
  std::int64_t first = 0;
  for (const TensorSource& source : plan_.biases) {
    MESH_ASSIGN_OR_RETURN(const std::vector<float> bias, reader_.values(source));
    MESH_RETURN_IF_ERROR(dense_ ? dense_->set_bias(first, bias) : quantised_->set_bias(first, bias));
    first += static_cast<std::int64_t>(bias.size());
  }
  return dense_ ? dense_->finish() : quantised_->finish();
}

}  // namespace mesh::engine
