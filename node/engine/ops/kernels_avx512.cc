#include <immintrin.h>

#define MESH_KERNELS avx512_kernels
#include "node/engine/ops/kernels_body.h"
