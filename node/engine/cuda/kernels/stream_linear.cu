#include <algorithm>

#include "node/engine/cuda/kernels/device.cuh"
#include "node/engine/cuda/kernels/launch.cuh"
#include "node/engine/cuda/kernels/staging.cuh"
#include "node/engine/cuda/kernels/stream_store.cuh"

// Products of a matrix with one or two rows, bound by reading the matrix. Each warp has outputs of its own
// and waits for no other: while it multiplies eight 16-byte pieces a lane of one output, the next eight are
// on their way.
namespace mesh::engine::cuda {
namespace {

constexpr int kThreads = 256, kBlocks = 2;       // of a multiprocessor
constexpr int kLoads = 8, kUnit = kLoads * 256;  // inputs of one group of loads

template <int kRows>
struct Stream {
  const StreamLinear& linear;
  const int x_stride, units;
  const Bf* const x;
  const bool gated = linear.store == StreamStore::kSiluMul;
  const int half = linear.out / 2, outputs = gated ? half : linear.out;
  const int lane = static_cast<int>(threadIdx.x) % 32;

  /// A group of loads: `unit` of output `output`, whose up row follows its gate row.
  struct Place {
    int output, part, unit;
  };
  __device__ void advance(Place& place) const {
    if (++place.unit < units) return;
    place.unit = 0;
    if (gated && ++place.part < 2) return;
    place.part = 0;
    place.output += static_cast<int>(gridDim.x) * (kThreads / 32);
  }
  __device__ void load(const Place& place, uint4 (&group)[kLoads]) const {
    const Bf* from = static_cast<const Bf*>(linear.weight) +
                     std::int64_t{place.output + place.part * half} * linear.in + place.unit * kUnit +
                     lane * 8;
    const int left = place.output < outputs ? linear.in - place.unit * kUnit - lane * 8 : 0;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      group[i] = make_uint4(0, 0, 0, 0);
      if (i * 256 < left) group[i] = read_once(from + i * 256);
    }
  }
  __device__ void add_products(const Place& place, const uint4 (&group)[kLoads], float (&sums)[kRows]) const {
    const Bf* values = x + place.unit * kUnit + lane * 8;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const std::uint32_t w[4] = {group[i].x, group[i].y, group[i].z, group[i].w};
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const uint4 piece = *reinterpret_cast<const uint4*>(values + row * x_stride + i * 256);
        const std::uint32_t v[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float2 a = widen(w[k]), b = widen(v[k]);
          sums[row] += a.x * b.x;
          sums[row] += a.y * b.y;
        }
      }
    }
  }
  __device__ void store(int output, const float (&gate)[kRows], const float (&sums)[kRows]) const {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (lane != row) continue;
      if (gated) {
        store_gated(linear, row, output, gate[row], sums[row]);
      } else {
        store_output(linear, row, output, sums[row]);
      }
    }
  }
};

template <int kRows>
__global__ void __launch_bounds__(kThreads, kBlocks) stream_rows(const StreamLinear linear, int units) {
  extern __shared__ uint4 shared[];
  __shared__ float partial[33];
  Bf* const x = reinterpret_cast<Bf*>(shared);
  const int width = units * kUnit;
  const Stream<kRows> work{linear, width, units, x};
  using Place = typename Stream<kRows>::Place;
  uint4 even[kLoads], odd[kLoads];
  Place loaded{static_cast<int>(threadIdx.x / 32 * gridDim.x + blockIdx.x), 0, 0}, used = loaded;
  work.load(loaded, even);
  work.advance(loaded);
  work.load(loaded, odd);
  work.advance(loaded);
  let_next_launch_begin();  // its blocks find no room before ours end
  wait_for_previous_launch();
  if (linear.norm != nullptr) {
    stage_normalised<kThreads>(linear, x, width, width, partial);
  } else {
    stage_rows<kThreads>(linear, x, width, 0, width);
  }
  __syncthreads();
  float sums[kRows] = {}, gate[kRows] = {};
  const auto step = [&](uint4(&group)[kLoads]) {
    work.add_products(used, group, sums);
    work.load(loaded, group);
    work.advance(loaded);
    const Place now = used;
    work.advance(used);
    if (used.unit != 0) return;
#pragma unroll
    for (int row = 0; row < kRows; ++row) sums[row] = sum_over_lanes(sums[row]);
    if (work.gated && now.part == 0) {
#pragma unroll
      for (int row = 0; row < kRows; ++row) gate[row] = sums[row];
    } else {
      work.store(now.output, gate, sums);
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) sums[row] = 0;
  };
  while (used.output < work.outputs) {
    step(even);
    if (used.output < work.outputs) step(odd);
  }
}

}  // namespace

std::size_t stream_bytes(const StreamLinear& linear) {
  if (linear.coded.rows != nullptr) return stream_codes_bytes(linear) + kStreamStatic;
  const auto units = static_cast<std::size_t>((linear.in + kUnit - 1) / kUnit);
  return static_cast<std::size_t>(linear.rows) * units * kUnit * sizeof(Bf) + kStreamStatic;
}

std::size_t block_shared_bytes() {
  int device = 0, bytes = 0;
  const bool known =
      cudaGetDevice(&device) == cudaSuccess &&
      cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess;
  return known ? static_cast<std::size_t>(bytes) : 48 * 1024;
}

cudaError_t stream_linear(const Launch& launch, const StreamLinear& linear) {
  if (linear.coded.rows != nullptr) return stream_codes(launch, linear);
  if (linear.rows < 1 || linear.rows > kStreamRows || linear.in % 8 != 0) return cudaErrorInvalidValue;
  const int units = (linear.in + kUnit - 1) / kUnit;
  const std::size_t shared =
      static_cast<std::size_t>(linear.rows) * static_cast<std::size_t>(units) * kUnit * sizeof(Bf);
  const auto kernel = linear.rows == 1 ? stream_rows<1> : stream_rows<2>;
  return enqueue(launch, kernel, dim3(static_cast<unsigned>(launch.processors * kBlocks)), kThreads, shared,
                 linear, units);
}

}  // namespace mesh::engine::cuda
