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
// A range of work that outweighs handing it out: 64 KiB of weights.
constexpr std::int64_t kGrainBytes = 1 << 16;

std::int64_t grain_of(const PackedLinear& weight, std::int64_t rows, int threads) {
  const std::int64_t least = std::max<std::int64_t>(1, kGrainBytes / weight.panel_bytes());
  const std::int64_t most = rows > kUnpackedRows ? 8 : 32;
  const std::int64_t fair = weight.panels() / (4 * threads);
  return std::max(least, std::min(most, fair));
}
}  // namespace

void linear(CpuBackend& backend, const PackedLinear& weight, ConstMatrix x, Matrix y, Store store) {
  MESH_CHECK(x.cols == weight.in_features() && y.cols == weight.out_features() && x.rows == y.rows);
  if (x.rows == 0) return;
  const Kernels& kernels = backend.kernels();
  ThreadPool& pool = backend.pool();
  GemmArgs args;
  args.panels = weight.panel(0);
  args.panel_stride = weight.panel_bytes();
  args.element = weight.element();
  args.k = weight.in_features();
  args.n = weight.out_features();
  args.bias = weight.bias();
  args.c_stride = y.stride;
  args.add = store == Store::kAdd;

  const std::int64_t blocks = (x.rows + kRowBlock - 1) / kRowBlock;
  const std::int64_t block_rows = (x.rows + blocks - 1) / blocks;
  float* packed = nullptr;
  if (x.rows > kUnpackedRows) {
    packed = backend.scratch(x.rows * args.k);
    const std::int64_t chains = (args.k + kChain - 1) / kChain;
    pool.parallel_for(blocks * chains, x.rows * args.k > (1 << 15) ? 1 : blocks * chains,
                      [&](std::int64_t begin, std::int64_t end) {
                        for (std::int64_t i = begin; i < end; ++i) {
                          const std::int64_t row = i / chains * block_rows;
                          const std::int64_t k0 = i % chains * kChain;
                          kernels.pack_rows(x.row(row), x.stride, std::min(block_rows, x.rows - row), k0,
                                            std::min(k0 + kChain, args.k), packed + row * args.k);
                        }
                      });
  }
  const std::int64_t panels = weight.panels();
  const std::int64_t grain = grain_of(weight, x.rows, pool.threads());
  const std::int64_t ranges = (panels + grain - 1) / grain;
  pool.parallel_for(blocks * ranges, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = i / ranges * block_rows;
      const std::int64_t panel = i % ranges * grain;
      GemmArgs part = args;
      part.m = std::min(block_rows, x.rows - row);
      part.a = packed != nullptr ? packed + row * args.k : x.row(row);
      part.a_stride = packed != nullptr ? 0 : x.stride;
      part.c = y.row(row);
      kernels.gemm(part, panel, std::min(panel + grain, panels));
    }
  });
}

}  // namespace mesh::ops
