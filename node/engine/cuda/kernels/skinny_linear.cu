#include <algorithm>

#include "node/engine/cuda/kernels/device.cuh"
#include "node/engine/cuda/kernels/launch.cuh"

// Products of a matrix with few rows. Each warp multiplies 16 (or 32) outputs with a slice of the inputs on
// the tensor cores, weights going from memory straight into the registers that the instruction wants: a
// thread's eight consecutive values serve two of its k-steps, which only reorders a sum. The block's warps
// then add their slices.
namespace mesh::engine::cuda {
namespace {

constexpr int kLoads = 8;  // 16-byte loads of a thread at a time; two such groups are in flight
constexpr int kOutputs = 16;
constexpr int kPad = 32;  // values between rows of x in shared memory: no two of eight rows share banks

template <int kColumns, int kTiles, int kWarps>
struct Skinny {
  static constexpr int kSteps = kLoads / 2 / kTiles;  // of 32 inputs
  static constexpr int kUnit = 32 * kSteps;           // inputs of one group of loads

  const SkinnyLinear& linear;
  const int tiles, units, stage_units, x_stride;
  Bf* const x;
  float* const partial;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane / 4, member = lane % 4;
  const int rounds = (units + kWarps - 1) / kWarps;
  const int half = linear.out / 2;

