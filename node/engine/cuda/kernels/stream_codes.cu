#include "node/engine/cuda/kernels/code_stream.cuh"
#include "node/engine/cuda/kernels/launch.cuh"
#include "node/engine/cuda/kernels/staging_halves.cuh"
#include "node/engine/cuda/kernels/stream_store.cuh"

// Products of a quantised matrix with one or two rows: one block for each multiprocessor. Where a block takes
// no more than half of it, blocks of the next launch fill their rings while this one ends.
namespace mesh::engine::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;

// Slots of a warp's ring, where a block may take as much, and else.
template <MatrixFormat kFormat>
constexpr int kMostSlots = kFormat == MatrixFormat::kNf4 ? 3 : 4;
constexpr int kLeastSlots = 2;
template <MatrixFormat kFormat>
constexpr int kRuns = kFormat == MatrixFormat::kNf4 ? 1 : 2;  // of a slot

template <MatrixFormat kFormat, int kSlots>
struct CodeStream {
  using Slot = CodeSlot<kFormat, kRuns<kFormat>>;

  const StreamLinear& linear;
  Slot* const ring;  // the warp's
  const CodeLayout layout = CodeLayout(known<kFormat>(linear.coded));
  const bool gated = linear.store == StreamStore::kSiluMul;
  const int half_out = linear.out / 2, tasks = gated ? half_out : (linear.out + 1) / 2;
  const int stride = static_cast<int>(gridDim.x) * kWarps;

  struct Source {
    int task, slot = 0;
    CodeCursor cursor;
  };
  __device__ void begin_task(Source& source) const {
    const int first = gated ? source.task : 2 * source.task;
    const int second = gated ? source.task + half_out : min(first + 1, linear.out - 1);
    if (source.task < tasks) source.cursor.begin(layout, linear.coded.rows, {first, second});
  }
  __device__ void load(Source& source) const {
    if (source.task < tasks) {
      source.cursor.load(layout, ring[source.slot]);
      if (source.cursor.left <= 0) source.task += stride, begin_task(source);
    }
    commit_copies();
    if (++source.slot == kSlots) source.slot = 0;
  }

  template <int kRows>
  __device__ void store(int task, const float (&results)[kStreamOutputs][kRows]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (lane != row) continue;
      if (gated) {
        store_gated(linear, row, task, results[0][row], results[1][row]);
      } else {
        store_output(linear, row, 2 * task, results[0][row]);
        if (2 * task + 1 < linear.out) store_output(linear, row, 2 * task + 1, results[1][row]);
      }
    }
  }
};

template <MatrixFormat kFormat, int kRows, int kSlots>
__global__ void __launch_bounds__(kThreads, 2) stream_code_rows(const StreamLinear linear, int width) {
  using Work = CodeStream<kFormat, kSlots>;
  using Products = CodeProducts<kFormat, kRuns<kFormat>, kRows>;
  using Format = Codes<kFormat>;
  using Slot = CodeSlot<kFormat, kRuns<kFormat>>;
  extern __shared__ uint4 shared[];
  __shared__ float2 partial[kWarps];
  std::byte* const table = reinterpret_cast<std::byte*>(shared);
  Slot* const rings = reinterpret_cast<Slot*>(table + Format::kTableBytes);
  std::byte* const x = reinterpret_cast<std::byte*>(rings + kSlots * kWarps);
  float* const units = reinterpret_cast<float*>(x + kRows * width * 2);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const Format format(table);
  const Work work{linear, rings + warp * kSlots};
  const int first_task = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  typename Work::Source source{first_task};
  work.begin_task(source);
#pragma unroll
  for (int i = 0; i < kSlots - 1; ++i) work.load(source);
  let_next_launch_begin();
  Format::fill_table(table);
  const auto weights = norm_weights(linear);
  wait_for_previous_launch();
  float factor[kRows];
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    if (row > 0) __syncthreads();
    std::byte* const to = x + row * width * 2;
    if constexpr (kFormat == MatrixFormat::kInt8) {
      factor[row] =
          stage_integers<kThreads>(linear, weights, to, units + row * (width / kChain), row, width, partial);
    } else {
      factor[row] = stage_halves<kThreads, Format::kWeights, Format::kInputExponent>(
          linear, weights, reinterpret_cast<half*>(to), row, width, partial);
    }
    factor[row] *= Format::kUnit;
  }
  __syncthreads();
  const Products products(format, x, units, width, linear.in, work.layout);
  const int runs = width / Products::kSpan;
  float sums[kStreamOutputs][kRows] = {};
  int slot = 0;
  for (int task = first_task; task < work.tasks; task += work.stride) {
    for (int first = 0; first < runs; first += Slot::kRuns) {
      wait_for_copies<kSlots - 2>();
      __syncwarp();  // scales come by other lanes; all have left the slot that is loaded next
      work.load(source);
#pragma unroll
      for (int run = 0; run < Slot::kRuns; ++run) {
        if (run > 0 && first + run >= runs) break;
        products.add((first + run) * Products::kSpan, work.ring[slot], run, sums);
      }
      if (first + Slot::kRuns >= runs) {
        float results[kStreamOutputs][kRows];
        products.finish(work.ring[slot], factor, sums, results);
        work.store(task, results);
      }
      if (++slot == kSlots) slot = 0;
    }
  }
  wait_for_copies<0>();
}

template <MatrixFormat kFormat>
std::size_t shared_bytes(const StreamLinear& linear, int slots) {
  const auto width = static_cast<std::size_t>(staged_width<kFormat>(linear.in));
  const std::size_t units = kFormat == MatrixFormat::kInt8 ? width / kChain * sizeof(float) : 0;
  return Codes<kFormat>::kTableBytes +
         sizeof(CodeSlot<kFormat, kRuns<kFormat>>) * static_cast<std::size_t>(slots * kWarps) +
         static_cast<std::size_t>(linear.rows) * (width * sizeof(half) + units);
}

template <MatrixFormat kFormat, int kSlots>
cudaError_t launch_slots(const Launch& launch, const StreamLinear& linear) {
  const auto kernel =
      linear.rows == 1 ? stream_code_rows<kFormat, 1, kSlots> : stream_code_rows<kFormat, 2, kSlots>;
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100);
  if (error != cudaSuccess) return error;
  return enqueue(launch, kernel, dim3(static_cast<unsigned>(launch.processors)), kThreads,
                 shared_bytes<kFormat>(linear, kSlots), linear, staged_width<kFormat>(linear.in));
}

template <MatrixFormat kFormat>
cudaError_t launch_codes(const Launch& launch, const StreamLinear& linear) {
  constexpr int kMost = kMostSlots<kFormat>;
  if (!CodeSlot<kFormat, kRuns<kFormat>>::takes(linear.coded)) return cudaErrorInvalidValue;
  const bool all = shared_bytes<kFormat>(linear, kMost) + kStreamStatic <= block_shared_bytes();
  return all ? launch_slots<kFormat, kMost>(launch, linear)
             : launch_slots<kFormat, kLeastSlots>(launch, linear);
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

std::size_t stream_codes_bytes(const StreamLinear& linear) {
  switch (linear.coded.format) {
    case MatrixFormat::kInt8:
      return shared_bytes<MatrixFormat::kInt8>(linear, kLeastSlots);
    case MatrixFormat::kFp8:
      return shared_bytes<MatrixFormat::kFp8>(linear, kLeastSlots);
    default:
      return shared_bytes<MatrixFormat::kNf4>(linear, kLeastSlots);
  }
}

}  // namespace mesh::engine::cuda
