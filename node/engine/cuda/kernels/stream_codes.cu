#include "node/engine/cuda/kernels/codes.cuh"
#include "node/engine/cuda/kernels/copies.cuh"
#include "node/engine/cuda/kernels/launch.cuh"
#include "node/engine/cuda/kernels/staging_halves.cuh"
#include "node/engine/cuda/kernels/stream_store.cuh"

// Products of a quantised matrix with one or two rows. A warp takes two outputs at a time, so that an input
// is read from shared memory once for both; products are added in halves by eights, those sums in float32.
// Codes come through a ring of each warp in shared memory, so that no warp waits for another. A block takes
// at most half of a multiprocessor: while one launch ends, the blocks of the next one fill their rings.
namespace mesh::engine::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kOutputs = 2;  // of a warp

/// kRuns runs of codes of each of a warp's outputs, with their scales.
template <MatrixFormat kFormat>
struct Slot {
  static constexpr bool kScalePerRow = kFormat == MatrixFormat::kInt8;
  static constexpr int kScales = kScalePerRow ? 4 : kFormat == MatrixFormat::kNf4 ? 16 : 8;  // at most
  static constexpr int kRuns = kFormat == MatrixFormat::kNf4 ? 1 : 2;
  static constexpr int kSlots = 3;  // of a warp's ring

  uint4 codes[kRuns][kOutputs][32];
  float scales[kRuns][kOutputs][kScales];
};

template <MatrixFormat kFormat, int kRows>
struct CodeStream {
  using Format = Codes<kFormat>;
  using Ring = Slot<kFormat>;
  static constexpr bool kScalePerRow = Ring::kScalePerRow;
  static constexpr int kSlots = Ring::kSlots, kRuns = Ring::kRuns;
  static constexpr int kSpan = 32 * Format::kWeights;      // inputs of a run
  static constexpr int kWords = Format::kWeights / 2 / 4;  // pairs of a word of codes

  const StreamLinear& linear;
  const Format& format;
  const half* const x;  // as stage_halves leaves them
  const int x_stride;
  Ring* const ring;  // the warp's
  const bool gated = linear.store == StreamStore::kSiluMul;
  const int half_out = linear.out / 2, tasks = gated ? half_out : (linear.out + 1) / 2;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int runs = (linear.in + kSpan - 1) / kSpan;
  const int stride = static_cast<int>(gridDim.x) * kWarps;
  const CodedMatrix matrix = known<kFormat>(linear.coded);
  const int row_bytes = matrix.row_bytes();
  const int run_scales = kScalePerRow ? 0 : matrix.scale_bytes(kSpan);  // bytes
  const int scale_piece =
      kScalePerRow ? 0 : matrix.code_at(4 * matrix.group);  // bytes of codes of 16 of scales
  const int lane_scale = kScalePerRow ? 0 : lane * Format::kWeights / matrix.group;

  __device__ int output(int task, int which) const {
    return gated ? task + which * half_out : min(2 * task + which, linear.out - 1);
  }

