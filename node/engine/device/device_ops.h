#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "node/engine/ops/attention.h"
#include "node/engine/ops/linear.h"
#include "node/engine/ops/matrix.h"

namespace mesh::engine {

using ops::ConstMatrix;
using ops::Element;
using ops::Matrix;

/// Memory on a device, zero-filled, 64-byte aligned; freed by any thread.
using DeviceMemory = std::shared_ptr<std::byte>;

/// A matrix [out, in] in a device's own layout. Immutable.
class LinearWeight {
 public:
  virtual ~LinearWeight() = default;
  virtual std::int64_t out_features() const = 0;
  virtual std::int64_t in_features() const = 0;
  virtual std::uint64_t bytes() const = 0;
};

/// Fills one LinearWeight; the methods are those of ops::LinearPacker. For loader threads: several may put
/// rows at a time, each row once; what they come from may go away when the call returns.
class LinearLoader {
 public:
  virtual ~LinearLoader() = default;
  virtual Status put_rows(std::int64_t first, const void* data, Element type, std::int64_t rows,
                          std::int64_t stride) = 0;
  virtual Status put_transposed(std::int64_t first, const void* data, Element type, std::int64_t outs,
                                std::int64_t stride) = 0;
  virtual Status set_bias(std::int64_t first, std::span<const float> values) = 0;
  /// Makes all rows at once, normal(0, deviation) values of `seed`. False: this device does not, the caller
  /// puts rows.
  virtual StatusOr<bool> fill_normal(std::uint64_t seed, float deviation);
  virtual StatusOr<std::shared_ptr<const LinearWeight>> finish() = 0;
};

/// Fills one LinearWeight from quantised rows; the methods are those of ops::QuantisedPacker. For loader
/// threads, as LinearLoader.
class QuantisedLoader {
 public:
  virtual ~QuantisedLoader() = default;
  virtual Status put(std::int64_t first, const std::uint8_t* codes, const float* scales,
                     std::int64_t rows) = 0;
  virtual Status set_bias(std::int64_t first, std::span<const float> values) = 0;
  /// Makes all rows at once: random codes of `seed` that are numbers, with scales that give their weights a
  /// standard deviation near 0.02. False: this device does not, the caller puts rows.
  virtual StatusOr<bool> fill_random(std::uint64_t seed);
  virtual StatusOr<std::shared_ptr<const LinearWeight>> finish() = 0;
};

/// A piece of a cache that goes to host memory or comes back.
struct HostCopy {
  std::byte* device = nullptr;
  std::byte* host = nullptr;  ///< of allocate_host()
  std::uint64_t bytes = 0;
};

class StageForward;
struct StageShape;
enum class CudaPath : std::uint8_t;

/// What the layers compute with: one implementation per kind of device. Matrices and float pointers of the
/// compute methods are device memory, float32; the ops' meaning is that of node/engine/ops. Compute methods
/// are called by one thread at a time and may only enqueue: finish() waits and reports what failed since the
/// last finish().
class DeviceOps {
 public:
  virtual ~DeviceOps() = default;
  virtual std::uint64_t free_memory() const = 0;  ///< bytes that this process may still take

  // Any thread.
  virtual StatusOr<DeviceMemory> allocate(std::uint64_t bytes) = 0;
  /// Host memory that copies to and from the device are fast with; its contents are undefined.
  virtual StatusOr<DeviceMemory> allocate_host(std::uint64_t bytes);
  virtual StatusOr<DeviceMemory> upload_vector(std::span<const float> values) = 0;
  virtual StatusOr<std::unique_ptr<LinearLoader>> linear_loader(std::int64_t out, std::int64_t in,
                                                                Element element) = 0;
  /// `format`: a quantised one. A device that has no kernels for them refuses.
  virtual StatusOr<std::unique_ptr<QuantisedLoader>> quantised_loader(std::int64_t out, std::int64_t in,
                                                                      ops::MatrixFormat format);
  virtual std::int64_t kv_block_bytes(std::int64_t kv_heads, std::int64_t head_dim,
                                      Element element) const = 0;

  /// Copy between device and host and wait. For one thread at a time, beside steps that do not use this
  /// memory; what earlier steps wrote is there.
  virtual Status copy_to_host(std::span<const HostCopy> copies);
  virtual Status copy_from_host(std::span<const HostCopy> copies);

  // The executor alone.
  virtual void copy(const std::byte* from, std::byte* to, std::uint64_t bytes) = 0;  ///< on the device
  virtual void upload(std::span<const float> host, float* device) = 0;
  virtual void download(ConstMatrix device, float* host) = 0;      ///< waits
  virtual void upload_bf16(const void* host, Matrix device) = 0;   ///< no gaps on the host, maybe unaligned
  virtual void download_bf16(ConstMatrix device, void* host) = 0;  ///< rounds to nearest even; waits
  virtual bool all_finite(ConstMatrix x) = 0;                      ///< waits
  virtual void embed(const LinearWeight& table, std::span<const std::int32_t> rows, Matrix out) = 0;
  virtual void linear(const LinearWeight& weight, ConstMatrix x, Matrix y, ops::Store store) = 0;
  virtual void rms_norm(ConstMatrix x, const float* weight, float epsilon, Matrix out) = 0;
  virtual void rms_norm_heads(Matrix x, std::int64_t heads, const float* weight, float epsilon) = 0;
  virtual void layer_norm(ConstMatrix x, const float* weight, const float* bias, float epsilon,
                          Matrix out) = 0;
  virtual void rotary(Matrix x, std::int64_t heads, ConstMatrix cos, ConstMatrix sin) = 0;
  virtual void append_kv(const ops::KvLayout& layout, std::span<const ops::AttentionSegment> segments,
                         ConstMatrix k, ConstMatrix v) = 0;
  virtual void attention(const ops::KvLayout& layout, const ops::AttentionOptions& options,
                         std::span<const ops::AttentionSegment> segments, ConstMatrix q, Matrix out) = 0;
  virtual void silu_mul(ConstMatrix x, Matrix out) = 0;
  virtual void gelu_tanh(Matrix x) = 0;
  virtual void gelu_exact(Matrix x) = 0;
  virtual void add(Matrix x, ConstMatrix y) = 0;
  virtual void gather_rows(ConstMatrix x, std::span<const std::int32_t> rows, Matrix out) = 0;
  virtual Status finish() = 0;

  /// The device's own way through a whole forward (device/stage_forward.h), or null.
  virtual StageForward* stage();
  /// Device memory that it takes for a model, beside the workspace.
  virtual std::uint64_t stage_bytes(const StageShape& shape) const;
  /// Which of its ways a GPU takes; before the first step.
  virtual void use_path(CudaPath path);
};

/// Bytes of host memory that are free: MemAvailable of /proc/meminfo.
std::uint64_t free_host_memory();

/// The kernels of node/engine/ops on `threads` threads; `round_inputs`: of products (ops::CpuBackend);
/// `path`: auto or an ops::CpuPath.
StatusOr<std::unique_ptr<DeviceOps>> make_cpu_ops(unsigned threads, bool round_inputs = false,
                                                  std::string_view path = "auto");

}  // namespace mesh::engine
