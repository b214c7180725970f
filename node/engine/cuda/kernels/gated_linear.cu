#include "node/engine/cuda/kernels/gated_linear.h"

#include "node/engine/cuda/kernels/launch.cuh"
#include "node/engine/cuda/kernels/tensor_map.cuh"
#include "node/engine/cuda/kernels/tile_linear.h"
#include "node/engine/cuda/kernels/tile_stages.cuh"
#include "node/engine/cuda/kernels/wgmma.cuh"

// The gated product of some tens of rows, bound by reading the matrix. A block takes kInner outputs, as many
// as give each multiprocessor the same to read: gates and ups are the columns of one product, so that a
// thread has both of an output. All blocks go through the inputs in step and share what L2 sends of the rows.
// One warp asks for pieces of 64 inputs, those of the matrix before the launch ahead has ended; a warpgroup
// multiplies 64 rows.
namespace mesh::engine::cuda {
namespace {

constexpr int kDepth = kBoxColumns;

template <int kInner, int kGroups>
struct Shape {
  static constexpr int kThreads = kGroups * 128 + 32;
  static constexpr int kWeightBytes = 2 * kInner * kDepth * 2, kRowBytes = kGroups * 64 * kDepth * 2;
  static constexpr int kStageBytes = kWeightBytes + kRowBytes;
  static constexpr int kStages = 111 * 1024 / kStageBytes;  // of two blocks a multiprocessor
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/// Of one thread.
template <class Shape>
__device__ void ask_all(const CUtensorMap& weights, const CUtensorMap& rows, TileStages<Shape> to,
                        int first_output, int pieces) {
  const auto ask_weights = [&](const TileStages<Shape>& stage, int piece) {
    expect_bytes(stage.full(), Shape::kStageBytes);
    copy_box(stage.weights(), weights, stage.full(), piece * kDepth, first_output, 0, kEvictFirst);
  };
  TileStages<Shape> early = to;
  const int count = min(pieces, Shape::kStages);
  for (int i = 0; i < count; ++i, early.advance()) ask_weights(early, i);
  wait_for_previous_launch();
  for (int i = 0; i < pieces; ++i, to.advance()) {
    if (i >= count) {
      wait_at(to.empty(), (to.round + 1) & 1);
      ask_weights(to, i);
    }
    copy_box(to.rows(), rows, to.full(), i * kDepth, 0, 0, kEvictLast);
  }
}
#endif

template <int kInner, int kGroups>
__global__ void __launch_bounds__(kGroups * 128 + 32, 2)
    multiply_gated(const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap rows,
                   const GatedLinear linear) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = Shape<kInner, kGroups>;
  extern __shared__ std::byte memory[];
  __shared__ std::uint64_t barriers[2 * Shape::kStages];
  TileStages<Shape> stages{(shared_address(memory) + 1023) / 1024 * 1024, shared_address(barriers)};
  const int pieces = (linear.in + kDepth - 1) / kDepth, first_output = static_cast<int>(blockIdx.x) * kInner;
  const bool asks = threadIdx.x == kGroups * 128;
  if (asks) make_stage_barriers<Shape>(stages.barriers, kGroups * 4);
  __syncthreads();
  let_next_launch_begin();
  if (asks) ask_all<Shape>(weights, rows, stages, first_output, pieces);
  wait_for_previous_launch();
  if (threadIdx.x >= kGroups * 128) return;

  float sums[kInner] = {};
  const int group = static_cast<int>(threadIdx.x) / 128, lane = static_cast<int>(threadIdx.x) % 32;
  unsigned before = 0;
  for (int i = 0; i < pieces; ++i, stages.advance()) {
    wait_at(stages.full(), stages.round & 1);
    const std::uint64_t a = tile_descriptor(stages.rows() + group * 64 * kDepth * 2),
                        b = tile_descriptor(stages.weights());
    begin_products();
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) multiply_tiles(sums, a + 2 * k, b + 2 * k);
    end_products();
    wait_for_products<1>();
    if (i > 0 && lane == 0) arrive_at(before);
    before = stages.empty();
  }
  wait_for_products<0>();

