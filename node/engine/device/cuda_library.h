#pragma once

#include <memory>
#include <string>

#include "node/engine/device/device_ops.h"

namespace mesh::engine {

/// A GPU's state as the driver reports it.
struct GpuReport {
  bool usable = false;
  std::string text;   ///< usable: name and capability; else what was found, what is needed, how to get it
  std::string found;  ///< not usable: what was found, in a few words
};

/// Asks the driver (libcuda.so.1, opened at run time) about GPU 0. Opens nothing of CUDA's runtime.
GpuReport probe_gpu();
/// The rule behind it: `driver` as in 13000 for CUDA 13.0 (0: no driver), capability as in 75 (0: no GPU).
GpuReport judge_gpu(int driver, const std::string& driver_version, int capability, const std::string& name);

/// Opens libmeshnet_cuda.so (`path`, or beside the program and in its ../lib) and makes the ops of GPU 0.
/// kFailedPrecondition with the reason and the fix; `found` then has the reason in a few words.
StatusOr<std::unique_ptr<DeviceOps>> open_cuda_ops(const std::string& path, bool float32_compute,
                                                   std::string& found);

}  // namespace mesh::engine
