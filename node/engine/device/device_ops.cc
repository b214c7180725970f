#include "node/engine/device/device_ops.h"

#include <cstring>

#include "node/engine/ops/aligned_bytes.h"

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

StatusOr<DeviceMemory> DeviceOps::allocate_host(std::uint64_t bytes) {
  MESH_ASSIGN_OR_RETURN(ops::AlignedBytes memory, ops::AlignedBytes::allocate(bytes));
  auto owner = std::make_shared<ops::AlignedBytes>(std::move(memory));
  return DeviceMemory(owner, owner->data());
}

Status DeviceOps::copy_to_host(std::span<const HostCopy> copies) {
  for (const HostCopy& copy : copies) std::memcpy(copy.host, copy.device, copy.bytes);
  return absl::OkStatus();
}

Status DeviceOps::copy_from_host(std::span<const HostCopy> copies) {
  for (const HostCopy& copy : copies) std::memcpy(copy.device, copy.host, copy.bytes);
  return absl::OkStatus();
}

StageForward* DeviceOps::stage() {
  return nullptr;
}

std::uint64_t DeviceOps::stage_bytes(const StageShape&) const {
  return 0;
}

void DeviceOps::use_path(CudaPath) {}

}  // namespace mesh::engine
