#pragma once

#include <cstdint>

namespace mesh::engine::cuda {

/// Two normal values of seed and index (SplitMix64, then Box and Muller).
__device__ inline float2 normal_pair(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  z ^= z >> 31;
  const float u = (static_cast<float>(z >> 40) + 0.5f) * 0x1p-24f,
              v = static_cast<float>(z & 0xffffff) * 0x1p-24f;
  const float radius = sqrtf(-2 * logf(u));
  float s = 0, c = 0;
  sincospif(2 * v, &s, &c);
  return {radius * c, radius * s};
}

}  // namespace mesh::engine::cuda
