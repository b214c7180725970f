#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "node/engine/ops/aligned_bytes.h"
#include "node/engine/ops/matrix.h"
#include "node/engine/ops/panel_layout.h"
#include "node/engine/ops/thread_pool.h"

namespace mesh::ops {

struct Kernels;  // kernels.h

/// Instruction sets that the kernels are compiled for. kPortable needs nothing beyond the compiler's
/// baseline.
enum class CpuPath : std::uint8_t { kPortable, kAvx2, kAvx512, kAvx512Bf16 };

std::string_view to_string(CpuPath path);  ///< portable, avx2, avx512, avx512_bf16
StatusOr<CpuPath> parse_cpu_path(std::string_view name);

/// The paths that this machine can run, best first; never empty.
std::vector<CpuPath> available_cpu_paths();

/// What every CPU op runs on: threads and the kernels of one path. Used by one thread at a time. An op's
/// result depends on the path (in its low bits), never on the number of threads.
class CpuBackend {
 public:
  struct Options {
    int threads = 1;
    std::optional<CpuPath> path;  ///< none: the best that the machine has
    /// Products may round their inputs (rounded_inputs.h) where that is faster.
    bool round_inputs = false;
  };
  /// kFailedPrecondition when the machine lacks the path that was asked for.
  static StatusOr<std::unique_ptr<CpuBackend>> create(const Options& options);

  ThreadPool& pool() { return pool_; }
  const Kernels& kernels() const { return *kernels_; }
  CpuPath path() const { return path_; }
  /// How matrices of `format` with rows of `in` weights are to be packed for this backend.
  PanelOrder order_of(MatrixFormat format, std::int64_t in) const;
  /// Working memory of an op, kept for the next one; at least `count` floats, 64-byte aligned, contents
  /// undefined.
  float* scratch(std::int64_t count);

 private:
  CpuBackend(const Options& options, CpuPath path, const Kernels* kernels)
      : pool_(options.threads), path_(path), kernels_(kernels), round_inputs_(options.round_inputs) {}

  ThreadPool pool_;
  CpuPath path_;
  const Kernels* kernels_;
  bool round_inputs_;
  AlignedBytes scratch_;
};

}  // namespace mesh::ops