  /// Where the next loads come from and go to.
  struct Source {
    int task, left = 0, slot = 0;         // left: bytes of codes of the task
    int to_scales = 0;                    // bytes from a run to its scales
    const std::byte* pieces[kOutputs]{};  // the lane's of the next run
  };
  __device__ void begin_task(Source& source) const {
    source.left = matrix.code_at(linear.in);
    source.to_scales = matrix.scales_at();
    if (source.task >= tasks) return;
#pragma unroll
    for (int which = 0; which < kOutputs; ++which) {
      source.pieces[which] = static_cast<const std::byte*>(matrix.rows) +
                             std::int64_t{output(source.task, which)} * row_bytes + lane * 16;
    }
  }
  __device__ void load(Source& source) const {
    Ring& to = ring[source.slot];
    if (source.task < tasks) {
#pragma unroll
      for (int run = 0; run < kRuns; ++run) {
        const int left = source.left - run * CodedMatrix::kRunBytes;
        if (run > 0 && left <= 0) break;
        const bool has_scale = kScalePerRow ? lane == 0 && left <= CodedMatrix::kRunBytes
                                            : lane * 16 < run_scales && lane * scale_piece < left;
#pragma unroll
        for (int which = 0; which < kOutputs; ++which) {
          const std::byte* piece = source.pieces[which] + run * CodedMatrix::kRunBytes;
          copy_16(&to.codes[run][which][lane], piece, lane * 16 < left);
          if (has_scale) {
            copy_16(&to.scales[run][which][lane * 4],
                    piece + source.to_scales + run * (run_scales - CodedMatrix::kRunBytes), true);
          }
        }
      }
#pragma unroll
      for (int which = 0; which < kOutputs; ++which) source.pieces[which] += kRuns * CodedMatrix::kRunBytes;
      source.to_scales += kRuns * (run_scales - CodedMatrix::kRunBytes);
    }
    commit_copies();
    if (++source.slot == kSlots) source.slot = 0;
    source.left -= kRuns * CodedMatrix::kRunBytes;
    if (source.left > 0) return;
    source.task += stride;
    begin_task(source);
  }

  /// Adds the products of a run that begins at input `first`.
  __device__ void add_products(int first, const Ring& slot, int run, float (&sums)[kOutputs][kRows]) const {
    const half* inputs = x + first + lane * 8;
    const bool present = first + lane * Format::kWeights < linear.in;  // else there is no scale
    float part[kOutputs][kRows] = {};
    uint4 codes[kOutputs];
#pragma unroll
    for (int which = 0; which < kOutputs; ++which) codes[which] = slot.codes[run][which][lane];
#pragma unroll
    for (int sixteen = 0; sixteen < Format::kWeights / 16; ++sixteen) {
      half2 in[kRows][8];
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
#pragma unroll
        for (int eight = 0; eight < 2; ++eight) {
          *reinterpret_cast<uint4*>(&in[row][eight * 4]) =
              *reinterpret_cast<const uint4*>(inputs + row * x_stride + (sixteen * 2 + eight) * 256);
        }
      }
#pragma unroll
      for (int which = 0; which < kOutputs; ++which) {
        const std::uint32_t words[4] = {codes[which].x, codes[which].y, codes[which].z, codes[which].w};
        half2 sum[kRows];
#pragma unroll
        for (int i = 0; i < 8 / kWords; ++i) {
          half2 weights[kWords];
          format.decode(words[sixteen * (8 / kWords) + i], weights);
#pragma unroll
          for (int pair = 0; pair < kWords; ++pair) {
#pragma unroll
            for (int row = 0; row < kRows; ++row) {
              const half2 input = in[row][i * kWords + pair];
              sum[row] = i == 0 && pair == 0 ? __hmul2(weights[pair], input)
                                             : __hfma2(weights[pair], input, sum[row]);
            }
          }
        }
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
          const float2 both = __half22float2(sum[row]);
          part[which][row] += both.x + both.y;
        }
      }
    }
#pragma unroll
    for (int which = 0; which < kOutputs; ++which) {
      const float scale = kScalePerRow ? 1.0f : present ? slot.scales[run][which][lane_scale] : 0.0f;
#pragma unroll
      for (int row = 0; row < kRows; ++row) sums[which][row] += part[which][row] * scale;
    }
  }

  /// Adds up the lanes' sums, which are left zero, and stores the task's outputs.
  __device__ void finish(int task, const Ring& last, int run, const float (&factor)[kRows],
                         float (&sums)[kOutputs][kRows]) const {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
#pragma unroll
      for (int which = 0; which < kOutputs; ++which) {
        sums[which][row] = sum_over_lanes(sums[which][row]) * factor[row];
        if constexpr (kScalePerRow) sums[which][row] *= last.scales[run][which][0];
      }
      if (lane == row) {
        if (gated) {
          store_gated(linear, row, task, sums[0][row], sums[1][row]);
        } else {
          store_output(linear, row, 2 * task, sums[0][row]);
          if (2 * task + 1 < linear.out) store_output(linear, row, 2 * task + 1, sums[1][row]);
        }
      }
      sums[0][row] = sums[1][row] = 0;
    }
  }
};

