#pragma once

#include "node/engine/models/architecture.h"

namespace mesh::engine::arch {

extern const Architecture kGpt2;
extern const Architecture kLlama;
extern const Architecture kMistral;
extern const Architecture kQwen2;
extern const Architecture kQwen3;

}  // namespace mesh::engine::arch