  struct Place {
    int tile, round;
  };
  __device__ void advance(Place& place) const {
    if (++place.round == rounds) place = {place.tile + static_cast<int>(gridDim.x), 0};
  }
  /// The matrix row of a tile's output 0 … 15; gate and up rows alternate by eights.
  __device__ int matrix_row(int tile, int sub, int output) const {
    if (linear.store != SkinnyStore::kSiluMul) return (tile * kTiles + sub) * kOutputs + output;
    const int row = (tile * kTiles + sub) * (kOutputs / 2) + output % 8;
    return row >= half ? linear.out : row + (output < 8 ? 0 : half);
  }
  __device__ void load(const Place& place, uint4 (&group)[kLoads]) const {
    const int first = (place.round * kWarps + warp) * kUnit + member * 8;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int step = i / (2 * kTiles), sub = i / 2 % kTiles;
      const int row = matrix_row(place.tile, sub, quad + i % 2 * 8), k = first + step * 32;
      group[i] = make_uint4(0, 0, 0, 0);
      if (place.tile < tiles && row < linear.out && k < linear.in) {
        group[i] = read_once(static_cast<const Bf*>(linear.weight) + std::int64_t{row} * linear.in + k);
      }
    }
  }
  __device__ void add_products(const Place& place, const uint4 (&group)[kLoads],
                               float (&sums)[kTiles][kColumns][4]) const {
    const int unit = place.round * kWarps + warp;
    if (unit >= units) return;
    const int first = (unit % stage_units) * kUnit + member * 8;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        const int row = column * 8 + quad;
        uint4 b = make_uint4(0, 0, 0, 0);
        if (row < linear.rows) b = *reinterpret_cast<const uint4*>(x + row * x_stride + first + step * 32);
#pragma unroll
        for (int sub = 0; sub < kTiles; ++sub) {
          const uint4 low = group[(step * kTiles + sub) * 2], high = group[(step * kTiles + sub) * 2 + 1];
          multiply(sums[sub][column], low.x, high.x, low.y, high.y, b.x, b.y);
          multiply(sums[sub][column], low.z, high.z, low.w, high.w, b.z, b.w);
        }
      }
    }
  }

  /// Rows of x for the units of one stage, from `first` on; values past the end are zero.
  __device__ void stage(int first) const {
    const int width = stage_units * kUnit;
    for (int i = threadIdx.x; i < linear.rows * (width / 8); i += kWarps * 32) {
      const int row = i / (width / 8), k = i % (width / 8) * 8;
      uint4 value = make_uint4(0, 0, 0, 0);
      if (first + k < linear.in) {
        value = __ldcg(reinterpret_cast<const uint4*>(static_cast<const Bf*>(linear.x) +
                                                      std::int64_t{row} * linear.in + first + k));
      }
      *reinterpret_cast<uint4*>(x + row * x_stride + k) = value;
    }
  }
  __device__ void stage_normalised() const {
    const int width = stage_units * kUnit;
    for (int row = 0; row < linear.rows; ++row) {
      const float4* from = reinterpret_cast<const float4*>(static_cast<const float*>(linear.x) +
                                                           std::int64_t{row} * linear.in);
      const float4* weight = reinterpret_cast<const float4*>(linear.norm);
      constexpr int kHeld = 4;  // values that are not read twice: 4 · 4 · threads
      float4 held[kHeld];
      float squares = 0;
      const auto square = [&](const float4& v) { squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w; };
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int at = threadIdx.x + i * kWarps * 32;
        held[i] = at < linear.in / 4 ? __ldcg(from + at) : make_float4(0, 0, 0, 0);
        square(held[i]);
      }
      for (int at = threadIdx.x + kHeld * kWarps * 32; at < linear.in / 4; at += kWarps * 32) {
        square(__ldcg(from + at));
      }
      const float factor =
          rsqrtf(sum_over_block(squares, partial) / static_cast<float>(linear.in) + linear.epsilon);
      const auto put = [&](int at, const float4& v) {
        uint2 pair = make_uint2(0, 0);
        if (at < linear.in / 4) {
          const float4 w = weight[at];
          pair = make_uint2(narrow(v.x * factor * w.x, v.y * factor * w.y),
                            narrow(v.z * factor * w.z, v.w * factor * w.w));
        }
        if (at < width / 4) *reinterpret_cast<uint2*>(x + row * x_stride + at * 4) = pair;
      };
#pragma unroll
      for (int i = 0; i < kHeld; ++i) put(threadIdx.x + i * kWarps * 32, held[i]);
      for (int at = threadIdx.x + kHeld * kWarps * 32; at < width / 4; at += kWarps * 32) {
        put(at, at < linear.in / 4 ? __ldcg(from + at) : make_float4(0, 0, 0, 0));
      }
    }
    __syncthreads();
  }

  __device__ float bias(int row) const { return linear.bias == nullptr ? 0.0f : linear.bias[row]; }

  /// Adds the warps' slices of a finished tile and stores it.
  __device__ void store(int tile, bool odd, float (&sums)[kTiles][kColumns][4]) const {
    constexpr int kValues = kTiles * kColumns * 128;
    float* const slices = partial + (odd ? kWarps * kValues : 0);
#pragma unroll
    for (int sub = 0; sub < kTiles; ++sub) {
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        float(&sum)[4] = sums[sub][column];
        *reinterpret_cast<float4*>(slices + warp * kValues + (sub * kColumns + column) * 128 + lane * 4) =
            make_float4(sum[0], sum[1], sum[2], sum[3]);
        sum[0] = sum[1] = sum[2] = sum[3] = 0;
      }
    }
    __syncthreads();
    const bool gated = linear.store == SkinnyStore::kSiluMul;
    for (int i = threadIdx.x; i < (gated ? kValues / 2 : kValues); i += kWarps * 32) {
      const int piece = i / (gated ? 64 : 128), inside = i % (gated ? 64 : 128);
      const int from = gated ? inside / 2 : inside / 4, part = gated ? inside % 2 : inside % 4;
      const int row = piece % kColumns * 8 + from % 4 * 2 + part % 2;
      const int output = from / 4 + part / 2 * 8;
      const int at = matrix_row(tile, piece / kColumns, output);
      if (row >= linear.rows || at >= linear.out) continue;
      const float* slice = slices + piece * 128 + from * 4 + part;
      float value = 0, up = 0;
      for (int w = 0; w < kWarps; ++w) {
        value += slice[w * kValues];
        if (gated) up += slice[w * kValues + 2];
      }
      value += bias(at);
      if (gated) {
        up += bias(at + half);
        static_cast<Bf*>(linear.y)[std::int64_t{row} * half + at] =
            __float2bfloat16(value / (1 + __expf(-value)) * up);
      } else {
        float* y = static_cast<float*>(linear.y) + std::int64_t{row} * linear.out + at;
        *y = linear.store == SkinnyStore::kAdd ? __ldcg(y) + value : value;
      }
    }
  }

  __device__ void run() const {
    uint4 even[kLoads], odd[kLoads];
    Place loaded{static_cast<int>(blockIdx.x), 0}, used = loaded;
    load(loaded, even);
    advance(loaded);
    load(loaded, odd);
    advance(loaded);
    wait_for_previous_launch();
    if (linear.norm != nullptr) {
      stage_normalised();
    } else {
      stage(0);
      __syncthreads();
    }
    float sums[kTiles][kColumns][4] = {};
    const bool staged = stage_units < units;
    bool first = true, second_buffer = false, told = false;
    const auto step = [&](uint4(&group)[kLoads]) {
      if (staged && !first && used.round * kWarps % stage_units == 0) {
        __syncthreads();
        stage(used.round * kWarps * kUnit);
        __syncthreads();
      }
      first = false;
      add_products(used, group, sums);
      load(loaded, group);
      if (!told && loaded.tile >= tiles) {
        let_next_launch_begin();
        told = true;
      }
      if (used.round + 1 == rounds) {
        store(used.tile, second_buffer, sums);
        second_buffer = !second_buffer;
      }
      advance(used);
      advance(loaded);
    };
    while (used.tile < tiles) {
      step(even);
      if (used.tile < tiles) step(odd);
    }
  }
};

