// What each kernels_*.cc compiles with its own flags; MESH_KERNELS names the function that hands out the
// table.
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
#include "node/engine/ops/gemm_kernel.h"
#include "node/engine/ops/quantised_gemm_kernel.h"
//
#include "node/engine/ops/dot_weights.h"
//
#include "node/engine/ops/dot_kernel.h"
#include "node/engine/ops/dot_pack.h"
#include "node/engine/ops/row_kernel.h"
}  // namespace

const Kernels& MESH_KERNELS() {
  static constexpr Kernels kKernels = {
      .tile_rows = kTileRows,
      .gemm = gemm,
      .gemm_int8 = quantised_gemm<Int8Codes>,
      .gemm_nf4 = quantised_gemm<Nf4Codes>,
      .gemm_fp8 = quantised_gemm<Fp8Codes>,
      .pack_rows = pack_rows,
      .dot_tile_rows = kDotRows,
      .dots =
          {{}, {}, {pack_integer_pairs, dot_codes<Int8Pairs>}, {pack_integer_pairs, dot_codes<Nf4Pairs>}, {}},
      .softmax_row = softmax_row,
      .scale = scale,
      .rms_norm = rms_norm,
      .layer_norm = layer_norm,
      .rotary = rotary,
      .silu_mul = silu_mul,
      .gelu_tanh = gelu_tanh,
      .exp = exp_row,
      .add = add,
      .to_bf16 = to_bf16,
      .from_bf16 = from_bf16,
      .largest = largest,
      .all_finite = all_finite,
  };
  return kKernels;
}

}  // namespace mesh::ops
