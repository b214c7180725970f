#include "node/engine/cuda/cuda_linear.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <new>
#include <stdexcept>

#include "node/engine/ops/elementwise.h"
#include "node/engine/ops/quantise.h"

namespace mesh::engine::cuda {
namespace {

constexpr float kDeviation = 0.02f;  // of made-up weights

/// What both loaders do: one matrix whose rows several threads bring.
class Filling {
 public:
  Filling(std::shared_ptr<UploadBuffers> uploads, std::int64_t out, std::int64_t in)
      : uploads_(std::move(uploads)), result_(std::make_shared<CudaLinear>()) {
    result_->out = out, result_->in = in;
  }
  CudaLinear& result() { return *result_; }
  cudaStream_t stream() const { return uploads_->stream(); }

  template <class Body>
  void on_stream(const Body& body) const {
    const c10::InferenceMode inference;
    const c10::cuda::CUDAStreamGuard guard(uploads_->stream());
    body();
  }
  template <class Body>
  Status run(const Body& body) const {
    return guarded([&] { on_stream(body); });
  }
  /// Rows [first, first + rows) of `row_bytes` bytes at `to`, the matrix's first row, as many at a time as
  /// fit a buffer: write(row, count, memory) writes them, row 0 being `first`.
  template <class Write>
  Status put(void* to, std::int64_t row_bytes, std::int64_t first, std::int64_t rows, const Write& write) {
    if (first < 0 || rows < 0 || rows > result_->out - first) {
      return error(StatusCode::kInvalidArgument, "{} rows do not fit behind {} of {}", rows, first,
                   result_->out);
    }
    const std::int64_t step =
        std::max<std::int64_t>(1, static_cast<std::int64_t>(UploadBuffers::kBytes) / row_bytes);
    MESH_RETURN_IF_ERROR(run([&] {
      for (std::int64_t row = 0; row < rows; row += step) {
        const std::int64_t count = std::min(step, rows - row);
        uploads_->send(static_cast<std::byte*>(to) + (first + row) * row_bytes,
                       static_cast<std::size_t>(count * row_bytes),
                       [&](std::byte* memory) { write(row, count, memory); });
      }
    }));
    filled_ += rows;
    return absl::OkStatus();
  }
  void filled_all() { filled_ = result_->out; }
  Status set_bias(std::int64_t first, std::span<const float> values) {
    return run([&] {
      if (!result_->bias.defined()) result_->bias = at::zeros({result_->out}, on_gpu(at::kFloat));
      check(cudaMemcpyAsync(result_->bias.data_ptr<float>() + first, values.data(), values.size_bytes(),
                            cudaMemcpyHostToDevice, stream()));
      uploads_->wait();  // `values` may go away
    });
  }
  StatusOr<std::shared_ptr<const LinearWeight>> finish() {
    MESH_RETURN_IF_ERROR(run([&] {
      if (filled_ != result_->out) throw std::runtime_error("rows of a matrix are missing");
      uploads_->wait();
    }));
    return std::shared_ptr<const LinearWeight>(std::move(result_));
  }

 private:
  const std::shared_ptr<UploadBuffers> uploads_;
  std::shared_ptr<CudaLinear> result_;
  std::atomic<std::int64_t> filled_ = 0;
};

/// `count` values of `from` → values of `to`, rounded to nearest even.
void convert(const void* values, Element from, std::int64_t count, Element to, std::byte* out) {
  if (from == to) {
    std::memcpy(out, values, static_cast<std::size_t>(count * ops::element_size(to)));
    return;
  }
  std::array<float, 256> wide;
  for (std::int64_t done = 0; done < count; done += std::ssize(wide)) {
    const std::int64_t some = std::min(std::ssize(wide), count - done);
    ops::widen(static_cast<const std::byte*>(values) + done * ops::element_size(from), from, some,
               wide.data());
    for (std::int64_t i = 0; i < some; ++i) {
      const float value = wide[static_cast<std::size_t>(i)];
      const ops::Bf16 narrow = ops::to_bf16(value);
      std::byte* const at = out + (done + i) * ops::element_size(to);
      to == Element::kBf16 ? std::memcpy(at, &narrow, sizeof narrow) : std::memcpy(at, &value, sizeof value);
    }
  }
}

class Loader final : public LinearLoader {
 public:
  Loader(std::shared_ptr<UploadBuffers> uploads, std::int64_t out, std::int64_t in, Element element)
      : filling_(std::move(uploads), out, in),
        element_(element),
        row_bytes_(in * ops::element_size(element)) {
    filling_.on_stream([&] { filling_.result().weight = at::empty({out, in}, on_gpu(type_of(element))); });
  }