template <int kColumns, int kTiles, int kWarps>
__global__ void __launch_bounds__(kWarps * 32, 16 / kWarps)
    multiply_few_rows(const SkinnyLinear linear, int tiles, int units, int stage_units, int x_stride) {
  extern __shared__ uint4 shared[];
  Bf* const x = reinterpret_cast<Bf*>(shared);
  float* const partial = reinterpret_cast<float*>(x + linear.rows * x_stride);
  const Skinny<kColumns, kTiles, kWarps> work{linear, tiles, units, stage_units, x_stride, x, partial};
  work.run();
}

constexpr std::size_t kShared = 200 * 1024;  // of 227 KiB, on GPUs that have as much

template <int kColumns, int kTiles, int kWarps>
cudaError_t launch_few_rows(const Launch& launch, const SkinnyLinear& linear, std::size_t most_shared) {
  constexpr int kUnit = Skinny<kColumns, kTiles, kWarps>::kUnit;
  const int outputs = linear.store == SkinnyStore::kSiluMul ? linear.out / 2 : linear.out;
  const int per_tile = kTiles * kOutputs / (linear.store == SkinnyStore::kSiluMul ? 2 : 1);
  const int tiles = (outputs + per_tile - 1) / per_tile, units = (linear.in + kUnit - 1) / kUnit;
  const std::size_t partial = std::max<std::size_t>(2 * kWarps * kTiles * kColumns * 128, 64) * sizeof(float);
  const auto x_bytes = [&](int count) {
    return static_cast<std::size_t>(linear.rows) * static_cast<std::size_t>(count * kUnit + kPad) *
           sizeof(Bf);
  };
  // Stages of equal length, as few as fit.
  const int rounds = (units + kWarps - 1) / kWarps;
  int stage_units = units, stages = 1;
  while (x_bytes(stage_units) + partial > most_shared && stages < rounds) {
    ++stages;
    stage_units = (rounds + stages - 1) / stages * kWarps;
  }
  if (x_bytes(stage_units) + partial > most_shared || (stages > 1 && linear.norm != nullptr)) {
    return cudaErrorInvalidValue;
  }
  const int blocks = std::min(tiles, launch.processors * (16 / kWarps));
  return enqueue(launch, multiply_few_rows<kColumns, kTiles, kWarps>, dim3(static_cast<unsigned>(blocks)),
                 kWarps * 32, x_bytes(stage_units) + partial, linear, tiles, units, stage_units,
                 stage_units * kUnit + kPad);
}

