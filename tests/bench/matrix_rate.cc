// The only file here with ATen: its bundled fmt must not meet ours in one translation unit.
#include <ATen/Parallel.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>

#include <chrono>
#include <cstdint>

namespace mesh::bench {

double matrix_rate_pass(int threads);

double matrix_rate_pass(int threads) {
  constexpr std::int64_t kSize = 2048;
  at::set_num_threads(threads);
  static const at::Tensor a = at::randn({kSize, kSize}), b = at::randn({kSize, kSize});
  const auto start = std::chrono::steady_clock::now();
  const at::Tensor c = at::mm(a, b);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return 2.0 * kSize * kSize * kSize / seconds;
}

}  // namespace mesh::bench
