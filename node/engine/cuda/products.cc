#include "node/engine/cuda/products.h"

#include <algorithm>

namespace mesh::engine::cuda {
namespace {

at::Tensor matrix(const void* data, std::int64_t rows, std::int64_t cols, at::ScalarType type) {
  return at::from_blob(const_cast<void*>(data), {rows, cols}, on_gpu(type));
}

CodedMatrix outputs_from(CodedMatrix matrix, int first) {
  matrix.rows = static_cast<std::byte*>(matrix.rows) + std::int64_t{first} * matrix.row_bytes();
  matrix.out -= first;
  return matrix;
}

void multiply_values(const at::Tensor& x, const at::Tensor& weight, at::Tensor y) {
  if (y.scalar_type() == at::kFloat) {
    at::mm_out(y, x, weight.t(), at::kFloat);
  } else {
    at::mm_out(y, x, weight.t());
  }
}

}  // namespace

void Products::resize(std::int64_t values) {
  room_ = values == 0 ? at::Tensor() : at::empty({values}, on_gpu(at::kBFloat16));
}

bool Products::can_stream(const CudaLinear& weight, int rows) {
  StreamLinear linear;
  linear.in = static_cast<int>(weight.in), linear.rows = rows, linear.coded = weight.coded;
  return rows <= kStreamRows && stream_bytes(linear) <= block_shared_bytes();
}

cudaError_t Products::stream(const Launch& launch, const CudaLinear& weight, StreamLinear linear) {
  linear.out = static_cast<int>(weight.out);
  linear.in = static_cast<int>(weight.in);
  linear.coded = weight.coded;
  if (!weight.is_coded()) linear.weight = weight.weight.data_ptr();
  return stream_linear(launch, linear);
}

void Products::multiply(const Launch& launch, const CudaLinear& weight, const void* x, int rows, void* y,
                        at::ScalarType type) {
  if (weight.is_coded() && tensor_cores_ && rows <= kCodedRows) {
    check(tile_codes(launch, weight.coded, x, rows, y, type == at::kBFloat16));
    return;
  }
  const at::Tensor input = matrix(x, rows, weight.in, at::kBFloat16);
  const at::Tensor output = matrix(y, rows, weight.out, type);
  if (!weight.is_coded()) {
    multiply_values(input, weight.weight, output);
    return;
  }
  // A head is larger than the room: by runs of outputs.
  const std::int64_t most = room_.numel() / weight.in;
  TORCH_CHECK(most > 0, "no room for a quantised matrix's values");
  for (std::int64_t first = 0; first < weight.out; first += most) {
    const std::int64_t count = std::min(most, weight.out - first);
    check(dequantise(launch, outputs_from(weight.coded, static_cast<int>(first)), nullptr,
                     static_cast<int>(count), room_.data_ptr(), true));
    multiply_values(input, matrix(room_.data_ptr(), count, weight.in, at::kBFloat16),
                    output.narrow(1, first, count));
  }
}

void Products::add(const CudaLinear& weight, const void* x, int rows, float* y) {
  at::Tensor sums = matrix(y, rows, weight.out, at::kFloat);
  at::addmm_out(sums, sums, matrix(x, rows, weight.in, at::kBFloat16), weight.weight.t(), at::kFloat);
}

}  // namespace mesh::engine::cuda