  Status put_rows(std::int64_t first, const void* data, Element type, std::int64_t rows,
                  std::int64_t stride) override {
    const std::int64_t in = filling_.result().in;
    const auto* from = static_cast<const std::byte*>(data);
    return filling_.put(weight(), row_bytes_, first, rows,
                        [&](std::int64_t row, std::int64_t count, std::byte* to) {
                          const std::int64_t source_bytes = stride * ops::element_size(type);
                          if (stride == in)
                            return convert(from + row * source_bytes, type, count * in, element_, to);
                          for (std::int64_t i = 0; i < count; ++i)
                            convert(from + (row + i) * source_bytes, type, in, element_, to + i * row_bytes_);
                        });
  }
  Status put_transposed(std::int64_t first, const void* data, Element type, std::int64_t outs,
                        std::int64_t stride) override {
    const auto* from = static_cast<const std::byte*>(data);
    return filling_.put(weight(), row_bytes_, first, outs,
                        [&](std::int64_t row, std::int64_t count, std::byte* to) {
                          for (std::int64_t in = 0; in < filling_.result().in; ++in) {
                            const std::byte* values = from + (in * stride + row) * ops::element_size(type);
                            for (std::int64_t i = 0; i < count; ++i) {
                              convert(values + i * ops::element_size(type), type, 1, element_,
                                      to + i * row_bytes_ + in * ops::element_size(element_));
                            }
                          }
                        });
  }
  Status set_bias(std::int64_t first, std::span<const float> values) override {
    return filling_.set_bias(first, values);
  }
  StatusOr<bool> fill_normal(std::uint64_t seed, float deviation) override {
    MESH_RETURN_IF_ERROR(filling_.run([&] {
      const at::Tensor& weight = filling_.result().weight;
      check(cuda::fill_normal(filling_.stream(), weight.data_ptr(), weight.scalar_type() == at::kBFloat16,
                              weight.numel(), seed, deviation));
    }));
    filling_.filled_all();
    return true;
  }
  StatusOr<std::shared_ptr<const LinearWeight>> finish() override { return filling_.finish(); }

 private:
  void* weight() { return filling_.result().weight.data_ptr(); }

  Filling filling_;
  const Element element_;
  const std::int64_t row_bytes_;
};

class CodesLoader final : public QuantisedLoader {
 public:
  CodesLoader(std::shared_ptr<UploadBuffers> uploads, std::int64_t out, std::int64_t in,
              ops::MatrixFormat format)
      : filling_(std::move(uploads), out, in) {
    filling_.on_stream([&] {
      CudaLinear& to = filling_.result();
      to.coded = {nullptr, format, static_cast<int>(out), static_cast<int>(in),
                  static_cast<int>(ops::scale_group(format, in))};
      to.rows = at::empty({out, to.coded.row_bytes()}, on_gpu(at::kByte));
      to.coded.rows = to.rows.data_ptr();
    });
  }
  Status put(std::int64_t first, const std::uint8_t* codes, const float* scales, std::int64_t rows) override {
    const CodedMatrix& to = filling_.result().coded;
    const std::int64_t code_bytes = ops::code_bytes(to.format, to.in), scales_a_row = to.in / to.group;
    return filling_.put(to.rows, to.row_bytes(), first, rows,
                        [&](std::int64_t row, std::int64_t count, std::byte* memory) {
                          for (std::int64_t i = row; i < row + count; ++i, memory += to.row_bytes())
                            lay_row(to, codes + i * code_bytes, scales + i * scales_a_row, memory);
                        });
  }
  Status set_bias(std::int64_t first, std::span<const float> values) override {
    return filling_.set_bias(first, values);
  }
  StatusOr<bool> fill_random(std::uint64_t seed) override {
    MESH_RETURN_IF_ERROR(filling_.run(
        [&] { check(fill_codes(filling_.stream(), filling_.result().coded, seed, kDeviation)); }));
    filling_.filled_all();
    return true;
  }
  StatusOr<std::shared_ptr<const LinearWeight>> finish() override { return filling_.finish(); }

 private:
  Filling filling_;
};

template <class Loader, class... Arguments>
StatusOr<std::unique_ptr<Loader>> make(Arguments... arguments) {
  std::unique_ptr<Loader> loader;
  MESH_RETURN_IF_ERROR(guarded([&] { loader = std::make_unique<Loader>(std::move(arguments)...); }));
  return loader;
}

}  // namespace

StatusOr<std::unique_ptr<LinearLoader>> make_linear_loader(std::shared_ptr<UploadBuffers> uploads,
                                                           std::int64_t out, std::int64_t in,
                                                           Element element) {
  return make<Loader>(std::move(uploads), out, in, element);
}

StatusOr<std::unique_ptr<QuantisedLoader>> make_quantised_loader(std::shared_ptr<UploadBuffers> uploads,
                                                                 std::int64_t out, std::int64_t in,
                                                                 ops::MatrixFormat format) {
  return make<CodesLoader>(std::move(uploads), out, in, format);
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
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("no host memory is left for copies to the GPU");
  } catch (const c10::Error& failure) {
    return absl::InternalError(failure.what_without_backtrace());
  } catch (const std::exception& failure) {
    return absl::InternalError(failure.what());
  }
}

}  // namespace mesh::engine::cuda
