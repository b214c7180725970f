#pragma once

#include <cstddef>
#include <cstdint>

#include "node/engine/ops/matrix.h"

namespace mesh::ops {

/// Inputs that one chain of multiply-adds covers (linear.h).
inline constexpr std::int64_t kChain = 256;

/// c (+)= a · panels: the one matrix product under linear and attention.
struct GemmArgs {
  const std::byte* panels = nullptr;  ///< in PackedLinear's order
  std::int64_t panel_stride = 0;      ///< bytes between panels
  Element element = Element::kF32;    ///< of the panels that gemm takes
  std::int64_t k = 0;
  const float* a = nullptr;   ///< m rows, a_stride apart; or what pack_rows made of them
  std::int64_t a_stride = 0;  ///< 0: packed
  std::int64_t m = 0;
  float* c = nullptr;  ///< [m, n], c_stride apart
  std::int64_t c_stride = 0;
  std::int64_t n = 0;           ///< columns of c; those beyond the last full panel are computed and dropped
  const float* bias = nullptr;  ///< [panels · 32] or null
  bool add = false;             ///< c += instead of c =
  std::int64_t group = 0;       ///< quantised panels: inputs that share a scale
};

/// Rows whose inputs are rounded for products (rounded_inputs.h). `words`: for every chain, for every tile of
/// rows, for every pair of inputs one word a row, the first input in its low half.
struct DotInputs {
  const float* x = nullptr;  ///< m rows of k, `stride` apart
  std::int64_t stride = 0;
  std::int64_t m = 0;
  std::int64_t k = 0;              ///< even
  std::uint32_t* words = nullptr;  ///< m · k / 2
  float* steps = nullptr;          ///< [chains, m], for integers
};

/// c (+)= rounded inputs · panels of PanelOrder::kPairs.
struct DotArgs {
  const std::byte* panels = nullptr;
  std::int64_t panel_stride = 0;          ///< bytes between panels
  std::int64_t group = 0;                 ///< inputs that share a scale
  const std::uint32_t* inputs = nullptr;  ///< DotInputs::words
  const float* input_steps = nullptr;     ///< DotInputs::steps; null for bfloat16
  std::int64_t m = 0;
  std::int64_t k = 0;
  float* c = nullptr;  ///< this and what follows as in GemmArgs
  std::int64_t c_stride = 0;
  std::int64_t n = 0;
  const float* bias = nullptr;
  bool add = false;
};

/// Products of rounded inputs with weights of one format.
struct DotKernel {
  void (*pack)(const DotInputs& inputs, std::int64_t chain, std::int64_t tile) = nullptr;
  void (*dot)(const DotArgs& args, std::int64_t first_panel, std::int64_t last_panel) = nullptr;
};

/// Softmax of one block of scores with the running state of the blocks before it (online softmax). In: scores
/// [rows, stride], of which [0, count) exist. Out: in place e^(score − max) with zeros where hidden, `max`
/// and `sum` brought up to date, and the factor by which the row's earlier output shrinks.
struct SoftmaxRow {
  float* scores = nullptr;
  std::int64_t begin = 0;  ///< visible are [begin, end) …
  std::int64_t end = 0;
  const float* mask = nullptr;  ///< … plus this, aligned with scores, or null
  float scale = 1;
  std::int64_t count = 0;  ///< how many scores are read by what follows
};
struct SoftmaxState {
  float max = 0;
  float sum = 0;
};

/// Inner loops compiled for one instruction set.
struct Kernels {
  /// Rows that one tile of the matrix kernel holds in registers.
  std::int64_t tile_rows;
  void (*gemm)(const GemmArgs& args, std::int64_t first_panel, std::int64_t last_panel);
  /// The same over panels of quantised weights.
  void (*gemm_int8)(const GemmArgs& args, std::int64_t first_panel, std::int64_t last_panel);
  void (*gemm_nf4)(const GemmArgs& args, std::int64_t first_panel, std::int64_t last_panel);
  void (*gemm_fp8)(const GemmArgs& args, std::int64_t first_panel, std::int64_t last_panel);
  /// a [m, k] with `stride` → tiles as gemm reads them, m · k floats; inputs [k_begin, k_end), k_begin a
  /// multiple of kChain.
  void (*pack_rows)(const float* a, std::int64_t stride, std::int64_t m, std::int64_t k_begin,
                    std::int64_t k_end, float* out);
  std::int64_t
      dot_tile_rows;  ///< of DotInputs' tiles: m rows are in ⌈m / dot_tile_rows⌉ of nearly equal height
  /// By MatrixFormat; null where this instruction set gains nothing by rounding.
  DotKernel dots[5];
  float (*softmax_row)(const SoftmaxRow& row, SoftmaxState& state);
  void (*scale)(float* x, std::int64_t n, float factor);
  void (*rms_norm)(const float* x, const float* weight, float offset, float eps, std::int64_t n, float* out);
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float eps, std::int64_t n,
                     float* out);
  void (*rotary)(float* x, const float* cos, const float* sin, std::int64_t half);
  void (*silu_mul)(const float* gate, const float* up, std::int64_t n, float* out);
  void (*gelu_tanh)(float* x, std::int64_t n);
  void (*exp)(float* x, std::int64_t n);
  void (*add)(float* x, const float* y, std::int64_t n);
  void (*to_bf16)(const float* x, std::int64_t n, void* out);
  void (*from_bf16)(const void* x, std::int64_t n, float* out);
  float (*largest)(const float* x, std::int64_t n);  ///< NaNs left out; −inf when nothing is left
  bool (*all_finite)(const float* x, std::int64_t n);
};

const Kernels& portable_kernels();
#ifdef MESH_X86_KERNELS
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
const Kernels& avx512_bf16_kernels();
#endif

}  // namespace mesh::ops
