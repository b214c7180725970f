#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "common/base/check.h"
#include "node/engine/device/device_ops.h"
#include "node/engine/ops/activation.h"
#include "node/engine/ops/backend.h"
#include "node/engine/ops/elementwise.h"
#include "node/engine/ops/layer_norm.h"
#include "node/engine/ops/rms_norm.h"
#include "node/engine/ops/rotary.h"

namespace mesh::engine {
namespace {

class CpuLinear final : public LinearWeight {
 public:
  explicit CpuLinear(ops::PackedLinear packed) : packed_(std::move(packed)) {}
  std::int64_t out_features() const override { return packed_.out_features(); }
  std::int64_t in_features() const override { return packed_.in_features(); }
  std::uint64_t bytes() const override { return packed_.bytes(); }
  const ops::PackedLinear& packed() const { return packed_; }

 private:
  ops::PackedLinear packed_;
};

const ops::PackedLinear& packed(const LinearWeight& weight) {
  return static_cast<const CpuLinear&>(weight).packed();
}

class CpuLinearLoader final : public LinearLoader {
 public:
  explicit CpuLinearLoader(ops::LinearPacker packer) : packer_(std::move(packer)) {}
  Status put_rows(std::int64_t first, const void* data, Element type, std::int64_t rows,
                  std::int64_t stride) override {
    return packer_.put_rows(first, data, type, rows, stride);
  }
  Status put_transposed(std::int64_t first, const void* data, Element type, std::int64_t outs,
                        std::int64_t stride) override {
    return packer_.put_transposed(first, data, type, outs, stride);
  }
  Status set_bias(std::int64_t first, std::span<const float> values) override {
    return packer_.set_bias(first, values);
  }
  StatusOr<std::shared_ptr<const LinearWeight>> finish() override {
    MESH_ASSIGN_OR_RETURN(ops::PackedLinear linear, packer_.finish());
    return std::make_shared<const CpuLinear>(std::move(linear));
  }

 private:
  ops::LinearPacker packer_;
};

class CpuQuantisedLoader final : public QuantisedLoader {
 public:
  explicit CpuQuantisedLoader(ops::QuantisedPacker packer) : packer_(std::move(packer)) {}
  Status put(std::int64_t first, const std::uint8_t* codes, const float* scales, std::int64_t rows) override {
    return packer_.put(first, codes, scales, rows);
  }
  Status set_bias(std::int64_t first, std::span<const float> values) override {
    return packer_.set_bias(first, values);
  }
  StatusOr<std::shared_ptr<const LinearWeight>> finish() override {
    MESH_ASSIGN_OR_RETURN(ops::PackedLinear linear, packer_.finish());
    return std::make_shared<const CpuLinear>(std::move(linear));
  }

 private:
  ops::QuantisedPacker packer_;
};

class CpuOps final : public DeviceOps {
 public:
  explicit CpuOps(std::unique_ptr<ops::CpuBackend> backend) : backend_(std::move(backend)) {}

  std::uint64_t free_memory() const override { return free_host_memory(); }

  StatusOr<DeviceMemory> allocate(std::uint64_t bytes) override {
    MESH_ASSIGN_OR_RETURN(ops::AlignedBytes memory, ops::AlignedBytes::allocate(bytes));
    auto owner = std::make_shared<ops::AlignedBytes>(std::move(memory));
    return DeviceMemory(owner, owner->data());
  }
  StatusOr<DeviceMemory> upload_vector(std::span<const float> values) override {
    MESH_ASSIGN_OR_RETURN(DeviceMemory memory, allocate(std::max<std::uint64_t>(values.size_bytes(), 1)));
    if (!values.empty()) std::memcpy(memory.get(), values.data(), values.size_bytes());
    return memory;
  }
  StatusOr<std::unique_ptr<LinearLoader>> linear_loader(std::int64_t out, std::int64_t in,
                                                        Element element) override {
    const auto format = element == Element::kBf16 ? ops::MatrixFormat::kBf16 : ops::MatrixFormat::kF32;
    MESH_ASSIGN_OR_RETURN(ops::LinearPacker packer,
                          ops::LinearPacker::create(out, in, element, pack_options(format, in)));
    return std::make_unique<CpuLinearLoader>(std::move(packer));
  }
  StatusOr<std::unique_ptr<QuantisedLoader>> quantised_loader(std::int64_t out, std::int64_t in,
                                                              ops::MatrixFormat format) override {
    MESH_ASSIGN_OR_RETURN(ops::QuantisedPacker packer,
                          ops::QuantisedPacker::create(out, in, format, pack_options(format, in)));
    return std::make_unique<CpuQuantisedLoader>(std::move(packer));
  }
  std::int64_t kv_block_bytes(std::int64_t kv_heads, std::int64_t head_dim, Element element) const override {
    return ops::KvLayout{kv_heads, head_dim, element}.block_bytes();
  }

