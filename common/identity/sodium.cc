#include "common/identity/sodium.h"

#include <sodium.h>

#include "common/base/check.h"

namespace mesh {

void ensure_sodium() {
  static const bool ready = sodium_init() >= 0;
  MESH_CHECK(ready);
}

}  // namespace mesh
