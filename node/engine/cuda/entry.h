#pragma once

#include <memory>
#include <string>

#include "node/engine/device/device_ops.h"

namespace mesh::engine::cuda {

/// What libmeshnet_cuda.so hands over. Program and library are built together: `version` must be kVersion.
struct Entry {
  int version = 0;
  /// DeviceOps on GPU `device`. float32_compute: products in float32, else in bfloat16 with float32 sums.
  StatusOr<std::unique_ptr<DeviceOps>> (*make_ops)(int device, bool float32_compute) = nullptr;
};

inline constexpr int kVersion = 1;
inline constexpr const char* kEntryName = "meshnet_cuda_entry";
using EntryFunction = Entry (*)();

}  // namespace mesh::engine::cuda
