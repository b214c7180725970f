#include "node/engine/ops/linear.h"

#include <algorithm>

#include "common/base/check.h"
#include "node/engine/ops/kernels.h"

namespace mesh::ops {
namespace {
// Up to here rows are read where they lie; more are packed into tiles first.
constexpr std::int64_t kUnpackedRows = 4;
// Rows of one work item: their packed inputs of one chain fit a core's L2 cache.
constexpr std::int64_t kRowBlock = 192;
// Values that one thread packs as fast as several.
constexpr std::int64_t kSerialPacking = 1 << 15;
// A range of work that outweighs handing it out: 16 KiB of weights for a row.
constexpr std::int64_t kGrainBytes = 1 << 14;

std::int64_t grain_of(const PackedLinear& weight, std::int64_t rows, int threads) {
  const std::int64_t least = std::max<std::int64_t>(1, kGrainBytes / (weight.panel_bytes() * rows));
  const std::int64_t most = rows > kUnpackedRows ? 8 : 32;
  const std::int64_t fair = weight.panels() / (4 * threads);
  return std::max(least, std::min(most, fair));
}

bool has_many(const ConstMatrix& x) {
  return x.rows * x.cols > kSerialPacking;
}

// The rows as tiles (kernels.h), in the backend's scratch memory.
const float* packed_rows(CpuBackend& backend, ConstMatrix x) {
  float* packed = backend.scratch(x.rows * x.cols);
  const std::int64_t chains = (x.cols + kChain - 1) / kChain;
  const std::int64_t grain = has_many(x) ? 1 : chains;
  backend.pool().parallel_for(chains, grain, [&](std::int64_t begin, std::int64_t end) {
    backend.kernels().pack_rows(x.data, x.stride, x.rows, begin * kChain, std::min(end * kChain, x.cols),
                                packed);
  });
  return packed;
}

// At most kRowBlock rows. Rounded inputs are half as large, but the block is the same.
void rounded_block(CpuBackend& backend, const PackedLinear& weight, ConstMatrix x, Matrix y, Store store) {
  const Kernels& kernels = backend.kernels();
  const DotKernel& kernel = kernels.dots[static_cast<std::size_t>(weight.format())];
  MESH_CHECK(kernel.dot != nullptr);
  ThreadPool& pool = backend.pool();
  const std::int64_t chains = (x.cols + kChain - 1) / kChain;
  const std::int64_t tiles = (x.rows + kernels.dot_tile_rows - 1) / kernels.dot_tile_rows;
  const std::int64_t words = x.rows * x.cols / 2;
  float* const scratch = backend.scratch(words + chains * x.rows);
  DotInputs inputs;
  inputs.x = x.data;
  inputs.stride = x.stride;
  inputs.m = x.rows;
  inputs.k = x.cols;
  inputs.words = reinterpret_cast<std::uint32_t*>(scratch);
  inputs.steps = scratch + words;
  pool.parallel_for(chains * tiles, has_many(x) ? 1 : chains * tiles,
                    [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t i = begin; i < end; ++i) kernel.pack(inputs, i / tiles, i % tiles);
                    });
  const bool integers = weight.format() == MatrixFormat::kInt8 || weight.format() == MatrixFormat::kNf4;
  DotArgs args;
  args.panels = weight.panel(0);
  args.panel_stride = weight.panel_bytes();
  args.group = weight.group();
  args.inputs = inputs.words;
  args.input_steps = integers ? inputs.steps : nullptr;
  args.m = x.rows;
  args.k = x.cols;
  args.c = y.data;
  args.c_stride = y.stride;
  args.n = y.cols;
  args.bias = weight.bias();
  args.add = store == Store::kAdd;
  pool.parallel_for(weight.panels(), grain_of(weight, x.rows, pool.threads()),
                    [&](std::int64_t begin, std::int64_t end) { kernel.dot(args, begin, end); });
}

// At most kRowBlock rows.
void linear_block(CpuBackend& backend, const PackedLinear& weight, ConstMatrix x, Matrix y, Store store) {
  GemmArgs args;
  args.panels = weight.panel(0);
  args.panel_stride = weight.panel_bytes();
  args.element = weight.format() == MatrixFormat::kBf16 ? Element::kBf16 : Element::kF32;
  args.group = weight.group();
  args.k = x.cols;
  args.a = x.rows > kUnpackedRows ? packed_rows(backend, x) : x.data;
  args.a_stride = x.rows > kUnpackedRows ? 0 : x.stride;
  args.m = x.rows;
  args.c = y.data;
  args.c_stride = y.stride;
  args.n = y.cols;
  args.bias = weight.bias();
  args.add = store == Store::kAdd;
  const Kernels& kernels = backend.kernels();
  const auto gemm = weight.format() == MatrixFormat::kInt8  ? kernels.gemm_int8
                    : weight.format() == MatrixFormat::kNf4 ? kernels.gemm_nf4
                    : weight.format() == MatrixFormat::kFp8 ? kernels.gemm_fp8
                                                            : kernels.gemm;
  ThreadPool& pool = backend.pool();
  pool.parallel_for(weight.panels(), grain_of(weight, x.rows, pool.threads()),
                    [&](std::int64_t begin, std::int64_t end) { gemm(args, begin, end); });
}
}  // namespace

void linear(CpuBackend& backend, const PackedLinear& weight, ConstMatrix x, Matrix y, Store store) {
  MESH_CHECK(x.cols == weight.in_features() && y.cols == weight.out_features() && x.rows == y.rows);
  const std::int64_t blocks = (x.rows + kRowBlock - 1) / kRowBlock;
  for (std::int64_t block = 0; block < blocks; ++block) {
    const std::int64_t begin = x.rows * block / blocks;
    const std::int64_t rows = x.rows * (block + 1) / blocks - begin;
    const auto compute = weight.order() == PanelOrder::kPairs ? rounded_block : linear_block;
    compute(backend, weight, x.row_range(begin, rows), y.row_range(begin, rows), store);
  }
}

}  // namespace mesh::ops
