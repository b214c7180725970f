#pragma once

#include <cstdint>
#include <span>

#include "node/engine/ops/backend.h"

namespace mesh::ops {

/// out[t] = table[ids[t]] as floats; table [vocab, H] row-major, maybe unaligned; out [ids.size(), H]. Every
/// id must be in [0, vocab): check before.
void embedding(const void* table, Element type, std::span<const std::int32_t> ids, Matrix out);

}  // namespace mesh::ops
