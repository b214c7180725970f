#pragma once

#include <string_view>
#include <vector>

#include "node/engine/device/device_ops.h"
#include "node/engine/weights/fp8.h"

namespace mesh::engine {

/// Rows of a transposed matrix that are turned and quantised together.
inline constexpr std::int64_t kQuantisedRows = 32;

/// Quantises [rows, in] values and appends them. kInvalidArgument for a weight that is not finite (INT8: in
/// half precision).
Status quantise_rows(ops::MatrixFormat format, std::string_view bytes, Element element, std::int64_t rows,
                     std::int64_t in, QuantisedLoader& loader);
/// The same of a matrix that lies [in, outs].
Status quantise_transposed(ops::MatrixFormat format, std::string_view bytes, Element element,
                           std::int64_t outs, std::int64_t in, QuantisedLoader& loader);
/// Appends rows [first, first + rows), whose codes are `bytes`, of a matrix with these scales as bitsandbytes
/// has them: one a row (kInt8), or one for each 64 of the flattened matrix (kNf4).
Status append_stored(ops::MatrixFormat format, std::string_view bytes, const std::vector<float>& scales,
                     std::int64_t in, std::int64_t first, std::int64_t rows, QuantisedLoader& loader);

/// The same of FP8 rows. kInvalidArgument for a code that is not a number.
Status append_fp8(std::string_view bytes, const fp8::Scales& scales, std::int64_t in, std::int64_t first,
                  std::int64_t rows, QuantisedLoader& loader);

}  // namespace mesh::engine
