#pragma once

#include <cstdint>
#include <filesystem>

#include "common/base/ids.h"
#include "common/base/status.h"

namespace mesh {

/// What an identity must remember from start to start, in one small file of the data folder, replaced at once
/// or not at all. One process at a time: main locks the data folder.
class AgentStateFile {
 public:
  /// Counts this start and stores that before it returns, so that a stamp is never used twice.
  static StatusOr<AgentStateFile> begin_start(const std::filesystem::path& data_folder);

  std::uint64_t start() const { return start_; }
  Epoch highest_epoch() const { return epoch_; }
  Status store_epoch(Epoch epoch);

 private:
  AgentStateFile() = default;
  Status write() const;

  std::filesystem::path file_;
  std::uint64_t start_ = 0;
  Epoch epoch_;
};

}  // namespace mesh
