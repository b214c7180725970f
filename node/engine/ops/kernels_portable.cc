#define MESH_KERNELS portable_kernels
#include "node/engine/ops/kernels_body.h"
