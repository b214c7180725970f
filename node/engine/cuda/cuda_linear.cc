#include "node/engine/cuda/cuda_linear.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <stdexcept>

#include "node/engine/ops/quantise.h"

namespace mesh::engine::cuda {
namespace {

constexpr float kDeviation = 0.02f;  // of made-up weights

/// What both loaders do: one matrix filled row by row on a stream of its own.
class Filling {
 public:
  Filling(int device, std::int64_t out, std::int64_t in)
      : stream_(c10::cuda::getStreamFromPool(false, static_cast<c10::DeviceIndex>(device))),
        result_(std::make_shared<CudaLinear>()) {
    result_->out = out, result_->in = in;
  }
  CudaLinear& result() { return *result_; }
  cudaStream_t stream() const { return stream_.stream(); }
  const Status& status() const { return status_; }
  void filled(std::int64_t rows) { filled_ += rows; }
  std::int64_t next_row() const { return filled_; }
  void wait() { stream_.synchronize(); }

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
  Status set_bias(std::int64_t first, std::span<const float> values) {
    return run([&] {
      if (!result_->bias.defined()) result_->bias = at::zeros({result_->out}, on_gpu(at::kFloat));
      result_->bias.narrow(0, first, static_cast<std::int64_t>(values.size()))
          .copy_(to_gpu(values, at::kFloat));
    });
  }
  StatusOr<std::shared_ptr<const LinearWeight>> finish() {
    MESH_RETURN_IF_ERROR(run([&] {
      if (filled_ != result_->out) throw std::runtime_error("rows of a matrix are missing");
      wait();
    }));
    return std::shared_ptr<const LinearWeight>(std::move(result_));
  }

 private:
  c10::cuda::CUDAStream stream_;
  std::shared_ptr<CudaLinear> result_;
  std::int64_t filled_ = 0;
  Status status_;
};

class Loader final : public LinearLoader {
 public:
  Loader(int device, std::int64_t out, std::int64_t in, Element element) : filling_(device, out, in) {
    (void)filling_.run([&] { filling_.result().weight = at::zeros({out, in}, on_gpu(type_of(element))); });
  }

  Status append_rows(const void* data, Element type, std::int64_t rows, std::int64_t stride) override {
    return filling_.run(
        [&] { put(host_view(data, type_of(type), rows, filling_.result().in, stride).to(at::kCUDA)); });
  }
  Status append_transposed(const void* data, Element type, std::int64_t outs, std::int64_t stride) override {
    return filling_.run(
        [&] { put(host_view(data, type_of(type), filling_.result().in, outs, stride).to(at::kCUDA).t()); });
  }
  Status set_bias(std::int64_t first, std::span<const float> values) override {
    return filling_.set_bias(first, values);
  }
  StatusOr<bool> fill_normal(std::uint64_t seed, float deviation) override {
    MESH_RETURN_IF_ERROR(filling_.run([&] {
      const at::Tensor& weight = filling_.result().weight;
      check(cuda::fill_normal(filling_.stream(), weight.data_ptr(), weight.scalar_type() == at::kBFloat16,
                              weight.numel(), seed, deviation));
      filling_.filled(weight.size(0));
    }));
    return true;
  }
  StatusOr<std::shared_ptr<const LinearWeight>> finish() override { return filling_.finish(); }
  const Status& status() const { return filling_.status(); }

 private:
  void put(const at::Tensor& rows) {
    filling_.result().weight.narrow(0, filling_.next_row(), rows.size(0)).copy_(rows);
    filling_.filled(rows.size(0));
    filling_.wait();  // the source may go away
  }

  Filling filling_;
};

class CodesLoader final : public QuantisedLoader {
 public:
  CodesLoader(int device, std::int64_t out, std::int64_t in, ops::MatrixFormat format)
      : filling_(device, out, in) {
    (void)filling_.run([&] {
      CudaLinear& to = filling_.result();
      to.coded = {nullptr, format, static_cast<int>(out), static_cast<int>(in),
                  static_cast<int>(ops::scale_group(format, in))};
      to.rows = at::zeros({out, to.coded.row_bytes()}, on_gpu(at::kByte));
      to.coded.rows = to.rows.data_ptr();
    });
  }
  Status append(const std::uint8_t* codes, const float* scales, std::int64_t rows) override {
    return filling_.run([&] {
      const CodedMatrix& to = filling_.result().coded;
      const at::Tensor sent = send(codes, at::kByte, rows, ops::code_bytes(to.format, to.in)),
                       sent_scales = send(scales, at::kFloat, rows, to.in / to.group);
      check(pack_codes(filling_.stream(), to, sent.data_ptr(), sent_scales.data_ptr<float>(),
                       static_cast<int>(filling_.next_row()), static_cast<int>(rows)));
      filling_.filled(rows);
      filling_.wait();  // the source may go away
    });
  }
  Status set_bias(std::int64_t first, std::span<const float> values) override {
    return filling_.set_bias(first, values);
  }
  StatusOr<bool> fill_random(std::uint64_t seed) override {
    MESH_RETURN_IF_ERROR(filling_.run([&] {
      check(fill_codes(filling_.stream(), filling_.result().coded, seed, kDeviation));
      filling_.filled(filling_.result().out);
    }));
    return true;
  }
  StatusOr<std::shared_ptr<const LinearWeight>> finish() override { return filling_.finish(); }
  const Status& status() const { return filling_.status(); }

 private:
  static at::Tensor send(const void* data, at::ScalarType type, std::int64_t rows, std::int64_t cols) {
    return host_view(data, type, rows, cols, cols).to(at::kCUDA);
  }

  Filling filling_;
};

template <class Loader, class... Arguments>
StatusOr<std::unique_ptr<Loader>> make(Arguments... arguments) {
  std::unique_ptr<Loader> loader;
  MESH_RETURN_IF_ERROR(guarded([&] { loader = std::make_unique<Loader>(arguments...); }));
  MESH_RETURN_IF_ERROR(loader->status());
  return loader;
}

}  // namespace

StatusOr<std::unique_ptr<LinearLoader>> make_linear_loader(int device, std::int64_t out, std::int64_t in,
                                                           Element element) {
  return make<Loader>(device, out, in, element);
}

StatusOr<std::unique_ptr<QuantisedLoader>> make_quantised_loader(int device, std::int64_t out,
                                                                 std::int64_t in, ops::MatrixFormat format) {
  return make<CodesLoader>(device, out, in, format);
}

std::uint64_t CudaLinear::bytes() const {
  std::uint64_t bytes = 0;
  for (const at::Tensor* part : {&weight, &rows, &bias}) {
    if (part->defined()) bytes += part->nbytes();
  }
  return bytes;
}

at::Tensor CudaLinear::values(at::ScalarType type, const at::Tensor& which) const {
  if (!is_coded()) return (which.defined() ? weight.index_select(0, which) : weight).to(type);
  const std::int64_t count = which.defined() ? which.size(0) : out;
  at::Tensor made = at::empty({count, in}, on_gpu(type));
  const Launch launch{.stream = c10::cuda::getCurrentCUDAStream().stream()};
  check(dequantise(launch, coded, which.defined() ? which.data_ptr<int>() : nullptr, static_cast<int>(count),
                   made.data_ptr(), type == at::kBFloat16));
  return made;
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
