#pragma once

#include <bit>

#include "node/engine/cuda/kernels/codes.cuh"
#include "node/engine/cuda/kernels/copies.cuh"
#include "node/engine/cuda/kernels/staging_integers.cuh"

/// How a warp multiplies rows of codes with one or two rows of inputs: codes come through a ring of the
/// warp's own in shared memory, so that no warp waits for another; it takes two outputs at a time, so that an
/// input is read once for both. Products are added in halves by eights, those sums in float32.
namespace mesh::engine::cuda {

inline constexpr int kStreamOutputs = 2;  ///< of a warp at a time

/// Where a matrix's codes and scales lie, as lanes read them.
struct CodeLayout {
  int row_bytes, code_bytes;  ///< of a row
  int scales_at;              ///< bytes of a row before its scales
  int group_shift;            ///< log2 of the inputs that share a scale, if a row has several

  __host__ __device__ explicit CodeLayout(const CodedMatrix& matrix)
      : row_bytes(matrix.row_bytes()),
        code_bytes(matrix.code_at(matrix.in)),
        scales_at(matrix.scales_at()),
        group_shift(lowest_bit(matrix.group)) {}

  __host__ __device__ static int lowest_bit(int value) {
#ifdef __CUDA_ARCH__
    return __ffs(value) - 1;
#else
    return std::countr_zero(static_cast<unsigned>(value));
#endif
  }
};

/// Runs of codes of each of a warp's outputs, with their scales.
template <MatrixFormat kFormat, int kRunsOfSlot>
struct CodeSlot {
  static constexpr int kRuns = kRunsOfSlot, kRunBytes = CodedMatrix::kRunBytes;
  static constexpr bool kScalePerRow = kFormat == MatrixFormat::kInt8;
  static constexpr int kWeights = Codes<kFormat>::kWeights;  // of a lane's piece
  static constexpr int kScales = kScalePerRow                    ? 4
                                 : kFormat == MatrixFormat::kNf4 ? 16
                                                                 : 8;  // of a run, at most

  uint4 codes[kRuns][kStreamOutputs][32];
  float scales[kStreamOutputs][kScalePerRow ? kScales : kRuns * kScales];  // of each row: with its last run

  static constexpr bool takes(const CodedMatrix& matrix) {
    return matrix.format == kFormat && matrix.in % kWeights == 0 && matrix.group % kWeights == 0 &&
           (kScalePerRow || matrix.scale_bytes(matrix.run()) <= kScales * 4) &&
           (kFormat != MatrixFormat::kNf4 || matrix.group == 64);
  }
  /// Scales of a run.
  __device__ static int run_scales(const CodeLayout& layout) {
    if constexpr (kScalePerRow) return 0;
    if constexpr (kFormat == MatrixFormat::kNf4) return kScales;
    return 32 * kWeights >> layout.group_shift;
  }
  /// Bytes of codes whose scales are 16 bytes.
  __device__ static int scale_piece(const CodeLayout& layout) {
    return kFormat == MatrixFormat::kNf4 ? 2 * 64 : 4 << layout.group_shift;
  }
};

/// Inputs of a row in shared memory: whole runs, and no less than two chains.
template <MatrixFormat kFormat>
constexpr int staged_width(int in) {
  constexpr int kSpan = 32 * Codes<kFormat>::kWeights;
  return (in + kSpan - 1) / kSpan * kSpan;
}

/// The next loads of a warp's two rows.
struct CodeCursor {
  int left = 0;                               ///< bytes of codes to come
  int to_scales = 0;                          ///< bytes from codes to their scales
  const std::byte* pieces[kStreamOutputs]{};  ///< the lane's of the next run

  __device__ void begin(const CodeLayout& layout, const void* rows, const int (&outputs)[kStreamOutputs]) {
    left = layout.code_bytes, to_scales = layout.scales_at;
#pragma unroll
    for (int which = 0; which < kStreamOutputs; ++which) {
      pieces[which] = static_cast<const std::byte*>(rows) + std::int64_t{outputs[which]} * layout.row_bytes +
                      threadIdx.x % 32 * 16;
    }
  }
  /// Copies of one slot; ends no group.
  template <MatrixFormat kFormat, int kRuns>
  __device__ void load(const CodeLayout& layout, CodeSlot<kFormat, kRuns>& to) {
    using Slot = CodeSlot<kFormat, kRuns>;
    constexpr int kBytes = kRuns * Slot::kRunBytes;
    const int lane = static_cast<int>(threadIdx.x % 32), run_scales = Slot::run_scales(layout);
    const bool has_scale = Slot::kScalePerRow
                               ? lane == 0 && left <= kBytes
                               : lane * 4 < kRuns * run_scales && lane * Slot::scale_piece(layout) < left;
#pragma unroll
    for (int which = 0; which < kStreamOutputs; ++which) {
#pragma unroll
      for (int run = 0; run < kRuns; ++run) {
        copy_16(&to.codes[run][which][lane], pieces[which] + run * Slot::kRunBytes,
                lane * 16 < left - run * Slot::kRunBytes);
      }
      if (has_scale) copy_16(&to.scales[which][lane * 4], pieces[which] + to_scales, true);
      pieces[which] += kBytes;
    }
    to_scales += kRuns * run_scales * 4 - kBytes;
    left -= kBytes;
  }
};

template <MatrixFormat kFormat, int kRuns, int kRows>
struct CodeProducts {
  using Format = Codes<kFormat>;
  using Slot = CodeSlot<kFormat, kRuns>;
  static constexpr int kSpan = 32 * Format::kWeights;      ///< inputs of a run
  static constexpr int kWords = Format::kWeights / 2 / 4;  ///< pairs of a word of codes

