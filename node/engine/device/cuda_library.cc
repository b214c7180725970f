#include "node/engine/device/cuda_library.h"

#include <dlfcn.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "node/engine/cuda/entry.h"

namespace mesh::engine {
namespace {

constexpr int kNeededDriver = 13000, kNeededCapability = 75;
constexpr const char* kNeeds =
    "needed are an NVIDIA GPU of compute capability 7.5 or newer and driver 580 or newer";

/// "580.95.05" from the kernel module's version line, or empty.
std::string kernel_driver_version() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string word, last;
  for (int i = 0; i < 20 && file >> word; ++i) {
    if (word.find_first_not_of("0123456789.") == std::string::npos && word.find('.') != std::string::npos)
      return word;
  }
  return "";
}

/// The driver's C functions (cuda.h), by the types that their documentation gives.
struct Driver {
  int (*init)(unsigned flags);
  int (*version)(int* version);
  int (*count)(int* count);
  int (*device)(int* device, int ordinal);
  int (*attribute)(int* value, int attribute, int device);
  int (*name)(char* name, int length, int device);
};
constexpr int kMajorAttribute = 75, kMinorAttribute = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_…

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

bool load(void* library, Driver& driver) {
  return find(library, "cuInit", driver.init) && find(library, "cuDriverGetVersion", driver.version) &&
         find(library, "cuDeviceGetCount", driver.count) && find(library, "cuDeviceGet", driver.device) &&
         find(library, "cuDeviceGetAttribute", driver.attribute) &&
         find(library, "cuDeviceGetName", driver.name);
}

std::vector<std::string> candidates(const std::string& path) {
  if (!path.empty()) return {path};
  std::error_code ignored;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  return {folder / "libmeshnet_cuda.so", folder.parent_path() / "lib" / "libmeshnet_cuda.so"};
}

}  // namespace

GpuReport judge_gpu(int driver, const std::string& driver_version, int capability, const std::string& name) {
  const std::string shown = driver_version.empty()
                                ? fmt::format("for CUDA {}.{}", driver / 1000, driver % 1000 / 10)
                                : driver_version;
  if (driver == 0) {
    return {false,
            fmt::format("no NVIDIA driver was found; {}; install NVIDIA's driver package from its own "
                        "repository, Debian's are older",
                        kNeeds),
            "no NVIDIA GPU with its driver was found"};
  }
  if (driver < kNeededDriver) {
    return {false,
            fmt::format("the NVIDIA driver is {}, too old; {}; install the driver from NVIDIA's repository "
                        "(package nvidia-open or cuda-drivers) and restart",
                        shown, kNeeds),
            fmt::format("the NVIDIA driver is {}, needed is 580 or newer", shown)};
  }
  if (capability == 0) {
    return {
        false,
        fmt::format("driver {} reports no GPU; {}; check nvidia-smi and CUDA_VISIBLE_DEVICES", shown, kNeeds),
        "the NVIDIA driver reports no GPU"};
  }
  if (capability < kNeededCapability) {
    return {false,
            fmt::format("{} has compute capability {}.{}, too old; {}", name, capability / 10,
                        capability % 10, kNeeds),
            fmt::format("{} is too old", name)};
  }
  return {
      true,
      fmt::format("{}, compute capability {}.{}, driver {}", name, capability / 10, capability % 10, shown),
      ""};
}

GpuReport probe_gpu() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  Driver driver{};
  if (library == nullptr || !load(library, driver)) return judge_gpu(0, "", 0, "");
  int version = 0, count = 0, device = 0, major = 0, minor = 0;
  char name[256] = "the GPU";
  driver.version(&version);
  const std::string shown = kernel_driver_version();
  if (driver.init(0) != 0 || driver.count(&count) != 0 || count == 0 || driver.device(&device, 0) != 0) {
    return judge_gpu(version, shown, 0, "");
  }
  driver.attribute(&major, kMajorAttribute, device);
  driver.attribute(&minor, kMinorAttribute, device);
  driver.name(name, sizeof name - 1, device);
  return judge_gpu(version, shown, 10 * major + minor, name);
}

StatusOr<std::unique_ptr<DeviceOps>> open_cuda_ops(const std::string& path, bool float32_compute,
                                                   std::string& found) {
  const GpuReport gpu = probe_gpu();
  if (!gpu.usable) {
    found = gpu.found;
    return error(StatusCode::kFailedPrecondition, "no usable GPU: {}", gpu.text);
  }
  std::string reasons;
  for (const std::string& candidate : candidates(path)) {
    void* library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      reasons += fmt::format("{}{}", reasons.empty() ? "" : "; ", dlerror());
      continue;
    }
    const auto entry = reinterpret_cast<cuda::EntryFunction>(dlsym(library, cuda::kEntryName));
    if (entry == nullptr || entry().version != cuda::kVersion) {
      found = "the CUDA part is of another version than this program, install both anew";
      return error(StatusCode::kFailedPrecondition,
                   "{} is of another version than this program; install both anew", candidate);
    }
    auto ops = entry().make_ops(0, float32_compute);
    if (!ops.ok()) found = "the GPU cannot be used";
    return ops;
  }
  found = "a GPU is here, but the CUDA part is not: install it with deploy/setup --cuda";
  return error(
      StatusCode::kFailedPrecondition,
      "no usable GPU: found {}, but the CUDA part cannot be opened ({}); install it with deploy/setup --cuda",
      gpu.text, reasons);
}

}  // namespace mesh::engine
