#pragma once

#include <functional>
#include <memory>

#include "node/engine/cuda/kernels/kernels.h"
#include "node/engine/cuda/tensors.h"
#include "node/engine/cuda/upload_buffers.h"

namespace mesh::engine::cuda {

/// Values, or codes with scales of them.
struct CudaLinear final : LinearWeight {
  at::Tensor weight;  ///< [out, in], bfloat16 or float32; or undefined
  at::Tensor rows;    ///< of codes and scales as `coded` says; or undefined
  at::Tensor bias;    ///< [out] float32, or undefined
  CodedMatrix coded;
  std::int64_t out = 0, in = 0;

  std::int64_t out_features() const override { return out; }
  std::int64_t in_features() const override { return in; }
  std::uint64_t bytes() const override;

  bool is_coded() const { return rows.defined(); }
  /// The values of rows `which` (undefined: of all), as the type says; those of codes are made now.
  at::Tensor values(at::ScalarType type, const at::Tensor& which = {}) const;
};

/// Rows go through `uploads`, in whose stream the memory is taken and filled.
StatusOr<std::unique_ptr<LinearLoader>> make_linear_loader(std::shared_ptr<UploadBuffers> uploads,
                                                           std::int64_t out, std::int64_t in,
                                                           Element element);
StatusOr<std::unique_ptr<QuantisedLoader>> make_quantised_loader(std::shared_ptr<UploadBuffers> uploads,
                                                                 std::int64_t out, std::int64_t in,
                                                                 ops::MatrixFormat format);

/// Runs `body`; an exception becomes a status: kResourceExhausted when the GPU's memory ran out.
Status guarded(const std::function<void()>& body);

}  // namespace mesh::engine::cuda
