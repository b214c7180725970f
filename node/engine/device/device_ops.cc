#include "node/engine/device/device_ops.h"

namespace mesh::engine {

StatusOr<bool> LinearLoader::fill_normal(std::uint64_t, float) {
  return false;
}

StatusOr<bool> QuantisedLoader::fill_random(std::uint64_t) {
  return false;
}

StatusOr<std::unique_ptr<QuantisedLoader>> DeviceOps::quantised_loader(std::int64_t, std::int64_t,
                                                                       ops::MatrixFormat) {
  return error(
      StatusCode::kFailedPrecondition,
      "this device computes with bfloat16 and float32 weights alone; quantised models run on the CPU "
      "(--device cpu)");
}

StageForward* DeviceOps::stage() {
  return nullptr;
}

std::uint64_t DeviceOps::stage_bytes(const StageShape&) const {
  return 0;
}

void DeviceOps::use_path(CudaPath) {}

}  // namespace mesh::engine
