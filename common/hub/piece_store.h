#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/hub/file_io.h"

namespace mesh::hub {

/// Pieces [first, last) of a file.
struct PieceRun {
  std::uint64_t first = 0;
  std::uint64_t last = 0;

  std::uint64_t size() const { return last - first; }
  friend bool operator==(const PieceRun&, const PieceRun&) = default;
};

/// One mirrored file: `<folder>/data`, sparse, and `<folder>/data.pieces`, a bit for each piece that is whole
/// on the disk. Invariant: a bit is set only after its piece was synced to the disk, so a kill at any moment
/// leaves no bit without its bytes. Threads and processes may use the same folder: runs are claimed by locks
/// on `<folder>/lock`, which the kernel drops when their holder dies.
class PieceStore {
 public:
  static StatusOr<std::unique_ptr<PieceStore>> open(const std::filesystem::path& folder,
                                                    std::uint64_t file_size);

  const std::filesystem::path& data_path() const { return data_path_; }
  /// Whether the piece is whole, as of the last refresh() or commit().
  bool has(std::uint64_t piece) const;
  /// Bytes of [run.first, run.last) that are not whole yet.
  std::uint64_t missing_bytes(PieceRun run) const;
  /// Reads the bits that other processes have set meanwhile.
  Status refresh();

  /// The right to fetch a run; given back when it is destroyed.
  class Claim {
   public:
    explicit Claim(File lock) : lock_(std::move(lock)) {}

   private:
    File lock_;
  };
  /// Claims the run; when another thread or process has part of it: waits, or kAborted if `wait` is false.
  StatusOr<Claim> claim(PieceRun run, bool wait);

  /// Writes one whole piece; it counts after commit().
  Status write(std::uint64_t piece, std::string_view bytes);
  /// Syncs the data, then marks these pieces as whole.
  Status commit(const std::vector<std::uint64_t>& pieces);

 private:
  PieceStore(const std::filesystem::path& folder, std::uint64_t file_size);
  Status open_files();
  /// The bits as they lie in the file.
  StatusOr<std::string> read_bits() const;
  void add_bits(std::string_view bits);

  const std::filesystem::path data_path_;
  const std::filesystem::path bits_path_;
  const std::filesystem::path lock_path_;
  const std::uint64_t file_size_;
  const std::uint64_t pieces_;
  File data_;
  File bits_file_;
  mutable std::mutex mutex_;
  std::string bits_;  // guarded by mutex_, only ever set; bit i of byte j is piece 8·j + i
};

}  // namespace mesh::hub
