#include "node/engine/cuda/kernels/codes.cuh"
#include "node/engine/cuda/kernels/launch.cuh"

// Products of a quantised matrix with 3 to 64 rows on tensor cores. A block has 16 · kM outputs and all rows;
// its warps share out the inputs, 64 at a time, and add up in the end. A lane reads 16 codes that lie side by
// side of each output, and the same 16 inputs of each row: which of the product's 16 inner indices a value
// takes does not matter as long as both operands agree. Codes enter as bfloat16, scales in float32 after
// every 64.
namespace mesh::engine::cuda {
namespace {

constexpr int kWarps = 8, kInputs = 64;  // of a step of one warp

__device__ inline std::uint32_t as_bfloat16(half2 pair) {
  const float2 both = __half22float2(pair);
  return narrow(both.x, both.y);
}

/// Sixteen codes of one output as eight pairs of bfloat16.
template <MatrixFormat kFormat>
struct Sixteen {
  static constexpr int kBytes = kFormat == MatrixFormat::kNf4 ? 8 : 16;
  std::uint32_t words[kBytes / 4];

  __device__ void read(const std::uint8_t* from) {
    if constexpr (kBytes == 16) {
      const uint4 value = read_once(from);
      words[0] = value.x, words[1] = value.y, words[2] = value.z, words[3] = value.w;
    } else {
      const uint2 value = __ldg(reinterpret_cast<const uint2*>(from));
      words[0] = value.x, words[1] = value.y;
    }
  }
  __device__ void decode(const Codes<kFormat>& format, std::uint32_t (&pairs)[8]) const {
    constexpr int kPairs = Codes<kFormat>::kWeights / 8;
#pragma unroll
    for (int i = 0; i < kBytes / 4; ++i) {
      half2 decoded[kPairs];
      format.decode(words[i], decoded);
#pragma unroll
      for (int k = 0; k < kPairs; ++k) pairs[i * kPairs + k] = as_bfloat16(decoded[k]);
    }
  }
};

template <MatrixFormat kFormat, int kM, int kN>
__global__ void __launch_bounds__(kWarps * 32)
    multiply_codes(const CodedMatrix any, const Bf* x, int rows, void* y, bool to_bfloat16) {
  extern __shared__ uint4 shared[];
  using Format = Codes<kFormat>;
  const CodedMatrix matrix = known<kFormat>(any);
  std::byte* const table = reinterpret_cast<std::byte*>(shared);
  const Format format(table);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int member = lane % 4, which = lane / 4;
  const int first_out = static_cast<int>(blockIdx.x) * 16 * kM;
  Sixteen<kFormat> codes[kM][2];
  float scales[kM][2];
  const auto load = [&](int step) {
    const int first = step * kInputs;
    if (first >= matrix.in) return;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        const std::int64_t out = min(first_out + m * 16 + upper * 8 + which, matrix.out - 1);
        const std::uint8_t* row = row_of(matrix, out);
        codes[m][upper].read(row + matrix.code_at(first + member * 16));
        scales[m][upper] = scale_of(matrix, row, first) * Format::kUnit;
      }
    }
  };
  load(warp);
  Format::fill_table(table);
  let_next_launch_begin();
  wait_for_previous_launch();
  __syncthreads();

  float sums[kM][kN][4] = {};
  for (int step = warp; step * kInputs < matrix.in; step += kWarps) {
    std::uint32_t weights[kM][2][8];
    float scale[kM][2];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        codes[m][upper].decode(format, weights[m][upper]);
        scale[m][upper] = scales[m][upper];
      }
    }
    load(step + kWarps);
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const int row = n * 8 + which;
      uint4 low = make_uint4(0, 0, 0, 0), high = low;
      if (row < rows) {
        const auto* from =
            reinterpret_cast<const uint4*>(x + std::int64_t{row} * matrix.in + step * kInputs + member * 16);
        low = __ldcg(from), high = __ldcg(from + 1);
      }
      const std::uint32_t inputs[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        float part[4] = {};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          multiply(part, weights[m][0][2 * k], weights[m][1][2 * k], weights[m][0][2 * k + 1],
                   weights[m][1][2 * k + 1], inputs[2 * k], inputs[2 * k + 1]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[m][n][i] += part[i] * scale[m][i / 2];
      }
    }
  }

  // [warp][row][output]; the table is no longer needed.
  constexpr int kTile = 16 * kM * 8 * kN;
  float* const parts = reinterpret_cast<float*>(shared);
  __syncthreads();
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = n * 8 + member * 2 + i % 2, out = m * 16 + i / 2 * 8 + which;
        parts[warp * kTile + row * 16 * kM + out] = sums[m][n][i];
      }
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kTile; i += kWarps * 32) {
    const int row = i / (16 * kM), out = first_out + i % (16 * kM);
    if (row >= rows || out >= matrix.out) continue;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += parts[w * kTile + i];
    const std::int64_t at = std::int64_t{row} * matrix.out + out;
    if (to_bfloat16) {
      static_cast<Bf*>(y)[at] = __float2bfloat16(sum);
    } else {
      static_cast<float*>(y)[at] = sum;
    }
  }
}

template <MatrixFormat kFormat, int kM, int kN>
cudaError_t launch_tile(const Launch& launch, const CodedMatrix& matrix, const void* x, int rows, void* y,
                        bool to_bfloat16) {
  constexpr std::size_t kParts = std::size_t{kWarps} * 16 * kM * 8 * kN * sizeof(float);
  constexpr std::size_t kTable = Codes<kFormat>::kTableBytes;
  const dim3 grid(static_cast<unsigned>((matrix.out + 16 * kM - 1) / (16 * kM)));
  return enqueue(launch, multiply_codes<kFormat, kM, kN>, grid, kWarps * 32, std::max(kParts, kTable), matrix,
                 static_cast<const Bf*>(x), rows, y, to_bfloat16);
}

template <MatrixFormat kFormat>
cudaError_t launch_rows(const Launch& launch, const CodedMatrix& matrix, const void* x, int rows, void* y,
                        bool to_bfloat16) {
  if (rows <= 8) return launch_tile<kFormat, 2, 1>(launch, matrix, x, rows, y, to_bfloat16);
  if (rows <= 16) return launch_tile<kFormat, 2, 2>(launch, matrix, x, rows, y, to_bfloat16);
  if (rows <= 32) return launch_tile<kFormat, 2, 4>(launch, matrix, x, rows, y, to_bfloat16);
  return launch_tile<kFormat, 2, 8>(launch, matrix, x, rows, y, to_bfloat16);
}

}  // namespace

cudaError_t tile_codes(const Launch& launch, const CodedMatrix& matrix, const void* x, int rows, void* y,
                       bool to_bfloat16) {
  if (rows < 1 || rows > kCodedRows || matrix.in % kInputs != 0 || matrix.group % kInputs != 0)
    return cudaErrorInvalidValue;
  switch (matrix.format) {
    case MatrixFormat::kInt8:
      return launch_rows<MatrixFormat::kInt8>(launch, matrix, x, rows, y, to_bfloat16);
    case MatrixFormat::kNf4:
      return launch_rows<MatrixFormat::kNf4>(launch, matrix, x, rows, y, to_bfloat16);
    case MatrixFormat::kFp8:
      return launch_rows<MatrixFormat::kFp8>(launch, matrix, x, rows, y, to_bfloat16);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace mesh::engine::cuda
