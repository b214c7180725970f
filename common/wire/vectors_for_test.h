#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "common/base/ids.h"

namespace mesh::wire {

/// Bytes of proto-docs/vectors/NAME, made by make_vectors.py there.
inline std::string read_vector(const std::string& name) {
  std::ifstream file(std::string(MESH_SOURCE_DIR) + "/proto-docs/vectors/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

/// `first`, first + 1, …: the ids and secrets of the vectors.
template <class Id>
Id counting_id(int first) {
  Id id;
  for (std::size_t i = 0; i < Id::kSize; ++i)
    id.bytes[i] = static_cast<std::uint8_t>(first + static_cast<int>(i));
  return id;
}

inline const auto kVectorSession = counting_id<SessionId>(0);
inline const auto kVectorIdentity = counting_id<ModelIdentity>(32);
inline const auto kVectorSecret = counting_id<SessionSecret>(100);

}  // namespace mesh::wire
