// Linear layers and attention, each figure as a share of this machine's limits measured in the same run.
// kernels_bench [--path portable|avx2|avx512|avx512_bf16] [--threads N] [--seconds S] [--only
// linear|attention]
// [--quantization bfloat16|int8|nf4|fp8] [--exact]

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <thread>

#include "node/engine/ops/attention.h"
#include "node/engine/ops/linear.h"
#include "node/engine/ops/quantise.h"
#include "tests/bench/machine_limits.h"

namespace mesh::bench {
namespace {
using namespace ops;

struct LinearShape {
  std::int64_t out, in;
};
// SmolLM2-135M: q, k, v; o; gate, up; down; head. Llama-3.2-1B: gate, up; down.
constexpr LinearShape kLinearShapes[] = {{960, 576},   {576, 576},    {3072, 576}, {576, 1536},
                                         {49152, 576}, {16384, 2048}, {2048, 8192}};
struct HeadShape {
  std::int64_t heads, kv_heads, dim;
};

struct Settings {
  std::string path, only, quantization = "bfloat16";
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  double seconds = 0.3;
  bool exact = false;
};

double seconds_of(const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Seconds of one round of calls 0 … count − 1: of each call the least time over rounds that take `seconds`
/// together. Other programs' share of the cores thus matters little.
double best_round(double seconds, std::size_t count, const std::function<void(std::size_t)>& call) {
  std::vector<double> best(count, 1e9);
  double total = 0;
  for (int round = 0; round < 3 || total < seconds; ++round) {
    for (std::size_t i = 0; i < count; ++i) {
      const double time = seconds_of([&] { call(i); });
      best[i] = std::min(best[i], time);
      total += time;
    }
  }
  return std::accumulate(best.begin(), best.end(), 0.0);
}

double best_time(double seconds, const std::function<void()>& call) {
  return best_round(seconds, 1, [&](std::size_t) { call(); });
}

std::vector<float> random_values(std::int64_t count) {
  std::mt19937 engine(1);
  std::uniform_real_distribution<float> values(-1, 1);
  std::vector<float> result(static_cast<std::size_t>(count));
  for (float& value : result) value = values(engine);
  return result;
}

PackedLinear random_linear(std::int64_t out, std::int64_t in, MatrixFormat format,
                           const PackOptions& options) {
  if (is_quantised(format)) {
    auto packer = QuantisedPacker::create(out, in, format, options);
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(code_bytes(format, in)));
    std::mt19937 engine(1);
    for (std::uint8_t& code : codes) code = static_cast<std::uint8_t>(engine() & 0xBF);  // all are numbers
    const auto scales = random_values(in / scale_group(format, in));
    for (std::int64_t i = 0; i < out; ++i) packer->append(codes.data(), scales.data(), 1).IgnoreError();
    return *packer->finish();
  }
  const Element element = format == MatrixFormat::kBf16 ? Element::kBf16 : Element::kF32;
  auto packer = LinearPacker::create(out, in, element, options);
  const auto row = random_values(in);
  for (std::int64_t i = 0; i < out; ++i) packer->append_rows(row.data(), Element::kF32, 1, in).IgnoreError();
  return *packer->finish();
}

// Enough copies of a layer that together they exceed the caches, used in turn, as a model's layers are.
void bench_linear(CpuBackend& backend, const MachineLimits& limits, double seconds, const LinearShape& shape,
                  MatrixFormat format) {
  const auto [n, k] = shape;
  constexpr const char* kNames[] = {"fp32", "bf16", "int8", "nf4", "fp8"};
  constexpr std::size_t kBytes = std::size_t{128} << 20;
  std::vector<PackedLinear> layers;
  const PackOptions options{backend.order_of(format, k), std::make_shared<PageArena>()};
  for (std::size_t bytes = 0; bytes < kBytes;) {
    layers.push_back(random_linear(n, k, format, options));
    bytes += layers.back().bytes();
  }
  for (const std::int64_t m : {1, 2, 4, 8, 16, 32, 128}) {
    const auto x = random_values(m * k);
    std::vector<float> y(static_cast<std::size_t>(m * n));
    const double time = best_round(seconds, layers.size(), [&](std::size_t i) {
      linear(backend, layers[i], {x.data(), m, k}, {y.data(), m, n});
    });
    const auto count = static_cast<double>(layers.size());
    const double bytes = count * static_cast<double>(layers[0].bytes()) / time;
    const double flops = count * 2.0 * static_cast<double>(m * n * k) / time;
    fmt::print(
        "linear {} {:5} × {:5}  M {:4}  {:9.1f} µs  {:5.1f} GB/s {:3.0f} %  {:6.1f} GFLOP/s {:3.0f} %\n",
        kNames[static_cast<int>(format)], n, k, m, time / count * 1e6, bytes * 1e-9,
        100 * bytes / limits.read_bytes_per_s, flops * 1e-9, 100 * flops / limits.matrix_flops);
  }
}

void bench_attention(CpuBackend& backend, const MachineLimits& limits, double seconds, const HeadShape& shape,
                     Element element) {
  const auto [heads, kv_heads, dim] = shape;
  const KvLayout layout{kv_heads, dim, element};
  for (const auto& [start, rows] :
       {std::pair<std::int64_t, std::int64_t>{255, 1}, {1023, 1}, {0, 128}, {896, 128}, {0, 1024}}) {
    const std::int64_t blocks = (start + rows + KvLayout::kBlock - 1) / KvLayout::kBlock;
    const auto memory = AlignedBytes::allocate(static_cast<std::size_t>(blocks * layout.block_bytes()));
    std::vector<std::byte*> table;
    for (std::int64_t i = 0; i < blocks; ++i) table.push_back(memory->data() + i * layout.block_bytes());
    const auto k = random_values((start + rows) * kv_heads * dim);
    const AttentionSegment all{0, start + rows, 0, table};
    const ConstMatrix keys(k.data(), start + rows, kv_heads * dim);
    append_kv(backend, layout, {&all, 1}, keys, keys);
    const AttentionSegment segment{0, rows, start, table};
    const auto q = random_values(rows * heads * dim);
    std::vector<float> out(q.size());
    const double append =
        best_time(seconds / 4, [&] { append_kv(backend, layout, {&segment, 1}, keys, keys); });
    const double time = best_time(seconds, [&] {
      attention(backend, layout, {heads, 0, 1 / std::sqrt(static_cast<float>(dim))}, {&segment, 1},
                {q.data(), rows, heads * dim}, {out.data(), rows, heads * dim});
    });
    const double pairs = static_cast<double>(rows * start) + 0.5 * static_cast<double>(rows * (rows + 1));
    const double flops = 4.0 * pairs * static_cast<double>(heads * dim) / time;
    const double bytes =
        static_cast<double>((start + rows) * kv_heads * dim * 2 * element_size(element)) / time;
    fmt::print(
        "attention {} {:2}/{} × {:3}  start {:4} rows {:4}  {:9.1f} µs  {:5.1f} GB/s  {:6.1f} GFLOP/s "
        "{:3.0f} %  append {:.1f} µs\n",
        element == Element::kBf16 ? "bf16" : "fp32", heads, kv_heads, dim, start, rows, time * 1e6,
        bytes * 1e-9, flops * 1e-9, 100 * flops / limits.matrix_flops, append * 1e6);
  }
}

int run(const Settings& settings) {
  CpuBackend::Options options;
  options.threads = settings.threads;
  options.round_inputs = !settings.exact;
  if (!settings.path.empty()) {
    const auto path = parse_cpu_path(settings.path);
    if (!path.ok()) return fmt::print(stderr, "{}\n", message_of(path.status())), 2;
    options.path = *path;
  }
  const auto backend = CpuBackend::create(options);
  if (!backend.ok()) return fmt::print(stderr, "{}\n", message_of(backend.status())), 1;
  const MachineLimits limits = measure_limits(settings.threads);
  fmt::print("path {}, {} threads\n{}\n", to_string((*backend)->path()), settings.threads, to_string(limits));
  if (settings.only != "attention") {
    const MatrixFormat format = settings.quantization == "int8"  ? MatrixFormat::kInt8
                                : settings.quantization == "nf4" ? MatrixFormat::kNf4
                                : settings.quantization == "fp8" ? MatrixFormat::kFp8
                                                                 : MatrixFormat::kBf16;
    for (const LinearShape& shape : kLinearShapes)
      bench_linear(**backend, limits, settings.seconds, shape, format);
    if (format == MatrixFormat::kBf16)
      bench_linear(**backend, limits, settings.seconds, kLinearShapes[2], MatrixFormat::kF32);
  }
  if (settings.only != "linear") {
    for (const Element element : {Element::kBf16, Element::kF32}) {
      bench_attention(**backend, limits, settings.seconds, {9, 3, 64}, element);
      bench_attention(**backend, limits, settings.seconds, {32, 8, 64}, element);
    }
  }
  return 0;
}
}  // namespace
}  // namespace mesh::bench

int main(int argc, char** argv) {
  mesh::bench::Settings settings;
  CLI::App app("Linear layers and attention as shares of this machine's limits");
  app.add_option("--path", settings.path, "portable, avx2, avx512 or avx512_bf16; the best by default");
  app.add_option("--only", settings.only, "linear or attention")
      ->check(CLI::IsMember({"linear", "attention"}));
  app.add_option("--quantization", settings.quantization, "of linear layers")
      ->check(CLI::IsMember({"bfloat16", "int8", "nf4", "fp8"}));
  app.add_option("--threads", settings.threads, "all cores by default")->check(CLI::PositiveNumber);
  app.add_flag("--exact", settings.exact, "Float32 products, as with --dtype float32");
  app.add_option("--seconds", settings.seconds, "for each figure");
  CLI11_PARSE(app, argc, argv);
  return mesh::bench::run(settings);
}
