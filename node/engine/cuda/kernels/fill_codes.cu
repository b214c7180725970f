#include "node/engine/cuda/kernels/codes.cuh"
#include "node/engine/cuda/kernels/normal_pair.cuh"

// Made-up codes and scales, byte by byte of the GPU's layout.
namespace mesh::engine::cuda {
namespace {

/// Where a byte of a row of the layout belongs.
struct BytePlace {
  int code = -1;   ///< byte of the row's codes
  int scale = -1;  ///< scale of the row
  int byte = 0;    ///< of that scale
};

__device__ BytePlace place_of(const CodedMatrix& matrix, int at) {
  if (at < matrix.scales_at()) {
    return at < static_cast<int>(ops::code_bytes(matrix.format, matrix.in)) ? BytePlace{at, -1, 0}
                                                                            : BytePlace{};
  }
  const int inside = at - matrix.scales_at();
  return inside < matrix.scale_bytes(matrix.in) ? BytePlace{-1, inside / 4, inside % 4} : BytePlace{};
}

__device__ std::uint8_t byte_of(float value, int byte) {
  return static_cast<std::uint8_t>(__float_as_uint(value) >> (8 * byte));
}

/// A code of a normal value under a scale of 4 deviations; kNf4: two, of which all are about as likely.
__device__ std::uint8_t normal_code(MatrixFormat format, float2 pair) {
  const auto nibble = [](float value) { return static_cast<unsigned>(min(normcdff(value) * 16, 15.0f)); };
  if (format == MatrixFormat::kNf4) return static_cast<std::uint8_t>(nibble(pair.x) << 4 | nibble(pair.y));
  if (format == MatrixFormat::kInt8) {
    const float code = min(max(rintf(pair.x * (127.0f / 4)), -127.0f), 127.0f);
    return static_cast<std::uint8_t>(static_cast<std::int8_t>(code));
  }
  // E4M3: the exponent and three bits of the float's mantissa.
  const std::uint32_t bits = __float_as_uint(min(max(pair.x * 112, -448.0f), 448.0f));
  const int exponent = static_cast<int>(bits >> 23 & 255) - 127 + 7;
  const std::uint32_t size = exponent <= 0 ? 0 : static_cast<std::uint32_t>(exponent) << 3 | (bits >> 20 & 7);
  return static_cast<std::uint8_t>(bits >> 31 << 7 | size);
}

__global__ void random_rows(const CodedMatrix matrix, std::uint64_t seed, float deviation) {
  const std::int64_t code_bytes = ops::code_bytes(matrix.format, matrix.in);
  float scale = deviation * 4;
  if (matrix.format == MatrixFormat::kFp8) scale = deviation * 4 / ops::kFp8Largest;
  if (matrix.format == MatrixFormat::kNf4) scale = deviation / 0.517f;  // the quantiles' own deviation
  const std::int64_t bytes = matrix.row_bytes(), all = bytes * matrix.out;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < all; i += step) {
    const std::int64_t row = i / bytes;
    const BytePlace place = place_of(matrix, static_cast<int>(i % bytes));
    std::uint8_t value = 0;
    if (place.code >= 0) {
      value = normal_code(matrix.format,
                          normal_pair(seed, static_cast<std::uint64_t>(row * code_bytes + place.code)));
    }
    if (place.scale >= 0) value = byte_of(scale, place.byte);
    static_cast<std::uint8_t*>(matrix.rows)[i] = value;
  }
}

}  // namespace

cudaError_t fill_codes(cudaStream_t stream, const CodedMatrix& matrix, std::uint64_t seed, float deviation) {
  random_rows<<<4096, 256, 0, stream>>>(matrix, seed, deviation);
  return cudaGetLastError();
}

}  // namespace mesh::engine::cuda
