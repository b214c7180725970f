#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "node/engine/ops/backend.h"
#include "node/engine/ops/elementwise.h"

namespace mesh::ops {

inline std::unique_ptr<CpuBackend> backend_for(CpuPath path, int threads = 2) {
  auto backend = CpuBackend::create({threads, path});
  return backend.ok() ? *std::move(backend) : nullptr;
}

/// The paths of this machine whose float32 kernels differ: those of kAvx512Bf16 are kAvx512's.
inline std::vector<CpuPath> float32_paths() {
  std::vector<CpuPath> paths = available_cpu_paths();
  std::erase(paths, CpuPath::kAvx512Bf16);
  return paths;
}

/// Standard normal values, times `scale`.
inline std::vector<float> random_values(std::int64_t count, std::uint64_t seed, float scale = 1) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = scale * normal(engine);
  return values;
}

inline std::vector<float> rounded_to_bf16(std::vector<float> values) {
  for (float& value : values) value = to_float(to_bf16(value));
  return values;
}

inline Matrix as_matrix(std::vector<float>& values, std::int64_t rows) {
  return {values.data(), rows, static_cast<std::int64_t>(values.size()) / rows};
}
inline ConstMatrix as_const(const std::vector<float>& values, std::int64_t rows) {
  return {values.data(), rows, static_cast<std::int64_t>(values.size()) / rows};
}

inline bool same_bits(const float* a, const float* b, std::int64_t count) {
  return std::memcmp(a, b, static_cast<std::size_t>(count) * sizeof(float)) == 0;
}

inline std::string path_name(const testing::TestParamInfo<CpuPath>& info) {
  return std::string(to_string(info.param));
}

}  // namespace mesh::ops
