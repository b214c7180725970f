#pragma once

#include <c10/cuda/CUDAStream.h>

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <vector>

#include "node/engine/cuda/tensors.h"

namespace mesh::engine::cuda {

/// Page-locked memory through which loading threads copy to a GPU, on one stream of their own, so that steps
/// go on. Each thread fills one buffer while its last one is copied. Any thread; errors are exceptions.
class UploadBuffers {
 public:
  static constexpr std::size_t kBytes = 4u << 20;  ///< of one buffer

  /// `most` buffers, made when they are first needed.
  UploadBuffers(int device, std::size_t most);
  ~UploadBuffers();
  UploadBuffers(const UploadBuffers&) = delete;
  UploadBuffers& operator=(const UploadBuffers&) = delete;

  const c10::cuda::CUDAStream& stream() const { return stream_; }
  /// Copies `bytes` ≤ kBytes, which `fill` writes, to `to` on the device. Returns when they are written,
  /// maybe before they are copied.
  void send(void* to, std::size_t bytes, const std::function<void(std::byte*)>& fill);
  /// Until everything that was sent before has arrived.
  void wait() const { stream_.synchronize(); }

 private:
  struct Buffer {
    std::byte* memory = nullptr;
    cudaEvent_t copied = nullptr;  ///< of its last copy
  };
  Buffer take();
  void give_back(Buffer buffer);
  static Buffer make();
  static void free(Buffer& buffer);

  const c10::cuda::CUDAStream stream_;
  const std::size_t most_;
  std::mutex mutex_;
  std::condition_variable given_back_;
  std::vector<Buffer> idle_;  ///< the one whose copy is oldest first
  std::size_t made_ = 0;
};

}  // namespace mesh::engine::cuda
