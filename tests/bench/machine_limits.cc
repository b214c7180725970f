#include "tests/bench/machine_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace mesh::bench {
namespace {
constexpr int kPasses = 10;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

using Words = std::uint64_t __attribute__((vector_size(64)));

std::uint64_t sum_of(const Words* data, std::size_t count) {
  Words sums[8] = {};
  for (std::size_t i = 0; i + 8 <= count; i += 8) {
    for (int lane = 0; lane < 8; ++lane) sums[lane] += data[i + lane];
  }
  std::uint64_t total = 0;
  for (const Words& sum : sums) {
    for (int i = 0; i < 8; ++i) total += sum[i];
  }
  return total;
}

double read_bandwidth(int threads) {
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  auto* data = static_cast<Words*>(std::aligned_alloc(std::size_t{1} << 21, kBytes));
  auto* words = reinterpret_cast<std::uint64_t*>(data);
  for (std::size_t i = 0; i < kBytes / 8; ++i) words[i] = i * 0x9E3779B97F4A7C15ULL;
  double best = 0;
  volatile std::uint64_t sink = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    std::vector<std::uint64_t> sums(static_cast<std::size_t>(threads));
    std::vector<std::thread> workers;
    const std::size_t part = kBytes / sizeof(Words) / static_cast<std::size_t>(threads);
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t t = 0; t < sums.size(); ++t) {
      workers.emplace_back([&, t] { sums[t] = sum_of(data + t * part, part); });
    }
    for (std::thread& worker : workers) worker.join();
    best = std::max(best, static_cast<double>(kBytes) / seconds_since(start));
    for (const std::uint64_t sum : sums) sink = sink + sum;
  }
  std::free(data);
  return best;
}

}  // namespace

MachineLimits measure_limits(int threads) {
  return {read_bandwidth(threads), best_matrix_rate(threads)};
}

std::string to_string(const MachineLimits& limits) {
  return fmt::format("limits of this run: read {:.1f} GB/s, float32 products {:.0f} GFLOP/s",
                     limits.read_bytes_per_s * 1e-9, limits.matrix_flops * 1e-9);
}

}  // namespace mesh::bench
