#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "node/engine/cuda/cuda_linear.h"
#include "node/engine/cuda/cuda_stage.h"
#include "node/engine/cuda/entry.h"
#include "node/engine/cuda/kv_kernels.h"
#include "node/engine/cuda/tensors.h"
#include "node/engine/engine.h"

namespace mesh::engine::cuda {
namespace {

constexpr std::size_t kUploadBuffers = 16;  // two for each of eight loading threads

const CudaLinear& own(const LinearWeight& weight) {
  return static_cast<const CudaLinear&>(weight);
}

/// The first error since the last finish() is kept; later operations are skipped.
class CudaOps final : public DeviceOps {
 public:
  CudaOps(int device, bool float32_compute) : device_(device), float32_(float32_compute) {}

  std::uint64_t free_memory() const override {
    std::size_t free = 0, total = 0;
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device_));
    return cudaMemGetInfo(&free, &total) == cudaSuccess ? free : 0;
  }
  StatusOr<DeviceMemory> allocate(std::uint64_t bytes) override {
    DeviceMemory memory;
    MESH_RETURN_IF_ERROR(guarded([&] {
      const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device_));
      auto tensor =
          std::make_shared<at::Tensor>(at::zeros({static_cast<std::int64_t>(bytes)}, on_gpu(at::kByte)));
      c10::cuda::getCurrentCUDAStream().synchronize();
      memory = DeviceMemory(tensor, static_cast<std::byte*>(tensor->data_ptr()));
    }));
    return memory;
  }
  StatusOr<DeviceMemory> upload_vector(std::span<const float> values) override {
    MESH_ASSIGN_OR_RETURN(DeviceMemory memory, allocate(std::max<std::uint64_t>(values.size_bytes(), 1)));
    MESH_RETURN_IF_ERROR(guarded([&] {
      check(cudaMemcpy(memory.get(), values.data(), values.size_bytes(), cudaMemcpyHostToDevice));
    }));
    return memory;
  }
  StatusOr<std::unique_ptr<LinearLoader>> linear_loader(std::int64_t out, std::int64_t in,
                                                        Element element) override {
    MESH_ASSIGN_OR_RETURN(auto buffers, uploads());
    return make_linear_loader(std::move(buffers), out, in, element);
  }
  StatusOr<std::unique_ptr<QuantisedLoader>> quantised_loader(std::int64_t out, std::int64_t in,
                                                              ops::MatrixFormat format) override {
    MESH_ASSIGN_OR_RETURN(auto buffers, uploads());
    return make_quantised_loader(std::move(buffers), out, in, format);
  }
  std::int64_t kv_block_bytes(std::int64_t kv_heads, std::int64_t head_dim, Element element) const override {
    return 2 * ops::KvLayout::kBlock * kv_heads * head_dim * ops::element_size(element);
  }

  StatusOr<DeviceMemory> allocate_host(std::uint64_t bytes) override {
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device_));
    void* data = nullptr;
    if (const cudaError_t failed = cudaHostAlloc(&data, bytes, cudaHostAllocDefault); failed != cudaSuccess) {
      cudaGetLastError();  // taken, so that no later call meets it
      return error(StatusCode::kResourceExhausted, "no pinned host memory for {} bytes: {}", bytes,
                   cudaGetErrorString(failed));
    }
    return DeviceMemory(static_cast<std::byte*>(data), [](std::byte* memory) { cudaFreeHost(memory); });
  }

  Status copy_to_host(std::span<const HostCopy> copies) override {
    return beside_steps(copies, [](const HostCopy& copy, cudaStream_t stream) {
      return cudaMemcpyAsync(copy.host, copy.device, copy.bytes, cudaMemcpyDeviceToHost, stream);
    });
  }
  Status copy_from_host(std::span<const HostCopy> copies) override {
    return beside_steps(copies, [](const HostCopy& copy, cudaStream_t stream) {
      return cudaMemcpyAsync(copy.device, copy.host, copy.bytes, cudaMemcpyHostToDevice, stream);
    });
  }
  void copy(const std::byte* from, std::byte* to, std::uint64_t bytes) override {
    run([&] {
      check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice));
      c10::cuda::getCurrentCUDAStream().synchronize();  // the fused path has another stream
    });
  }
  void upload(std::span<const float> host, float* device) override {
    run([&] { check(cudaMemcpy(device, host.data(), host.size_bytes(), cudaMemcpyHostToDevice)); });
  }
  void download(ConstMatrix device, float* host) override {
    run([&] { host_view(host, at::kFloat, device.rows, device.cols, device.cols).copy_(view(device)); });
  }
  void upload_bf16(const void* host, Matrix device) override {
    run([&] {
      view(device).copy_(host_view(host, at::kBFloat16, device.rows, device.cols, device.cols).to(at::kCUDA));
    });
  }
  void download_bf16(ConstMatrix device, void* host) override {
    run([&] {
      host_view(host, at::kBFloat16, device.rows, device.cols, device.cols)
          .copy_(view(device).to(at::kBFloat16));
    });
  }
  bool all_finite(ConstMatrix x) override {
    bool finite = false;
    run([&] { finite = at::isfinite(view(x)).all().item<bool>(); });
    return finite;
  }
  void embed(const LinearWeight& table, std::span<const std::int32_t> rows, Matrix out) override {
    run([&] { view(out).copy_(own(table).values(at::kFloat, to_gpu(rows, at::kInt))); });
  }

  /// bfloat16 compute: both operands bfloat16, sums and result float32.
  void linear(const LinearWeight& weight, ConstMatrix x, Matrix y, ops::Store store) override {
    run([&] {
      const CudaLinear& matrix = own(weight);
      at::Tensor product;
      if (float32_ || (!matrix.is_coded() && matrix.weight.scalar_type() == at::kFloat)) {
        product = at::mm(view(x), matrix.values(at::kFloat).t());
      } else {
        product = at::mm(view(x).to(at::kBFloat16), matrix.values(at::kBFloat16).t(), at::kFloat);
      }
      if (matrix.bias.defined()) product.add_(matrix.bias);
      at::Tensor target = view(y);
      store == ops::Store::kAdd ? target.add_(product) : target.copy_(product);
    });
  }
  void rms_norm(ConstMatrix x, const float* weight, float epsilon, Matrix out) override {
    run([&] { view(out).copy_(normalised(view(x), epsilon) * view(weight, x.cols)); });
  }
  void rms_norm_heads(Matrix x, std::int64_t heads, const float* weight, float epsilon) override {
    run([&] {
      const at::Tensor per_head = view(x).unflatten(1, {heads, -1});
      per_head.copy_(normalised(per_head, epsilon) * view(weight, x.cols / heads));
    });
  }
  void layer_norm(ConstMatrix x, const float* weight, const float* bias, float epsilon, Matrix out) override {
    run([&] {
      const std::optional<at::Tensor> shift =
          bias == nullptr ? std::nullopt : std::optional(view(bias, x.cols));
      view(out).copy_(at::layer_norm(view(x), {x.cols}, view(weight, x.cols), shift, epsilon));
    });
  }
  void rotary(Matrix x, std::int64_t heads, ConstMatrix cos, ConstMatrix sin) override {
    run([&] {
      const at::Tensor per_head = view(x).unflatten(1, {heads, -1});
      const at::Tensor c = view(cos).unsqueeze(1), s = view(sin).unsqueeze(1);
      const at::Tensor first = per_head.narrow(2, 0, cos.cols),
                       second = per_head.narrow(2, cos.cols, cos.cols);
      const at::Tensor turned = first * c - second * s;
      second.copy_(second * c + first * s);
      first.copy_(turned);
    });
  }

  void append_kv(const ops::KvLayout& layout, std::span<const ops::AttentionSegment> segments, ConstMatrix k,
                 ConstMatrix v) override {
    run([&] {
      for (const ops::AttentionSegment& segment : segments) {
        const at::Tensor table = block_table(segment);
        check(cuda::append_kv(blocks(layout, table), k.row(segment.first_row), v.row(segment.first_row),
                              k.stride, segment.start, segment.rows, c10::cuda::getCurrentCUDAStream()));
      }
    });
  }
  void attention(const ops::KvLayout& layout, const ops::AttentionOptions& options,
                 std::span<const ops::AttentionSegment> segments, ConstMatrix q, Matrix out) override {
    run([&] {
      for (const ops::AttentionSegment& segment : segments) attend(layout, options, segment, q, out);
    });
  }

  void silu_mul(ConstMatrix x, Matrix out) override {
    run([&] {
      view(out).copy_(at::silu(view(x).narrow(1, 0, out.cols)) * view(x).narrow(1, out.cols, out.cols));
    });
  }
  void gelu_tanh(Matrix x) override {
    run([&] { view(x).copy_(at::gelu(view(x), "tanh")); });
  }
  void gelu_exact(Matrix x) override {
    run([&] { view(x).copy_(at::gelu(view(x), "none")); });
  }
  void add(Matrix x, ConstMatrix y) override {
    run([&] { view(x).add_(view(y)); });
  }
  void gather_rows(ConstMatrix x, std::span<const std::int32_t> rows, Matrix out) override {
    run([&] { view(out).copy_(view(x).index_select(0, to_gpu(rows, at::kInt))); });
  }
  StageForward* stage() override { return stage_.get(); }
  std::uint64_t stage_bytes(const StageShape& shape) const override {
    return stage_ ? cuda_stage_bytes(shape) : 0;
  }
  void use_path(CudaPath path) override {
    stage_.reset();
    if (float32_ || path == CudaPath::kEager) return;
    const bool portable = path == CudaPath::kPortable, hopper = !portable && path != CudaPath::kAmpere;
    run([&] {
      stage_ = make_cuda_stage(device_, {.graphs = path != CudaPath::kLaunches,
                                         .tensor_cores = !portable,
                                         .overlap = hopper,
                                         .warpgroups = hopper});
    });
  }
  Status finish() override {
    run([&] { c10::cuda::getCurrentCUDAStream().synchronize(); });
    return std::exchange(status_, absl::OkStatus());
  }

 private:
  /// Those of the loads that are under way.
  StatusOr<std::shared_ptr<UploadBuffers>> uploads() {
    const std::lock_guard lock(uploads_mutex_);
    std::shared_ptr<UploadBuffers> buffers = uploads_.lock();
    if (buffers) return buffers;
    MESH_RETURN_IF_ERROR(
        guarded([&] { buffers = std::make_shared<UploadBuffers>(device_, kUploadBuffers); }));
    uploads_ = buffers;
    return buffers;
  }
  /// On a stream of its own, which is waited for: no step has work there.
  template <class Enqueue>
  Status beside_steps(std::span<const HostCopy> copies, const Enqueue& enqueue) const {
    return guarded([&] {
      const auto device = static_cast<c10::DeviceIndex>(device_);
      const c10::cuda::CUDAGuard guard(device);
      const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool(false, device);
      cudaError_t failed = cudaSuccess;
      for (const HostCopy& copy : copies) {
        if (failed == cudaSuccess) failed = enqueue(copy, stream.stream());
      }
      stream.synchronize();  // in any case: their memory may go away
      check(failed);
    });
  }
  void run(const std::function<void()>& body) {
    if (!status_.ok()) return;
    status_ = guarded([&] {
      const c10::InferenceMode inference;
      const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device_));
      body();
    });
  }
  static at::Tensor normalised(const at::Tensor& x, float epsilon) {
    return x * at::rsqrt(x.square().mean(-1, true) + epsilon);
  }
  static at::Tensor block_table(const ops::AttentionSegment& segment) {
    std::vector<std::int64_t> addresses;
    for (std::byte* block : segment.blocks) addresses.push_back(reinterpret_cast<std::int64_t>(block));
    return to_gpu(std::span<const std::int64_t>(addresses), at::kLong);
  }
  static KvBlocks blocks(const ops::KvLayout& layout, const at::Tensor& table) {
    return {reinterpret_cast<std::byte* const*>(table.data_ptr<std::int64_t>()), layout.kv_heads,
            layout.head_dim, layout.element == Element::kBf16};
  }

  /// [rows, keys], added to the scores.
  static at::Tensor mask_of(const ops::AttentionOptions& options, const ops::AttentionSegment& segment,
                            std::int64_t keys) {
    const at::Tensor row = at::arange(segment.start, keys, on_gpu(at::kLong)).unsqueeze(1);
    const at::Tensor key = at::arange(keys, on_gpu(at::kLong)).unsqueeze(0);
    at::Tensor mask = at::zeros({segment.rows, keys}, on_gpu(at::kFloat));
    if (segment.mask != nullptr) {
      mask.copy_(host_view(segment.mask, at::kFloat, segment.rows, keys, segment.mask_stride).to(at::kCUDA));
    } else {
      mask.masked_fill_(key > row, -std::numeric_limits<float>::infinity());
    }
    if (options.window > 0)
      mask.masked_fill_(key <= row - options.window, -std::numeric_limits<float>::infinity());
    return mask;
  }

  static void attend(const ops::KvLayout& layout, const ops::AttentionOptions& options,
                     const ops::AttentionSegment& segment, ConstMatrix q, Matrix out) {
    const std::int64_t keys = segment.start + segment.rows;
    const at::Tensor table = block_table(segment);
    const at::Tensor k = at::empty({keys, layout.kv_heads, layout.head_dim}, on_gpu(at::kFloat));
    const at::Tensor v = at::empty_like(k);
    check(gather_kv(blocks(layout, table), k.data_ptr<float>(), v.data_ptr<float>(), keys,
                    c10::cuda::getCurrentCUDAStream()));
    const std::int64_t group = options.heads / layout.kv_heads;
    const auto per_head = [&](const at::Tensor& x) {
      return x.permute({1, 0, 2}).repeat_interleave(group, 0).unsqueeze(0);
    };
    const at::Tensor queries = view(q.row_range(segment.first_row, segment.rows))
                                   .unflatten(1, {options.heads, -1})
                                   .transpose(0, 1)
                                   .unsqueeze(0);
    const at::Tensor mask = mask_of(options, segment, keys);
    const at::Tensor result = at::scaled_dot_product_attention(queries, per_head(k), per_head(v), mask, 0.0,
                                                               false, double{options.scale});
    view(out.row_range(segment.first_row, segment.rows)).copy_(result.squeeze(0).transpose(0, 1).flatten(1));
  }

  const int device_;
  const bool float32_;
  std::mutex uploads_mutex_;
  std::weak_ptr<UploadBuffers> uploads_;
  std::unique_ptr<StageForward> stage_;  // none: op by op
  Status status_;
};

StatusOr<std::unique_ptr<DeviceOps>> make_ops(int device, bool float32_compute) {
  auto ops = std::make_unique<CudaOps>(device, float32_compute);
  MESH_RETURN_IF_ERROR(ops->allocate(1).status());
  return ops;
}

}  // namespace
}  // namespace mesh::engine::cuda

extern "C" __attribute__((visibility("default"))) mesh::engine::cuda::Entry meshnet_cuda_entry() {
  return {mesh::engine::cuda::kVersion, mesh::engine::cuda::make_ops};
}
