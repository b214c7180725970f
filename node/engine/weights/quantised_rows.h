#pragma once

#include <string_view>
#include <vector>

#include "common/safetensors/read_buffer.h"
#include "node/engine/device/device_ops.h"
#include "node/engine/weights/fp8.h"

namespace mesh::engine {

/// Rows of a transposed matrix that are turned and quantised together.
inline constexpr std::int64_t kQuantisedRows = 32;

/// Memory for rows on their way; one thread's, used again for the next piece.
struct RowScratch {
  safetensors::ReadBuffer values, scales, codes;
};
/// Where rows of codes go: row `first` of a matrix, and those behind it.
struct QuantisedRows {
  QuantisedLoader& loader;
  std::int64_t first = 0;
  RowScratch& scratch;
};

/// Quantises [rows, in] values and puts them there. kInvalidArgument for a weight that is not finite (INT8:
/// in half precision).
Status quantise_rows(ops::MatrixFormat format, std::string_view bytes, Element element, std::int64_t rows,
                     std::int64_t in, const QuantisedRows& to);
/// The same of a matrix that lies [in, outs].
Status quantise_transposed(ops::MatrixFormat format, std::string_view bytes, Element element,
                           std::int64_t outs, std::int64_t in, const QuantisedRows& to);
/// Puts rows [first, first + rows) of a stored matrix there, whose codes are `bytes`, with scales as
/// bitsandbytes has them: one a row (kInt8), or one for each 64 of the flattened matrix (kNf4).
Status put_stored(ops::MatrixFormat format, std::string_view bytes, const std::vector<float>& scales,
                  std::int64_t in, std::int64_t first, std::int64_t rows, const QuantisedRows& to);
/// The same of FP8 rows. kInvalidArgument for a code that is not a number.
Status put_fp8(std::string_view bytes, const fp8::Scales& scales, std::int64_t in, std::int64_t first,
               std::int64_t rows, const QuantisedRows& to);

}  // namespace mesh::engine