  const int first_row = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
#pragma unroll
  for (int j = 0; j < kInner / 8; ++j) {
    const int output = first_output + j * 8 + lane % 4 * 2;
    if (output >= linear.inner) continue;
    float2 gate_bias{}, up_bias{};
    if (linear.bias != nullptr) {
      gate_bias = *reinterpret_cast<const float2*>(linear.bias + output);
      up_bias = *reinterpret_cast<const float2*>(linear.bias + linear.inner + output);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first_row + r * 8;
      if (row >= linear.rows) continue;
      const float* gates = sums + 4 * j + 2 * r;
      const float* ups = gates + kInner / 2;
      const float2 gate{gates[0] + gate_bias.x, gates[1] + gate_bias.y};
      const float2 up{ups[0] + up_bias.x, ups[1] + up_bias.y};
      *reinterpret_cast<std::uint32_t*>(static_cast<Bf*>(linear.y) + std::int64_t{row} * linear.inner +
                                        output) =
          narrow(gate.x / (1 + __expf(-gate.x)) * up.x, gate.y / (1 + __expf(-gate.y)) * up.y);
    }
  }
#endif
}

template <int kInner, int kGroups>
cudaError_t launch_gated(const Launch& launch, const GatedLinear& linear) {
  using Shape = Shape<kInner, kGroups>;
  CUtensorMap weights, rows;
  cudaError_t error = describe(weights, linear.weight, linear.in, linear.inner, 2, {kInner, 2});
  if (error == cudaSuccess) error = describe(rows, linear.x, linear.in, linear.rows, 1, {kGroups * 64, 1});
  if (error != cudaSuccess) return error;
  return enqueue(launch, multiply_gated<kInner, kGroups>,
                 dim3(static_cast<unsigned>((linear.inner + kInner - 1) / kInner)), Shape::kThreads,
                 static_cast<std::size_t>(Shape::kStages) * Shape::kStageBytes + 1024, weights, rows, linear);
}

template <int kInner>
cudaError_t launch_inner(const Launch& launch, const GatedLinear& linear) {
  return linear.rows <= 64 ? launch_gated<kInner, 1>(launch, linear)
                           : launch_gated<kInner, 2>(launch, linear);
}

}  // namespace

bool has_gated_linear(int major, int minor) {
  return major == 9 && minor == 0;
}

cudaError_t gated_linear(const Launch& launch, const GatedLinear& linear) {
  if (linear.rows < 1 || linear.in % 8 != 0 || linear.inner % 8 != 0) return cudaErrorInvalidValue;
  if (linear.rows > kGatedRows) return gated_tiles(launch, linear);
  using LaunchInner = cudaError_t (*)(const Launch&, const GatedLinear&);
  struct Choice {
    int inner;
    LaunchInner launch;
  };
  constexpr Choice kChoices[] = {
      {64, launch_inner<64>}, {56, launch_inner<56>}, {48, launch_inner<48>}, {32, launch_inner<32>}};
  // The busiest place of a block decides: as few outputs for it as can be, the wider block among equals.
  const int places = 2 * launch.processors;
  const auto most = [&](int inner) {
    const int blocks = (linear.inner + inner - 1) / inner;
    return (blocks + places - 1) / places * inner;
  };
  const Choice* best = kChoices;
  for (const Choice& choice : kChoices) {
    if (most(choice.inner) < most(best->inner)) best = &choice;
  }
  // More than 64 rows take longer to bring twice to a multiprocessor than matrices win by two blocks there.
  const int tiles = (linear.inner + kGatedWidth - 1) / kGatedWidth,
            busiest = (tiles + launch.processors - 1) / launch.processors * kGatedWidth;
  if (linear.rows > 64 && busiest <= 2 * most(best->inner)) return gated_tiles(launch, linear);
  return best->launch(launch, linear);
}

}  // namespace mesh::engine::cuda
