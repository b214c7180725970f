// The only file here with ATen: its bundled fmt must not meet ours in one translation unit.
#include <ATen/Parallel.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "tests/bench/machine_limits.h"

namespace mesh::bench {

double best_matrix_rate(int threads) {
  constexpr std::int64_t kSize = 2048;
  at::set_num_threads(threads);
  const at::Tensor a = at::randn({kSize, kSize}), b = at::randn({kSize, kSize});
  double best = 0;
  for (int pass = 0; pass < 10; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    const at::Tensor c = at::mm(a, b);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, 2.0 * kSize * kSize * kSize / seconds);
  }
  return best;
}

}  // namespace mesh::bench
