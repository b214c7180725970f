#include "node/engine/ops/backend.h"

#include <algorithm>
#include <new>

#include "node/engine/ops/kernels.h"

namespace mesh::ops {
namespace {
const Kernels& kernels_of(CpuPath path) {
#ifdef MESH_X86_KERNELS
  if (path == CpuPath::kAvx512Bf16) return avx512_bf16_kernels();
  if (path == CpuPath::kAvx512) return avx512_kernels();
  if (path == CpuPath::kAvx2) return avx2_kernels();
#endif
  static_cast<void>(path);
  return portable_kernels();
}
}  // namespace

std::string_view to_string(CpuPath path) {
  switch (path) {
    case CpuPath::kAvx2:
      return "avx2";
    case CpuPath::kAvx512:
      return "avx512";
    case CpuPath::kAvx512Bf16:
      return "avx512_bf16";
    case CpuPath::kPortable:
      break;
  }
  return "portable";
}

StatusOr<CpuPath> parse_cpu_path(std::string_view name) {
  for (const CpuPath path : {CpuPath::kPortable, CpuPath::kAvx2, CpuPath::kAvx512, CpuPath::kAvx512Bf16}) {
    if (name == to_string(path)) return path;
  }
  return error(StatusCode::kInvalidArgument,
               "unknown CPU path \"{}\": use portable, avx2, avx512 or avx512_bf16", name);
}

std::vector<CpuPath> available_cpu_paths() {
  std::vector<CpuPath> paths;
#ifdef MESH_X86_KERNELS
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni")) {
        paths.push_back(CpuPath::kAvx512Bf16);
      }
      paths.push_back(CpuPath::kAvx512);
    }
    paths.push_back(CpuPath::kAvx2);
  }
#endif
  paths.push_back(CpuPath::kPortable);
  return paths;
}

StatusOr<std::unique_ptr<CpuBackend>> CpuBackend::create(const Options& options) {
  if (options.threads < 1) return error(StatusCode::kInvalidArgument, "threads must be at least 1");
  const std::vector<CpuPath> paths = available_cpu_paths();
  const CpuPath path = options.path.value_or(paths.front());
  if (std::find(paths.begin(), paths.end(), path) == paths.end()) {
    return error(StatusCode::kFailedPrecondition, "this CPU cannot run the {} path; its best is {}",
                 to_string(path), to_string(paths.front()));
  }
  return std::unique_ptr<CpuBackend>(new CpuBackend(options, path, &kernels_of(path)));
}

PanelOrder CpuBackend::order_of(MatrixFormat format, std::int64_t in) const {
  const bool rounds = round_inputs_ && kernels_->dots[static_cast<std::size_t>(format)].dot != nullptr;
  return rounds && in % pairs_multiple(format) == 0 ? PanelOrder::kPairs : PanelOrder::kOutputs;
}

float* CpuBackend::scratch(std::int64_t count) {
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float);
  if (bytes > scratch_.size()) {
    scratch_ = AlignedBytes();
    auto larger = AlignedBytes::allocate(bytes + bytes / 4);
    if (!larger.ok()) throw std::bad_alloc();
    scratch_ = *std::move(larger);
  }
  return reinterpret_cast<float*>(scratch_.data());
}

}  // namespace mesh::ops
