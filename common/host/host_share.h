#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace mesh {

/// $XDG_RUNTIME_DIR/meshnet, else /tmp/meshnet-UID.
std::filesystem::path runtime_folder();
/// Bytes that could be used now: MemAvailable, or what the control group leaves if that is less.
StatusOr<std::uint64_t> available_memory();
/// Cores that this process may run on.
unsigned usable_cores();

/// This program's place among the programs of the machine, from enter() to destruction.
class HostShare {
 public:
  /// Memory left free for everything else when no size is asked for.
  static constexpr std::uint64_t kLeave = std::uint64_t{1} << 30;

  struct Request {
    std::string program;                  ///< for the others' messages
    std::optional<std::uint64_t> memory;  ///< none: what is free less kLeave less what others reserved
    std::optional<unsigned> threads;      ///< none: cores ÷ programs
  };

  /// With request.memory that much is reserved at once; without it memory() is what could be had now, and
  /// reserve() claims it bit by bit, so that programs without a size may share a machine. kResourceExhausted
  /// with needed, free and who holds the rest; kFailedPrecondition when the folder is not ours alone.
  static StatusOr<std::unique_ptr<HostShare>> enter(const std::filesystem::path& folder,
                                                    const Request& request);
  ~HostShare();
  HostShare(const HostShare&) = delete;
  HostShare& operator=(const HostShare&) = delete;

  /// Most that this program may use.
  std::uint64_t memory() const { return memory_; }
  /// Before `total` bytes are in use by this program. kResourceExhausted when others hold them; OK at once
  /// for what was reserved before.
  Status reserve(std::uint64_t total);
  unsigned threads() const { return threads_; }
  /// Programs on this machine when this one entered, itself included.
  unsigned programs() const { return programs_; }

 private:
  HostShare() = default;

  Status write() const;

  std::filesystem::path folder_;
  std::filesystem::path file_;
  std::string program_;
  int descriptor_ = -1;
  std::uint64_t reserved_ = 0;
  std::uint64_t memory_ = 0;
  unsigned threads_ = 1;
  unsigned programs_ = 1;
};

}  // namespace mesh