  void upload(std::span<const float> host, float* device) override {
    if (!host.empty()) std::memcpy(device, host.data(), host.size_bytes());
  }
  void download(ConstMatrix device, float* host) override {
    for (std::int64_t r = 0; r < device.rows; ++r) {
      std::memcpy(host + r * device.cols, device.row(r),
                  static_cast<std::size_t>(device.cols) * sizeof(float));
    }
  }
  void upload_bf16(const void* host, Matrix device) override { ops::from_bf16(*backend_, host, device); }
  void download_bf16(ConstMatrix device, void* host) override { ops::to_bf16(*backend_, device, host); }
  bool all_finite(ConstMatrix x) override { return ops::all_finite(*backend_, x); }
  void embed(const LinearWeight& table, std::span<const std::int32_t> rows, Matrix out) override {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      ops::linear_row(packed(table), rows[i], out.row(static_cast<std::int64_t>(i)));
    }
  }
  void linear(const LinearWeight& weight, ConstMatrix x, Matrix y, ops::Store store) override {
    ops::linear(*backend_, packed(weight), x, y, store);
  }
  void rms_norm(ConstMatrix x, const float* weight, float epsilon, Matrix out) override {
    ops::rms_norm(*backend_, x, weight, epsilon, out);
  }
  void rms_norm_heads(Matrix x, std::int64_t heads, const float* weight, float epsilon) override {
    ops::rms_norm_heads(*backend_, x, heads, weight, epsilon);
  }
  void layer_norm(ConstMatrix x, const float* weight, const float* bias, float epsilon, Matrix out) override {
    ops::layer_norm(*backend_, x, weight, bias, epsilon, out);
  }
  void rotary(Matrix x, std::int64_t heads, ConstMatrix cos, ConstMatrix sin) override {
    ops::rotary(*backend_, x, heads, cos, sin);
  }
  void append_kv(const ops::KvLayout& layout, std::span<const ops::AttentionSegment> segments, ConstMatrix k,
                 ConstMatrix v) override {
    ops::append_kv(*backend_, layout, segments, k, v);
  }
  void attention(const ops::KvLayout& layout, const ops::AttentionOptions& options,
                 std::span<const ops::AttentionSegment> segments, ConstMatrix q, Matrix out) override {
    ops::attention(*backend_, layout, options, segments, q, out);
  }
  void silu_mul(ConstMatrix x, Matrix out) override { ops::silu_mul(*backend_, x, out); }
  void gelu_tanh(Matrix x) override { ops::gelu_tanh(*backend_, x); }
  void gelu_exact(Matrix x) override { ops::gelu_exact(*backend_, x); }
  void add(Matrix x, ConstMatrix y) override { ops::add(*backend_, x, y); }
  void copy(const std::byte* from, std::byte* to, std::uint64_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void gather_rows(ConstMatrix x, std::span<const std::int32_t> rows, Matrix out) override {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::memcpy(out.row(static_cast<std::int64_t>(i)), x.row(rows[i]),
                  static_cast<std::size_t>(x.cols) * sizeof(float));
    }
  }
  Status finish() override { return absl::OkStatus(); }

 private:
  ops::PackOptions pack_options(ops::MatrixFormat format, std::int64_t in) const {
    return {backend_->order_of(format, in), arena_};
  }

  std::unique_ptr<ops::CpuBackend> backend_;
  const std::shared_ptr<ops::PageArena> arena_ = std::make_shared<ops::PageArena>();
};

}  // namespace

std::uint64_t free_host_memory() {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    unsigned long long kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %llu kB", &kib) == 1) return std::uint64_t{kib} << 10;
  }
  return 0;
}

StatusOr<std::unique_ptr<DeviceOps>> make_cpu_ops(unsigned threads, bool round_inputs,
                                                  std::string_view path) {
  const unsigned count = threads != 0 ? threads : std::max(1u, std::thread::hardware_concurrency());
  ops::CpuBackend::Options options{
      .threads = static_cast<int>(std::min(count, 1024u)), .path = {}, .round_inputs = round_inputs};
  if (path != "auto") {
    MESH_ASSIGN_OR_RETURN(options.path, ops::parse_cpu_path(path));
  }
  MESH_ASSIGN_OR_RETURN(auto backend, ops::CpuBackend::create(options));
  return std::make_unique<CpuOps>(std::move(backend));
}

}  // namespace mesh::engine
