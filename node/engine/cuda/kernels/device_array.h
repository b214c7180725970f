#pragma once

#include <cuda_runtime_api.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

/// GPU memory and bfloat16 for the kernels' tests.
namespace mesh::engine::cuda {

inline bool has_gpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

template <class T>
class DeviceArray {
 public:
  /// Every byte 0xff: NaN where nothing writes.
  explicit DeviceArray(std::size_t count) : count_(count) {
    allocate();
    cudaMemset(data_, 0xff, count * sizeof(T));
  }
  explicit DeviceArray(const std::vector<T>& values) : count_(values.size()) {
    allocate();
    cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice);
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  T* data() { return data_; }
  std::vector<T> host() const {
    std::vector<T> values(count_);
    cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost);
    return values;
  }

 private:
  void allocate() {
    if (cudaMalloc(reinterpret_cast<void**>(&data_), count_ * sizeof(T)) != cudaSuccess) data_ = nullptr;
  }
  T* data_ = nullptr;
  std::size_t count_ = 0;
};

/// Page-locked host memory, every byte 0xff.
template <class T>
class HostArray {
 public:
  explicit HostArray(std::size_t count = 1) {
    if (cudaMallocHost(reinterpret_cast<void**>(&data_), count * sizeof(T)) != cudaSuccess) data_ = nullptr;
    std::memset(static_cast<void*>(data_), 0xff, count * sizeof(T));
  }
  ~HostArray() { cudaFreeHost(data_); }
  HostArray(const HostArray&) = delete;
  T* data() { return data_; }
  T* operator->() { return data_; }
  T& operator[](std::size_t index) { return data_[index]; }

 private:
  T* data_ = nullptr;
};

/// To nearest even.
inline std::uint16_t bf16(double value) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
inline double widened(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}
inline std::vector<std::uint16_t> to_bf16(const std::vector<double>& values) {
  std::vector<std::uint16_t> out;
  for (const double value : values) out.push_back(bf16(value));
  return out;
}
inline std::vector<double> from_bf16(const std::vector<std::uint16_t>& values) {
  std::vector<double> out;
  for (const std::uint16_t value : values) out.push_back(widened(value));
  return out;
}
inline std::vector<double> rounded(const std::vector<double>& values) {
  return from_bf16(to_bf16(values));
}
inline std::vector<float> to_float(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}
inline std::vector<double> from_float(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

}  // namespace mesh::engine::cuda
