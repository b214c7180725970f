#include "node/tools/rates.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "node/engine/ops/linear.h"

namespace mesh::tools {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

using Words = std::uint64_t __attribute__((vector_size(64)));

std::uint64_t sum_of(const Words* data, std::size_t count) {
  Words sums[8] = {};
  for (std::size_t i = 0; i + 8 <= count; i += 8) {
    for (int lane = 0; lane < 8; ++lane) sums[lane] += data[i + static_cast<std::size_t>(lane)];
  }
  std::uint64_t total = 0;
  for (const Words& sum : sums) {
    for (int i = 0; i < 8; ++i) total += sum[i];
  }
  return total;
}

class MemoryReadRate final : public ReadRate {
 public:
  MemoryReadRate(unsigned threads, ops::AlignedBytes buffer) : buffer_(std::move(buffer)), sums_(threads) {
    auto* const words = reinterpret_cast<std::uint64_t*>(buffer_.data());
    for (std::size_t i = 0; i < buffer_.size() / 8; ++i) words[i] = i * 0x9E3779B97F4A7C15ULL;
  }

  void pass() override {
    const auto* const data = reinterpret_cast<const Words*>(buffer_.data());
    const std::size_t part = buffer_.size() / sizeof(Words) / sums_.size();
    std::vector<std::thread> workers;
    const auto start = Clock::now();
    for (std::size_t t = 0; t < sums_.size(); ++t)
      workers.emplace_back([this, t, part, data] { sums_[t] = sum_of(data + t * part, part); });
    for (std::thread& worker : workers) worker.join();
    const double bytes = static_cast<double>(part * sums_.size() * sizeof(Words));
    best_ = std::max(best_, bytes / seconds_since(start));
    for (const std::uint64_t sum : sums_) sink_ = sink_ + sum;
  }
  double bytes_per_second() const override { return best_; }

 private:
  ops::AlignedBytes buffer_;
  std::vector<std::uint64_t> sums_;
  double best_ = 0;
  volatile std::uint64_t sink_ = 0;  // the sums must be made
};

constexpr std::int64_t kRows = 256, kSize = 2048;

class KernelProductRate final : public ProductRate {
 public:
  KernelProductRate(std::unique_ptr<ops::CpuBackend> backend, ops::PackedLinear matrix)
      : backend_(std::move(backend)),
        matrix_(std::move(matrix)),
        in_(static_cast<std::size_t>(kRows * kSize), 0.5f),
        out_(in_.size()) {}

  void pass() override {
    const auto start = Clock::now();
    ops::linear(*backend_, matrix_, {in_.data(), kRows, kSize}, {out_.data(), kRows, kSize});
    best_ = std::max(best_, 2.0 * kRows * kSize * kSize / seconds_since(start));
  }
  double flops() const override { return best_; }

 private:
  std::unique_ptr<ops::CpuBackend> backend_;
  ops::PackedLinear matrix_;
  std::vector<float> in_, out_;
  double best_ = 0;
};

}  // namespace

StatusOr<std::unique_ptr<ReadRate>> ReadRate::create(unsigned threads, std::size_t bytes) {
  MESH_ASSIGN_OR_RETURN(ops::AlignedBytes buffer, ops::AlignedBytes::allocate(bytes));
  return std::make_unique<MemoryReadRate>(std::max(threads, 1u), std::move(buffer));
}

StatusOr<std::unique_ptr<ProductRate>> ProductRate::create(unsigned threads) {
  MESH_ASSIGN_OR_RETURN(auto backend, ops::CpuBackend::create(
                                          {.threads = static_cast<int>(std::max(threads, 1u)), .path = {}}));
  MESH_ASSIGN_OR_RETURN(ops::LinearPacker packer,
                        ops::LinearPacker::create(kSize, kSize, ops::Element::kF32));
  std::vector<float> row(static_cast<std::size_t>(kSize));
  for (std::int64_t i = 0; i < kSize; ++i) {
    for (std::int64_t j = 0; j < kSize; ++j)
      row[static_cast<std::size_t>(j)] = 0.01f * static_cast<float>((i * 31 + j * 17) % 101 - 50);
    MESH_RETURN_IF_ERROR(packer.append_rows(row.data(), ops::Element::kF32, 1, kSize));
  }
  MESH_ASSIGN_OR_RETURN(ops::PackedLinear matrix, packer.finish());
  return std::make_unique<KernelProductRate>(std::move(backend), std::move(matrix));
}

}  // namespace mesh::tools
