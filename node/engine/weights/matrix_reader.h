#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "node/engine/weights/fp8.h"
#include "node/engine/weights/part_reader.h"

namespace mesh::engine {

/// One matrix of a load, made by several threads: its sources come in pieces of whole rows, and whoever takes
/// a piece reads it, packs it and puts it in its place. Whoever ends the last one finishes the matrix.
class MatrixReader {
 public:
  /// Reader and plan outlive it. Every tensor of the plan has passed check().
  MatrixReader(const PartReader& reader, const MatrixPlan& plan, MatrixUse use);
  MatrixReader(const MatrixReader&) = delete;

  std::size_t pieces() const { return made_of_ ? 1 : pieces_.size(); }
  /// Any thread, each piece once. The matrix with the last piece, before that null.
  StatusOr<LinearPtr> run(std::size_t piece);

 private:
  struct Source {
    const TensorSource* tensor;
    std::int64_t first = 0;  ///< row of the matrix
    std::int64_t rows = 0;
    std::uint64_t row_bytes = 0;  ///< on disk
    // Of what is stored quantised, read with its first piece.
    std::once_flag scales_read;
    Status scales_status;
    std::vector<float> scales;  ///< bitsandbytes'
    fp8::Scales fp8_scales;
  };
  struct Piece {
    Source* source;
    std::int64_t row = 0, rows = 0;  ///< of the source
  };

  void add_source(const TensorSource& tensor, std::int64_t first);
  const StoredTensor& stored(const Source& source) const;
  Status make_loader();
  Status fill(const Piece& piece);
  /// Puts the piece's bytes into the matrix.
  Status put(const Piece& piece, std::string_view bytes, RowScratch& scratch);
  Status put_stored(const Piece& piece, std::string_view bytes, RowScratch& scratch);
  Status read_scales(Source& source) const;
  /// Lets the device make a matrix of made-up weights with this key, else makes it piece by piece.
  Status fill_whole(std::uint64_t key);
  StatusOr<LinearPtr> finish();

  const PartReader& reader_;
  const MatrixPlan& plan_;
  const StatusOr<ops::MatrixFormat> format_;
  std::vector<std::unique_ptr<Source>> sources_;
  std::vector<Piece> pieces_;
  /// The key of a matrix of made-up weights, which one thread makes.
  const std::optional<std::uint64_t> made_of_;
  std::once_flag begun_;
  Status begin_status_;
  std::unique_ptr<LinearLoader> dense_;  ///< one of the two
  std::unique_ptr<QuantisedLoader> quantised_;
  std::atomic<std::size_t> left_;
};

}  // namespace mesh::engine
