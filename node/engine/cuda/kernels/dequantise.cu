#include "node/engine/cuda/kernels/codes.cuh"
#include "node/engine/cuda/kernels/launch.cuh"

// Codes to weights, rounded as ops::dequantise_row does; a thread has kEach of a row.
namespace mesh::engine::cuda {
namespace {

constexpr int kThreads = 256;

template <MatrixFormat kFormat, int kEach, class Value>
__global__ void write_weights(const CodedMatrix any, const int* rows, Value* to) {
  const CodedMatrix matrix = known<kFormat>(any);
  __shared__ float quantiles[16];
  if (threadIdx.x < 16) quantiles[threadIdx.x] = kQuantiles[threadIdx.x];
  __syncthreads();
  wait_for_previous_launch();
  let_next_launch_begin();
  const int first = (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) * kEach;
  if (first >= matrix.in) return;
  const std::int64_t to_row = blockIdx.y;
  const std::int64_t row = rows != nullptr ? rows[to_row] : to_row;
  const std::uint8_t* from = row_of(matrix, row);
  const std::uint8_t* codes = from + matrix.code_at(first);
  const float scale = scale_of(matrix, from, first);
  alignas(16) std::uint8_t bytes[8];
  alignas(16) Value values[kEach];
  if constexpr (kEach == 8) {
    if constexpr (kFormat == MatrixFormat::kNf4) {
      *reinterpret_cast<std::uint32_t*>(bytes) = __ldg(reinterpret_cast<const unsigned*>(codes));
    } else {
      *reinterpret_cast<uint2*>(bytes) = __ldg(reinterpret_cast<const uint2*>(codes));
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = static_cast<Value>(weight_of<kFormat>(bytes, scale, i, quantiles));
    constexpr int kWords = static_cast<int>(sizeof(values) / 16);
    auto* out = reinterpret_cast<uint4*>(to + to_row * matrix.in + first);
#pragma unroll
    for (int i = 0; i < kWords; ++i) out[i] = reinterpret_cast<const uint4*>(values)[i];
  } else {
    to[to_row * matrix.in + first] =
        static_cast<Value>(weight_of<kFormat>(codes, scale, kFormat == MatrixFormat::kNf4 ? first % 2 : 0));
  }
}

template <MatrixFormat kFormat, class Value>
cudaError_t launch_weights(const Launch& launch, const CodedMatrix& matrix, const int* rows, int count,
                           Value* to) {
  const bool eights = matrix.in % 8 == 0 && matrix.group % 8 == 0;
  const int threads = matrix.in / (eights ? 8 : 1);
  // The y dimension of a grid ends at 65,535.
  constexpr int kMost = 32768;
  for (int first = 0; first < count; first += kMost) {
    CodedMatrix part = matrix;
    if (rows == nullptr) {
      part.rows = static_cast<std::byte*>(matrix.rows) + std::int64_t{first} * matrix.row_bytes();
    }
    const dim3 grid(static_cast<unsigned>((threads + kThreads - 1) / kThreads),
                    static_cast<unsigned>(std::min(kMost, count - first)));
    const auto kernel = eights ? write_weights<kFormat, 8, Value> : write_weights<kFormat, 1, Value>;
    const cudaError_t error =
        enqueue(launch, kernel, grid, kThreads, 0, part, rows == nullptr ? nullptr : rows + first,
                to + std::int64_t{first} * matrix.in);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

template <class Value>
cudaError_t launch_format(const Launch& launch, const CodedMatrix& matrix, const int* rows, int count,
                          Value* to) {
  switch (matrix.format) {
    case MatrixFormat::kInt8:
      return launch_weights<MatrixFormat::kInt8>(launch, matrix, rows, count, to);
    case MatrixFormat::kNf4:
      return launch_weights<MatrixFormat::kNf4>(launch, matrix, rows, count, to);
    case MatrixFormat::kFp8:
      return launch_weights<MatrixFormat::kFp8>(launch, matrix, rows, count, to);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t dequantise(const Launch& launch, const CodedMatrix& matrix, const int* rows, int count, void* to,
                       bool to_bfloat16) {
  if (count == 0) return cudaSuccess;
  if (to_bfloat16) return launch_format(launch, matrix, rows, count, static_cast<Bf*>(to));
  return launch_format(launch, matrix, rows, count, static_cast<float*>(to));
}

}  // namespace mesh::engine::cuda
