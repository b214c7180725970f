#pragma once

#include <array>
#include <cstdint>

namespace mesh::engine {

/// Philox4x32-10: four words from a counter and a key. Salmon et al., "Parallel random numbers: as easy as 1,
/// 2, 3" (SC 2011); the test has the vectors that its authors publish (Random123, kat_vectors).
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key);

/// The random number of one token, in [0, 1): key = seed, counter = (position, choice, 0, 0), upper 24 bits
/// of the first word. Depends on nothing else.
float uniform_for(std::uint64_t seed, std::uint32_t choice, std::uint32_t position);

}  // namespace mesh::engine