template <MatrixFormat kFormat, int kRows>
__global__ void __launch_bounds__(kThreads, 2) stream_code_rows(const StreamLinear linear, int width) {
  using Work = CodeStream<kFormat, kRows>;
  using Format = typename Work::Format;
  using Ring = Slot<kFormat>;
  extern __shared__ uint4 shared[];
  __shared__ float2 partial[kWarps];
  std::byte* const table = reinterpret_cast<std::byte*>(shared);
  Ring* const rings = reinterpret_cast<Ring*>(table + Format::kTableBytes);
  half* const x = reinterpret_cast<half*>(rings + Work::kSlots * kWarps);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const Format format(table);
  const Work work{linear, format, x, width, rings + warp * Work::kSlots};
  const int first_task = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  typename Work::Source source{first_task};
  work.begin_task(source);
#pragma unroll
  for (int i = 0; i < Work::kSlots - 1; ++i) work.load(source);
  let_next_launch_begin();
  Format::fill_table(table);
  const auto weights = norm_weights(linear);
  wait_for_previous_launch();
  float factor[kRows];
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    if (row > 0) __syncthreads();
    factor[row] = Format::kUnit * stage_halves<kThreads, Format::kWeights, Format::kInputExponent>(
                                      linear, weights, x + row * width, row, width, partial);
  }
  __syncthreads();
  float sums[kOutputs][kRows] = {};
  int slot = 0;
  for (int task = first_task; task < work.tasks; task += work.stride) {
    for (int first = 0; first < work.runs; first += Work::kRuns) {
      wait_for_copies<Work::kSlots - 2>();
      __syncwarp();  // scales come by other lanes; all have left the slot that is loaded next
      work.load(source);
#pragma unroll
      for (int run = 0; run < Work::kRuns; ++run) {
        if (run > 0 && first + run >= work.runs) break;
        work.add_products((first + run) * Work::kSpan, work.ring[slot], run, sums);
      }
      if (first + Work::kRuns >= work.runs)
        work.finish(task, work.ring[slot], (work.runs - 1) % Work::kRuns, factor, sums);
      if (++slot == Work::kSlots) slot = 0;
    }
  }
  wait_for_copies<0>();
}

template <MatrixFormat kFormat>
cudaError_t launch_codes(const Launch& launch, const StreamLinear& linear) {
  using Format = Codes<kFormat>;
  constexpr int kSpan = 32 * Format::kWeights;
  if (linear.in % Format::kWeights != 0 || linear.coded.group % Format::kWeights != 0 ||
      (!linear.coded.scale_per_row() && linear.coded.scale_bytes(kSpan) > Slot<kFormat>::kScales * 4))
    return cudaErrorInvalidValue;
  const int width = (linear.in + kSpan - 1) / kSpan * kSpan;
  const std::size_t shared = Format::kTableBytes + sizeof(Slot<kFormat>) * Slot<kFormat>::kSlots * kWarps +
                             static_cast<std::size_t>(linear.rows) * static_cast<std::size_t>(width) * 2;
  const auto kernel = linear.rows == 1 ? stream_code_rows<kFormat, 1> : stream_code_rows<kFormat, 2>;
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100);
  if (error != cudaSuccess) return error;
  return enqueue(launch, kernel, dim3(static_cast<unsigned>(launch.processors)), kThreads, shared, linear,
                 width);
}

}  // namespace

cudaError_t stream_codes(const Launch& launch, const StreamLinear& linear) {
  if (linear.rows < 1 || linear.rows > kStreamRows) return cudaErrorInvalidValue;
  switch (linear.coded.format) {
    case MatrixFormat::kInt8:
      return launch_codes<MatrixFormat::kInt8>(launch, linear);
    case MatrixFormat::kNf4:
      return launch_codes<MatrixFormat::kNf4>(launch, linear);
    case MatrixFormat::kFp8:
      return launch_codes<MatrixFormat::kFp8>(launch, linear);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace mesh::engine::cuda