/// Without tensor cores: a warp for each output, up to four rows at a time.
__global__ void multiply_rows_plainly(const SkinnyLinear linear) {
  wait_for_previous_launch();
  let_next_launch_begin();
  const bool gated = linear.store == SkinnyStore::kSiluMul;
  const int half = linear.out / 2, outputs = gated ? half : linear.out;
  const int lane = threadIdx.x % 32;
  const auto* weight = static_cast<const Bf*>(linear.weight);
  for (int out = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; out < outputs;
       out += gridDim.x * (blockDim.x / 32)) {
    for (int first = 0; first < linear.rows; first += 4) {
      float sums[2][4] = {};
      for (int k = lane * 8; k < linear.in; k += 256) {
        for (int part = 0; part < (gated ? 2 : 1); ++part) {
          const uint4 w = read_once(weight + std::int64_t{out + part * half} * linear.in + k);
          const std::uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
          for (int row = 0; row < 4; ++row) {
            if (first + row >= linear.rows) continue;
            const uint4 v = __ldcg(reinterpret_cast<const uint4*>(static_cast<const Bf*>(linear.x) +
                                                                  std::int64_t{first + row} * linear.in + k));
            const std::uint32_t values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const float2 a = widen(words[i]), b = widen(values[i]);
              if (part == 0) {
                sums[0][row] += a.x * b.x + a.y * b.y;
              } else {
                sums[1][row] += a.x * b.x + a.y * b.y;
              }
            }
          }
        }
      }
#pragma unroll
      for (int row = 0; row < 4; ++row) {
        float value = sum_over_lanes(sums[0][row]), up = sum_over_lanes(sums[1][row]);
        if (lane != 0 || first + row >= linear.rows) continue;
        if (linear.bias != nullptr) value += linear.bias[out];
        const std::int64_t at = std::int64_t{first + row} * outputs + out;
        if (gated) {
          if (linear.bias != nullptr) up += linear.bias[out + half];
          static_cast<Bf*>(linear.y)[at] = __float2bfloat16(value / (1 + __expf(-value)) * up);
        } else {
          float* y = static_cast<float*>(linear.y) + at;
          *y = linear.store == SkinnyStore::kAdd ? __ldcg(y) + value : value;
        }
      }
    }
  }
}

}  // namespace

cudaError_t skinny_linear(const Launch& launch, const SkinnyLinear& linear, bool tensor_cores) {
  if (linear.rows < 1 || linear.rows > kSkinnyRows || linear.in % 8 != 0) return cudaErrorInvalidValue;
  if (!tensor_cores) {
    if (linear.norm != nullptr) return cudaErrorInvalidValue;
    return enqueue(launch, multiply_rows_plainly, dim3(static_cast<unsigned>(launch.processors * 8)), 256, 0,
                   linear);
  }
  int most = 0, device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
  if (error != cudaSuccess) return error;
  const std::size_t shared = std::min<std::size_t>(kShared, static_cast<std::size_t>(most));
  // Long sums over few outputs: more outputs a warp, so that x is read less often.
  const bool wide = linear.in >= 2 * linear.out && linear.rows > kFusedNormRows;
  if (linear.rows <= kFusedNormRows) return launch_few_rows<1, 1, 8>(launch, linear, shared / 2);
  if (linear.rows <= 8) {
    return wide ? launch_few_rows<1, 2, 16>(launch, linear, shared)
                : launch_few_rows<1, 1, 16>(launch, linear, shared);
  }
  return wide ? launch_few_rows<2, 2, 16>(launch, linear, shared)
              : launch_few_rows<2, 1, 16>(launch, linear, shared);
}

}  // namespace mesh::engine::cuda
