#include "node/engine/cuda/cuda_linear.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <stdexcept>

#include "node/engine/cuda/kernels/kernels.h"

namespace mesh::engine::cuda {
namespace {

class Loader final : public LinearLoader {
 public:
  Loader(int device, std::int64_t out, std::int64_t in, Element element)
      : stream_(c10::cuda::getStreamFromPool(false, static_cast<c10::DeviceIndex>(device))),
        result_(std::make_shared<CudaLinear>()) {
    status_ = run([&] { result_->weight = at::zeros({out, in}, on_gpu(type_of(element))); });
  }

  Status append_rows(const void* data, Element type, std::int64_t rows, std::int64_t stride) override {
    return run(
        [&] { put(host_view(data, type_of(type), rows, result_->weight.size(1), stride).to(at::kCUDA)); });
  }
  Status append_transposed(const void* data, Element type, std::int64_t outs, std::int64_t stride) override {
    return run([&] {
      put(host_view(data, type_of(type), result_->weight.size(1), outs, stride).to(at::kCUDA).t());
    });
  }
  Status set_bias(std::int64_t first, std::span<const float> values) override {
    return run([&] {
      if (!result_->bias.defined()) result_->bias = at::zeros({result_->weight.size(0)}, on_gpu(at::kFloat));
      result_->bias.narrow(0, first, static_cast<std::int64_t>(values.size()))
          .copy_(to_gpu(values, at::kFloat));
    });
  }
  StatusOr<bool> fill_normal(std::uint64_t seed, float deviation) override {
    MESH_RETURN_IF_ERROR(run([&] {
      at::Tensor& weight = result_->weight;
      const cudaError_t error =
          cuda::fill_normal(stream_.stream(), weight.data_ptr(), weight.scalar_type() == at::kBFloat16,
                            weight.numel(), seed, deviation);
      TORCH_CHECK(error == cudaSuccess, cudaGetErrorString(error));
      filled_ = weight.size(0);
    }));
    return true;
  }
  StatusOr<std::shared_ptr<const LinearWeight>> finish() override {
    MESH_RETURN_IF_ERROR(run([&] {
      if (filled_ != result_->weight.size(0)) throw std::runtime_error("rows of a matrix are missing");
      stream_.synchronize();
    }));
    return std::shared_ptr<const LinearWeight>(std::move(result_));
  }
  const Status& status() const { return status_; }

 private:
  void put(const at::Tensor& rows) {
    result_->weight.narrow(0, filled_, rows.size(0)).copy_(rows);
    filled_ += rows.size(0);
    stream_.synchronize();  // the source may go away
  }
  Status run(const std::function<void()>& body) {
    if (status_.ok()) {
      status_ = guarded([&] {
        const c10::InferenceMode inference;
        const c10::cuda::CUDAStreamGuard guard(stream_);
        body();
      });
    }
    return status_;
  }

  c10::cuda::CUDAStream stream_;
  std::shared_ptr<CudaLinear> result_;
  std::int64_t filled_ = 0;
  Status status_;
};

}  // namespace

StatusOr<std::unique_ptr<LinearLoader>> make_linear_loader(int device, std::int64_t out, std::int64_t in,
                                                           Element element) {
  std::unique_ptr<Loader> loader;
  MESH_RETURN_IF_ERROR(guarded([&] { loader = std::make_unique<Loader>(device, out, in, element); }));
  MESH_RETURN_IF_ERROR(loader->status());
  return loader;
}

Status guarded(const std::function<void()>& body) {
  try {
    body();
    return absl::OkStatus();
  } catch (const c10::OutOfMemoryError& failure) {
    return absl::ResourceExhaustedError(failure.what_without_backtrace());
  } catch (const c10::Error& failure) {
    return absl::InternalError(failure.what_without_backtrace());
  } catch (const std::exception& failure) {
    return absl::InternalError(failure.what());
  }
}

}  // namespace mesh::engine::cuda