  const Format& format;
  const std::byte* x;  ///< [kRows, 2 · width] as stage_integers() (INT8) or stage_halves() leaves them
  const float* units;  ///< [kRows, width / kChain], of integers
  int width, inputs;
  int lane = static_cast<int>(threadIdx.x % 32);
  int run_scales, lane_scale;  ///< which of a run's scales is the lane's

  __device__ CodeProducts(const Format& decoder, const std::byte* from, const float* chain_units, int staged,
                          int in, const CodeLayout& layout)
      : format(decoder),
        x(from),
        units(chain_units),
        width(staged),
        inputs(in),
        run_scales(Slot::run_scales(layout)),
        lane_scale(Slot::kScalePerRow ? 0 : lane * Format::kWeights >> layout.group_shift) {}

  /// sums += products of a run that begins at input `first`.
  __device__ void add(int first, const Slot& slot, int run, float (&sums)[kStreamOutputs][kRows]) const {
    uint4 codes[kStreamOutputs];
#pragma unroll
    for (int which = 0; which < kStreamOutputs; ++which) codes[which] = slot.codes[run][which][lane];
    float part[kStreamOutputs][kRows] = {};
    const std::byte* from = x + first * 2 + lane * 16;
    if constexpr (kFormat == MatrixFormat::kInt8) {
      add_integers(from, units + (first + lane * Format::kWeights) / kChain, codes, part);
    } else {
      add_halves(from, codes, part);
    }
#pragma unroll
    for (int which = 0; which < kStreamOutputs; ++which) {
      float scale = 1;
      if constexpr (!Slot::kScalePerRow) {
        const bool present = first + lane * Format::kWeights < inputs;  // else there is no scale
        scale = present ? slot.scales[which][run * run_scales + lane_scale] : 0.0f;
      }
#pragma unroll
      for (int row = 0; row < kRows; ++row) sums[which][row] += part[which][row] * scale;
    }
  }

  __device__ void add_integers(const std::byte* from, const float* unit, const uint4 (&codes)[kStreamOutputs],
                               float (&part)[kStreamOutputs][kRows]) const {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const uint4 high = *reinterpret_cast<const uint4*>(from + row * width * 2);
      const uint4 low = *reinterpret_cast<const uint4*>(from + row * width * 2 + 512);
#pragma unroll
      for (int which = 0; which < kStreamOutputs; ++which) {
        const uint4& code = codes[which];
        int upper = 0, lower = 0;
        const auto add_four = [&](std::uint32_t four, std::uint32_t highs, std::uint32_t lows) {
          upper = __dp4a(static_cast<int>(four), static_cast<int>(highs), upper);
          lower = __dp4a(static_cast<int>(four), static_cast<int>(lows), lower);
        };
        add_four(code.x, high.x, low.x), add_four(code.y, high.y, low.y);
        add_four(code.z, high.z, low.z), add_four(code.w, high.w, low.w);
        part[which][row] = static_cast<float>(upper * 128 + lower) * unit[row * (width / kChain)];
      }
    }
  }

  __device__ void add_halves(const std::byte* from, const uint4 (&codes)[kStreamOutputs],
                             float (&part)[kStreamOutputs][kRows]) const {
#pragma unroll
    for (int sixteen = 0; sixteen < Format::kWeights / 16; ++sixteen) {
      half2 in[kRows][8];
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
#pragma unroll
        for (int eight = 0; eight < 2; ++eight) {
          *reinterpret_cast<uint4*>(&in[row][eight * 4]) =
              *reinterpret_cast<const uint4*>(from + row * width * 2 + (sixteen * 2 + eight) * 512);
        }
      }
#pragma unroll
      for (int which = 0; which < kStreamOutputs; ++which) {
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
  }

  /// The products of the two rows' sums, the same at every lane; sums are left zero. `last`: the slot of the
  /// rows' last run. factor: of each row of inputs.
  __device__ static void finish(const Slot& last, const float (&factor)[kRows],
                                float (&sums)[kStreamOutputs][kRows],
                                float (&results)[kStreamOutputs][kRows]) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
#pragma unroll
      for (int which = 0; which < kStreamOutputs; ++which) {
        results[which][row] = sum_over_lanes(sums[which][row]) * factor[row];
        if constexpr (Slot::kScalePerRow) results[which][row] *= last.scales[which][0];
        sums[which][row] = 0;
      }
    }
  }
};

}  // namespace mesh::engine::cuda
