// The AVX-512 kernels, but products of rounded inputs by VDPBF16PS and VPDPWSSD.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "node/engine/ops/kernels.h"
#include "node/engine/ops/panel_layout.h"
#include "node/engine/ops/quantise.h"
#include "node/engine/ops/rounded_inputs.h"

namespace mesh::ops {
namespace {
#include "node/engine/ops/simd.h"
//
#include "node/engine/ops/panel_tiles.h"
//
#include "node/engine/ops/dot_weights.h"
//
#include "node/engine/ops/dot_kernel.h"
#include "node/engine/ops/dot_pack.h"

Kernels with_dots(Kernels kernels) {
  kernels.dot_tile_rows = kDotRows;
  const auto set = [&](MatrixFormat format, DotKernel kernel) {
    kernels.dots[static_cast<std::size_t>(format)] = kernel;
  };
  set(MatrixFormat::kBf16, {pack_bf16_pairs, dot_bf16});
  set(MatrixFormat::kFp8, {pack_bf16_pairs, dot_codes<Fp8Pairs>});
  set(MatrixFormat::kInt8, {pack_integer_pairs, dot_codes<Int8Pairs>});
  set(MatrixFormat::kNf4, {pack_integer_pairs, dot_codes<Nf4Pairs>});
  return kernels;
}
}  // namespace

const Kernels& avx512_bf16_kernels() {
  static const Kernels kKernels = with_dots(avx512_kernels());
  return kKernels;
}

}  // namespace mesh::ops
