#include <immintrin.h>

#define MESH_KERNELS avx2_kernels
#include "node/engine/ops/kernels_body.h"
