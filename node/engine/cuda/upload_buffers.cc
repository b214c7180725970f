#include "node/engine/cuda/upload_buffers.h"

#include <c10/cuda/CUDAGuard.h>

#include <new>
#include <utility>

namespace mesh::engine::cuda {

UploadBuffers::UploadBuffers(int device, std::size_t most)
    : stream_(c10::cuda::getStreamFromPool(false, static_cast<c10::DeviceIndex>(device))), most_(most) {}

UploadBuffers::~UploadBuffers() {
  const c10::cuda::CUDAGuard guard(stream_.device_index());
  for (Buffer& buffer : idle_) {
    cudaEventSynchronize(buffer.copied);
    free(buffer);
  }
}

UploadBuffers::Buffer UploadBuffers::make() {
  Buffer buffer;
  void* memory = nullptr;
  if (cudaHostAlloc(&memory, kBytes, cudaHostAllocDefault) != cudaSuccess) {
    cudaGetLastError();  // taken, so that no later call meets it
    throw std::bad_alloc();
  }
  buffer.memory = static_cast<std::byte*>(memory);
  if (cudaEventCreateWithFlags(&buffer.copied, cudaEventDisableTiming | cudaEventBlockingSync) !=
      cudaSuccess) {
    free(buffer);
    throw std::bad_alloc();
  }
  return buffer;
}

void UploadBuffers::free(Buffer& buffer) {
  if (buffer.copied != nullptr) cudaEventDestroy(std::exchange(buffer.copied, nullptr));
  cudaFreeHost(std::exchange(buffer.memory, nullptr));
}

UploadBuffers::Buffer UploadBuffers::take() {
  std::unique_lock lock(mutex_);
  const bool old_one_is_free = !idle_.empty() && cudaEventQuery(idle_.front().copied) == cudaSuccess;
  if (!old_one_is_free && made_ < most_) {
    ++made_;
    lock.unlock();
    try {
      return make();
    } catch (...) {
      lock.lock();
      --made_;
      given_back_.notify_all();
      if (made_ == 0) throw;
      lock.unlock();
    }
    lock.lock();  // the others are enough
  }
  given_back_.wait(lock, [&] { return !idle_.empty() || made_ == 0; });
  if (idle_.empty()) throw std::bad_alloc();
  Buffer buffer = idle_.front();
  idle_.erase(idle_.begin());
  return buffer;
}

void UploadBuffers::give_back(Buffer buffer) {
  {
    const std::lock_guard lock(mutex_);
    idle_.push_back(buffer);
  }
  given_back_.notify_one();
}

void UploadBuffers::send(void* to, std::size_t bytes, const std::function<void(std::byte*)>& fill) {
  TORCH_CHECK(bytes <= kBytes, "a piece of ", bytes, " bytes is longer than a buffer");
  const Buffer buffer = take();
  try {
    check(cudaEventSynchronize(buffer.copied));
    fill(buffer.memory);
    check(cudaMemcpyAsync(to, buffer.memory, bytes, cudaMemcpyHostToDevice, stream_));
    check(cudaEventRecord(buffer.copied, stream_));
  } catch (...) {
    give_back(buffer);
    throw;
  }
  give_back(buffer);
}

}  // namespace mesh::engine::cuda
