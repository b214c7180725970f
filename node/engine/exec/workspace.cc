#include "node/engine/exec/workspace.h"

namespace mesh::engine {

StatusOr<Matrix> Workspace::matrix(Slot slot, std::int64_t rows, std::int64_t cols) {
  Buffer& buffer = buffers_[static_cast<std::size_t>(slot)];
  const std::uint64_t bytes =
      static_cast<std::uint64_t>(rows) * static_cast<std::uint64_t>(cols) * sizeof(float);
  if (bytes > buffer.bytes) {
    buffer = {};
    if (faults_ != nullptr) MESH_RETURN_IF_ERROR(faults_->check(bytes));
    MESH_ASSIGN_OR_RETURN(buffer.memory, ops_.allocate(bytes));
    buffer.bytes = bytes;
  }
  return Matrix(reinterpret_cast<float*>(buffer.memory.get()), rows, cols);
}

std::uint64_t Workspace::bytes_for(const DecoderSpec& spec) {
  const std::uint64_t queries = std::uint64_t{spec.query_heads} * spec.head_dim;
  const std::uint64_t keys = std::uint64_t{spec.kv_heads} * spec.head_dim;
  const std::uint64_t per_row = 3 * std::uint64_t{spec.hidden} + 2 * queries + 2 * keys + spec.rope.dims;
  const std::uint64_t per_mlp_row = (spec.gated_mlp ? 3 : 1) * std::uint64_t{spec.intermediate};
  return sizeof(float) *
         (per_row * kForwardRows + per_mlp_row * kMlpRows + std::uint64_t{spec.vocab} * kHeadRows);
}

}  // namespace mesh::engine
